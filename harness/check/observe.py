"""What really happened in a run: events that a scenario can demand, so that nothing passes by never being tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from harness.scenario import Scenario
from harness.trace import RowTrace, StepTrace, Trace

RowEvent = Callable[[RowTrace, RowTrace | None], bool]
StepEvent = Callable[[StepTrace], bool]


def _verifies(row: RowTrace) -> bool:
    return not row.prompt_tokens


def _decoding(step: StepTrace) -> list[RowTrace]:
    return [row for row in step.rows if _verifies(row)]


STEP_EVENTS: dict[str, StepEvent] = {
    "unequal rows": lambda step: len({row.tokens for row in _decoding(step)}) > 1,
    "different accepted counts": lambda step: len({row.accepted for row in _decoding(step)}) > 1,
    "different previous counts": lambda step: len({row.previous_accepted for row in _decoding(step)}) > 1,
    "prompt beside verify rows": lambda step: 0 < len(_decoding(step)) < len(step.rows),
    "verify step without drafts": lambda step: (
        bool(_decoding(step)) and not any(row.kept for row in step.rows)
    ),
    "padded rows": lambda step: step.padded_rows > 0,
    "padded tokens": lambda step: step.padded_tokens > 0,
    "prompt before a verify row": lambda step: any(
        row.prompt_tokens and not after.prompt_tokens for row, after in pairwise(step.rows)
    ),
    "several prompts": lambda step: len(step.rows) - len(_decoding(step)) > 1,
}
"""Counted once a step."""

ROW_EVENTS: dict[str, RowEvent] = {
    "rollback": lambda row, _: row.accepted < len(row.kept) + 1 and _verifies(row),
    "all drafts accepted": lambda row, _: bool(row.kept) and row.accepted == len(row.kept) + 1,
    "trim": lambda row, _: len(row.kept) < len(row.proposed),
    "grammar trim": lambda row, _: row.grammar_kept is not None and row.grammar_kept < len(row.proposed),
    "schedule trim": lambda row, _: (
        len(row.kept) < (len(row.proposed) if row.grammar_kept is None else row.grammar_kept)
    ),
    "grammar trims to zero": lambda row, _: row.grammar_kept == 0 < len(row.proposed),
    "no drafts after several accepted": lambda row, _: (
        _verifies(row) and not row.kept and row.previous_accepted > 1
    ),
    "row shorter than accepted before": lambda row, _: _verifies(row) and row.previous_accepted > row.tokens,
    "prompt in pieces": lambda row, before: (
        row.prompt_tokens > 0 and before is not None and before.prompt_tokens > 0
    ),
    "one-token prompt row": lambda row, _: row.prompt_tokens == 1,
    "drafts after a step without": lambda row, before: (
        bool(row.kept) and before is not None and _verifies(before) and not before.kept
    ),
}
"""Counted once a row, with the same request's row of an earlier step."""

EVENTS = (*STEP_EVENTS, *ROW_EVENTS, "slot reuse")
"""Every name that ``must_observe`` may use."""


def observe(scenario: Scenario, trace: Trace) -> Counter[str]:
    """How often each event happened."""
    counts: Counter[str] = Counter()
    before: dict[str, RowTrace] = {}
    owners: dict[int, str] = {}
    for step in trace.steps:
        counts.update(name for name, event in STEP_EVENTS.items() if event(step))
        for row in step.rows:
            counts.update(name for name, event in ROW_EVENTS.items() if event(row, before.get(row.request)))
            counts["slot reuse"] += any(owners.get(slot, row.request) != row.request for slot in row.slots)
            owners.update(dict.fromkeys(row.slots, row.request))
            before[row.request] = row
    return counts


def missing(scenario: Scenario, counts: Counter[str]) -> Iterator[str]:
    """What the scenario demands and did not get, in words; an unknown demand is never met."""
    for name, least in scenario.must_observe.items():
        if counts[name] < least:
            yield f"{name}: seen {counts[name]}, demanded {least}"
