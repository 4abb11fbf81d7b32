"""Group E: accepted counts, placeholders, steps in flight, preemption."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.engine.faults import fault
from harness.engine.plan import CORRECT_SCHEDULER
from harness.engine.policy import POLICY, Outcome, Policy
from harness.engine.prefix import CORRECT_PREFIX


def none_when_over(row: Outcome) -> int:
    """A row that is thrown away has accepted nothing."""
    return 0 if row.finished else max(row.committed, 1)


def reset_behind_the_first(column: int, layer: int) -> int:
    """The first layer's copy resets the count that the others still read."""
    return column if layer == 0 else 0


def all_rows(discarded: bool) -> bool:
    """Whatever ran is counted."""
    return True


def any_epoch(epoch_of_row: int, epoch_of_request: int) -> bool:
    """Results are results."""
    return True


def as_they_are(input_ids: torch.Tensor) -> torch.Tensor:
    """Placeholders included."""
    return input_ids


def yes() -> bool:
    """They stay."""
    return True


def old_ones(new: list[int] | None, old: list[int]) -> list[int]:
    """Where there are no new drafts, the old ones."""
    return old if new is None else new


def of_the_vacated(of_moved: int, of_vacated: int) -> int:
    """Whatever was kept by row stays where it is."""
    return of_vacated


@fault("E1", "vllm#40756", "vllm PR 48475", "vllm PR 50021", cause="index out of range", kind="crash")
def accepted_none() -> Policy:
    """A row that is thrown away counts as having accepted nothing: a - 1 is -1, and what lies before the table is
    taken for a slot."""
    return replace(POLICY, accepted_count=none_when_over)


@fault("E3", "vllm#50432", cause="layers disagree", kind="state")
def count_reset_too_early() -> Policy:
    """When states are filed at a block boundary, one program resets the accepted count that the others still read: the
    layers file states of different ages."""
    return replace(POLICY, prefix=replace(CORRECT_PREFIX, column_of_layer=reset_behind_the_first))


@fault("E4", "vllm#46066", "vllm#33729", cause="counter wrong", kind="ledger")
def discarded_rows_counted() -> Policy:
    """A late row of a request that has ended is counted: accepted tokens are what it committed less
    one, so they fall."""
    return replace(POLICY, counts_row=all_rows)


@fault("E5", "vllm PR 49620", "vllm#41190", cause="unwritten memory", kind="state", tensor="conv", layer=0)
def late_frame_applied() -> Policy:
    """A request is preempted while its verify step is in flight, and the results are applied when they come: it claims
    tokens for which it has no memory."""
    return replace(POLICY, applies_late=any_epoch)


@fault("E7", "club-3090#758", cause="index out of range", kind="crash")
def placeholder_embedded() -> Policy:
    """Drafts that were refused are -1, and the embedding is asked for row -1."""
    return replace(POLICY, embedded_ids=as_they_are)


@fault("E8", "vllm#31944", cause="stale drafts", kind="drafts")
def drafts_survive_preemption() -> Policy:
    """A preempted request keeps its drafts; they belong to a place that it will not come to in this way."""
    return replace(POLICY, scheduler=replace(CORRECT_SCHEDULER, keeps_drafts=yes))


@fault("F3", "vllm#30916", "vllm#28298", cause="stale drafts", kind="drafts")
def old_drafts_reused() -> Policy:
    """A step in which the drafter has nothing to say leaves the drafts of the step before."""
    return replace(POLICY, next_proposals=old_ones)


@fault("E9", "1Cat-vLLM#73", cause="accepted count of another row", kind="state", tensor="conv", layer=0)
def counts_do_not_move() -> Policy:
    """What is kept by row stays in its place when a request moves into the row of one that has left."""
    return replace(POLICY, scheduler=replace(CORRECT_SCHEDULER, moved_count=of_the_vacated))
