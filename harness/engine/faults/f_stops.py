"""Group S: an end inside the run of tokens that a verify step commits. A plain step has no such place."""

from __future__ import annotations

from dataclasses import replace

from harness.engine.faults import fault
from harness.engine.policy import POLICY, Policy
from harness.engine.stops import CORRECT_STOPS


def the_last_one(committed: int) -> range:
    """Only the last of the committed tokens."""
    return range(max(committed - 1, 0), committed)


def within_the_length(committed: int, room: int) -> bool:
    """A run that reaches the last allowed token ends there."""
    return committed < room


@fault(
    "S1",
    "transformers#47912",
    "koboldcpp#1276",
    cause="answer goes on behind its end",
    kind="finish",
    tensor="answer",
)
def end_token_inside_a_run() -> Policy:
    """Only the last token of an accepted run is held against the end tokens: one in the middle is passed over, and the
    answer goes on."""
    return replace(POLICY, stops=replace(CORRECT_STOPS, tokens_compared=the_last_one))


@fault(
    "S2",
    "sglang#23802",
    "transformers#48039",
    cause="answer goes on behind its end",
    kind="finish",
    tensor="answer",
)
def stop_text_inside_a_run() -> Policy:
    """A stop text is looked for at the end of the answer: one that is complete early in an accepted run is missed."""
    return replace(POLICY, stops=replace(CORRECT_STOPS, texts_searched=the_last_one))


@fault("S3", "sglang#31599", cause="answer goes on behind its end", kind="finish", tensor="answer")
def length_looked_at_first() -> Policy:
    """The length is checked before the stops: a run that reaches it keeps what lies behind a stop inside it, and ends
    for the wrong reason."""
    return replace(POLICY, stops=replace(CORRECT_STOPS, looks_for_stops=within_the_length))
