"""Group C: batches that mix prompts, plain rows and speculative ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from harness.engine.faults import fault
from harness.engine.plan import ScheduledRow
from harness.engine.policy import POLICY, Policy


def any_order(places: torch.Tensor) -> torch.Tensor:
    """The right tokens in an order that an unstable sort may give."""
    return places.flip(0)


def no_mix(spec_rows: Sequence[ScheduledRow], plain_rows: Sequence[ScheduledRow]) -> None:
    """Rows of one token and speculative rows exclude each other."""
    decodes = sum(len(row.input_ids) == 1 for row in plain_rows)
    assert not (decodes and spec_rows), f"num_decodes: {decodes}, num_spec_decodes: {len(spec_rows)}"


def as_they_stand(gates: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The gates of the first n tokens."""
    return gates[: len(places)]


def uniform_first(row: ScheduledRow, rows: Sequence[ScheduledRow], k: int) -> bool:
    """Full rows decode as long as they come first; behind a row of another length everything is a prompt."""
    before = rows[: next(i for i, other in enumerate(rows) if other is row) + 1]
    verifying = [other for other in before if not other.in_prompt]
    return not row.in_prompt and all(
        len(other.input_ids) == len(verifying[0].input_ids) for other in verifying
    )


def as_slots(blocks: Sequence[int], slots: Sequence[int]) -> Sequence[int]:
    """The memory of the first group, which is the recurrent one."""
    return [*slots, *blocks[len(slots) :]]


@fault("C1", "vllm#30632", cause="tokens out of order", kind="state", tensor="conv", layer=0)
def unstable_sort() -> Policy:
    """In a mixed batch the tokens of each kind are gathered by a sort that is not stable, so they come in another order
    than their rows say."""
    return replace(POLICY, token_order=any_order)


@fault("C2", "vllm#34845", "vllm#34871", "vllm#36917", cause="rows and drafts disagree", kind="crash")
def kinds_exclude_each_other() -> Policy:
    """One-token rows and speculative rows were declared to exclude each other; the last token of a prompt beside verify
    rows kills the engine."""
    return replace(POLICY, check_mix=no_mix)


@fault(
    "C3",
    "vllm#51812",
    "vllm PR 36754",
    cause="gates of another token",
    kind="state",
    tensor="recurrent",
    layer=0,
)
def gates_not_gathered() -> Policy:
    """In a mixed batch q, k and v are gathered by row kind, decay and write strength are not: a row behind one of the
    other kind has another token's gates."""
    return replace(POLICY, gates_of=as_they_stand)


@fault("C4", "vllm#47381", cause="tokens out of order", kind="state", tensor="conv", layer=0)
def trimmed_rows_are_prompts() -> Policy:
    """Decodes are recognised by equal lengths at the front of the batch: a trimmed row ends them, and what follows is
    taken for prompts, without its accepted offset."""
    return replace(POLICY, is_speculative=uniform_first)


@fault("C10", "vllm#26564", cause="write into a free slot", kind="memory")
def drafter_in_the_wrong_group() -> Policy:
    """The drafter is handed the memory of cache group 0, which belongs to the recurrent layers: its keys go where they
    do not belong."""
    return replace(POLICY, drafter_blocks=as_slots)
