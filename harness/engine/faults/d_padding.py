"""Group D: captured batches, padding, dummy steps and k that changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import triton
import triton.language as tl  # noqa: F401  Triton's interpreter asks every module with jit functions for it

from harness.engine.faults import fault
from harness.engine.kernels.decisions import CORRECT, Decision
from harness.engine.plan import CORRECT_SCHEDULER
from harness.engine.policy import POLICY, Outcome, Policy


def real_rows(rows: int, real: int) -> int:
    """Only the rows that have a request."""
    return real


def a_line_each(captured: int, rows: int, num_slots: int, k: int) -> None:
    """The pool has a line for every token that was captured."""
    assert num_slots >= captured, f"num_cache_lines {num_slots} >= batch {captured}"


def minus_one(stale: torch.Tensor) -> torch.Tensor:
    """-1 in every column."""
    return torch.full_like(stale, -1)


def as_left(stale: torch.Tensor) -> torch.Tensor:
    """Whatever an earlier step left there."""
    return stale


def below_zero(slot: torch.Tensor) -> torch.Tensor:
    """Padding used to be -1."""
    return slot < 0


@triton.jit
def _below_zero(slot):
    return slot < 0


def with_a_draft(room: int) -> bool:
    """A row has at least one draft, or waits until it can."""
    return room > 0


def one_step_old(row: Outcome) -> int:
    """The copy on the CPU is read before it has arrived."""
    return row.previous


def longest_of_some(lengths: Sequence[int]) -> int:
    """There is always a row."""
    return max(lengths)


def first_columns(first_k: int, k: int) -> int:
    """As many columns as the first step needed."""
    return first_k + 1


def one_token(committed: int, in_prompt: bool) -> int:
    """A verify row counts as one token."""
    return committed if in_prompt else min(committed, 1)


@fault("D1", "vllm#27571", "vllm#28202", cause="shape mismatch", kind="crash")
def slots_not_padded() -> Policy:
    """A captured batch has padded rows, and the table of slots is cut to the real ones: shapes disagree."""
    return replace(POLICY, index_rows=real_rows)


@fault("D2", "vllm#34094", "vllm#34571", cause="assertion", kind="crash")
def more_tokens_than_slots() -> Policy:
    """A captured size is larger than the pool has state slots, and an assertion about cache lines fails although no
    step needs as many."""
    return replace(POLICY, check_capture=a_line_each)


@fault("D3", "vllm#33326", cause="index out of range", kind="crash")
def padding_is_minus_one() -> Policy:
    """Padded rows point at slot -1, and the recurrence takes it for a slot: it reads and writes before the pool."""
    return replace(POLICY, padded_slots=minus_one)


@fault("D4", "vllm#35431", "vllm#39064", cause="null slot written", kind="memory")
def null_slot_is_a_slot() -> Policy:
    """Padding became block 0 and the kernels still look for ids below zero: every padded row writes the null slot, and
    reads what the others left there."""
    return replace(
        POLICY, kernels=replace(CORRECT, is_padding=Decision(naive=below_zero, triton=_below_zero))
    )


@fault("D5", "vllm#37728", cause="write into a free slot", kind="memory")
def padded_rows_keep_slots() -> Policy:
    """Rows of requests that have left keep their slots, and the next captured batch pads with them: padding is written
    into memory that is free, or somebody else's by now."""
    return replace(POLICY, padded_slots=as_left)


@fault("D6", "vllm#49757", cause="write into a free slot", kind="memory")
def dummy_step_keeps_slots() -> Policy:
    """An idle rank's dummy step replays with the slots of the last real one and writes into them."""
    return replace(POLICY, dummy_slots=as_left)


@fault("D7", "vllm#35243", "vllm#40589", cause="stalled", kind="crash")
def waits_for_room_to_draft() -> Policy:
    """Near the model's length a request has no room for a draft, and gets no row without one: everybody waits."""
    return replace(POLICY, scheduler=replace(CORRECT_SCHEDULER, deserves_row=with_a_draft))


@fault("D8", "vllm#45100", cause="accepted count one step old", kind="state", tensor="conv", layer=0)
def count_copied_too_early() -> Policy:
    """Accepted counts are copied to the CPU while the step still writes them: the next step has those of the one
    before."""
    return replace(POLICY, accepted_count=one_step_old)


@fault("D10", "sglang#10392", cause="empty batch", kind="crash")
def idle_batch_has_a_row() -> Policy:
    """An idle rank's batch has no row, and the longest of none is asked for."""
    return replace(POLICY, longest_row=longest_of_some)


@fault("D11", "sglang#23330", cause="index out of range", kind="crash")
def columns_of_the_first_k() -> Policy:
    """The number of drafts changes while the engine runs, and the tables have the columns of the first one."""
    return replace(POLICY, table_columns=first_columns)


@fault("D12", "rtx6kpro#30", cause="drafter cache stale", kind="drafts")
def drafter_reads_one_token() -> Policy:
    """The drafter was captured for one token a row, so of several accepted tokens it reads the last: the keys of the
    others stay as they were guessed."""
    return replace(POLICY, drafter_reads=one_token)
