"""Every decision that this family of bugs lives in, gathered in one value: the reader's map of where they live.

A variant or a fault is ``dataclasses.replace(POLICY, one_decision=...)``; nothing is monkeypatched. Letters:
``S`` speculative rows, ``k`` drafts at most, ``n`` drafts kept, ``a`` tokens committed by a request's previous step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from harness.engine.config import NULL_SLOT
from harness.engine.guided import CORRECT_GUIDE, GuideDecisions
from harness.engine.kernels.decisions import CORRECT, KernelDecisions
from harness.engine.plan import CORRECT_SCHEDULER, ScheduledRow, SchedulerDecisions
from harness.engine.prefix import CORRECT_PREFIX, PrefixDecisions
from harness.engine.sampler import CORRECT_SAMPLER, SamplerDecisions
from harness.engine.stops import CORRECT_STOPS, StopDecisions

# Rows: which path a row takes, and what it starts from.


def is_speculative(row: ScheduledRow, rows: Sequence[ScheduledRow], k: int) -> bool:
    """Every row past its prompt reads its state at a - 1, so zero drafts change nothing (vllm #39273, PR 56531)."""
    return not row.in_prompt


def has_initial_state(row: ScheduledRow) -> bool:
    """Whether a prompt's piece goes on from the state in its slot: not its first, however short (vllm #32118)."""
    return row.start > 0 or row.request.continues


def check_accepted(num_accepted: Sequence[int], lengths: Sequence[int]) -> None:
    """Refuse accepted counts that cannot be; a may well exceed the row's length (vllm-ascend #9956)."""


def check_mix(spec_rows: Sequence[ScheduledRow], plain_rows: Sequence[ScheduledRow]) -> None:
    """Refuse a batch that mixes kinds of rows; every mix is legal (vllm #34845)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step did to one row, as far as its next accepted count may depend on it."""

    committed: int
    kept: int
    previous: int  # its accepted count before the step
    drafter: str
    finished: bool
    step_had_drafts: bool


def accepted_count(row: Outcome) -> int:
    """a: the tokens that the step committed, 1 behind a piece of a prompt."""
    return max(row.committed, 1)


def replayed_half(turn: int) -> int:
    """The half of a journal that a step replays: the one that the last row was logged in (rMLX #436)."""
    return turn


def applies_late(epoch_of_row: int, epoch_of_request: int) -> bool:
    """Whether a row's outcome counts although its request was preempted while it ran: never (vllm PR 49620)."""
    return False


def counts_row(discarded: bool) -> bool:
    """Whether a verify row enters the metrics: only if it counted for anything (vllm #46066)."""
    return not discarded


def frees_at_once() -> bool:
    """Whether a request's memory is free as soon as it has ended, with a row still to come: not before that row."""
    return False


def spec_table(table: torch.Tensor, is_spec: torch.Tensor) -> torch.Tensor:
    """table ``[B, k + 1]`` of all rows' slots -> ``[S, k + 1]`` of the speculative ones, wherever they stand."""
    return table[is_spec]


def table_columns(first_k: int, k: int) -> int:
    """Columns of the slot table: k + 1 for the largest k, which may come later (sglang #23330)."""
    return k + 1


def prefill_indices(table: torch.Tensor) -> torch.Tensor:
    """table ``[R, k + 1]`` -> column 0 ``[R]``, a strided view (vllm #25743)."""
    return table[:, 0]


def token_order(places: torch.Tensor) -> torch.Tensor:
    """places ``[n]`` of one kind of tokens in a mixed batch -> the order they are gathered in: as they stand."""
    return places


def gates_of(gates: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """gates ``[N, HV]`` -> ``[n, HV]`` of the tokens at ``places``, gathered like q, k and v (vllm #51812)."""
    return gates[places]


def write_strength(beta: torch.Tensor) -> torch.Tensor:
    """beta ``[N, HV]`` as the recurrence takes it: float32 (vllm #28343)."""
    return beta


# Convolution and captured batches: sizes and padding.


def conv_rows(x: torch.Tensor, query_start_loc: torch.Tensor) -> torch.Tensor:
    """Row boundaries for the convolution: x is packed ``[N, D]`` and so are the rows. Returns ``[S + 1]``."""
    return query_start_loc


def count_spec_tokens(spec_tokens: int, num_spec_rows: int, k: int, num_tokens: int) -> int:
    """Tokens in the speculative rows; they are counted, since rows may be unequal (vllm PR 24957)."""
    return spec_tokens


def refreshes_accepted(step_had_drafts: bool) -> bool:
    """The accepted counts describe the last step, whatever that step held (vllm #30877)."""
    return True


def row_buffer(max_num_seqs: int, k: int, max_capture: int) -> int:
    """Rows of the persistent tensors that are indexed by request: a step has no more rows than that."""
    return max_num_seqs


def token_buffer(max_num_seqs: int, k: int, max_capture: int) -> int:
    """Entries of the persistent tensors that are indexed by token: a replayed step is as long as its capture."""
    return max_capture


def captured_rows(padded_tokens: int, max_num_seqs: int, k: int) -> int:
    """Rows of a captured step of ``padded_tokens``: unequal rows may be as short as one token (vllm PR 24957)."""
    return min(padded_tokens, max_num_seqs)


def check_capture(captured: int, rows: int, num_slots: int, k: int) -> None:
    """Refuse a captured size; any size and number of rows can be replayed (vllm #25647, #34094)."""


def index_rows(rows: int, real: int) -> int:
    """Rows of the slot table of a captured step with ``real`` requests: as many as its other tensors (vllm #28202)."""
    return rows


def padded_slots(stale: torch.Tensor) -> torch.Tensor:
    """Slots of padded rows, given what an earlier step left there: the null slot (vllm #37728, #35431)."""
    return torch.full_like(stale, NULL_SLOT)


def dummy_slots(stale: torch.Tensor) -> torch.Tensor:
    """Slots of a dummy step's rows, given what an earlier step left there: the null slot (vllm #49757)."""
    return torch.full_like(stale, NULL_SLOT)


def longest_row(lengths: Sequence[int]) -> int:
    """Tokens of the longest of B rows; an idle batch has no row (sglang PR 10392)."""
    return max(lengths, default=0)


# Attention and drafter.


def embedded_ids(input_ids: torch.Tensor) -> torch.Tensor:
    """input_ids ``[N]`` as the embedding takes them: placeholders are no index (club-3090 #758)."""
    return input_ids.clamp(min=0)


def visible(positions: torch.Tensor, queries: torch.Tensor, row_length: torch.Tensor) -> torch.Tensor:
    """positions ``[T]`` that queries at ``[B, Q]`` see: those up to their own, however long the row (llama.cpp #25618).

    ``row_length [B]``. Returns ``[B, Q, T]`` bool.
    """
    return positions <= queries[:, :, None]


def drafter_blocks(blocks: Sequence[int], slots: Sequence[int]) -> Sequence[int]:
    """The memory that the drafter's attention writes to: the request's KV blocks (vllm #26564)."""
    return blocks


def drafter_reads(committed: int, in_prompt: bool) -> int:
    """How many of a row's last committed tokens the drafter's first pass reads: all (rtx6kpro #30)."""
    return committed


def next_proposals(new: list[int] | None, old: list[int]) -> list[int]:
    """Proposals for the next step, where the drafter may have none (``None``): then none (vllm #30916)."""
    return new or []


def unrolled_length(longest: int, k: int) -> int | None:
    """Row length that the convolution is compiled for; ``None``: lengths are read at run time."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The engine's decisions; the defaults are the correct ones."""

    name: str = "fixed"
    story: str = "the correct engine"
    is_speculative: Callable[[ScheduledRow, Sequence[ScheduledRow], int], bool] = is_speculative
    has_initial_state: Callable[[ScheduledRow], bool] = has_initial_state
    check_accepted: Callable[[Sequence[int], Sequence[int]], None] = check_accepted
    check_mix: Callable[[Sequence[ScheduledRow], Sequence[ScheduledRow]], None] = check_mix
    accepted_count: Callable[[Outcome], int] = accepted_count
    replayed_half: Callable[[int], int] = replayed_half
    applies_late: Callable[[int, int], bool] = applies_late
    counts_row: Callable[[bool], bool] = counts_row
    frees_at_once: Callable[[], bool] = frees_at_once
    spec_table: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = spec_table
    table_columns: Callable[[int, int], int] = table_columns
    prefill_indices: Callable[[torch.Tensor], torch.Tensor] = prefill_indices
    token_order: Callable[[torch.Tensor], torch.Tensor] = token_order
    gates_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = gates_of
    write_strength: Callable[[torch.Tensor], torch.Tensor] = write_strength
    conv_rows: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = conv_rows
    count_spec_tokens: Callable[[int, int, int, int], int] = count_spec_tokens
    refreshes_accepted: Callable[[bool], bool] = refreshes_accepted
    row_buffer: Callable[[int, int, int], int] = row_buffer
    token_buffer: Callable[[int, int, int], int] = token_buffer
    captured_rows: Callable[[int, int, int], int] = captured_rows
    unrolled_length: Callable[[int, int], int | None] = unrolled_length
    check_capture: Callable[[int, int, int, int], None] = check_capture
    index_rows: Callable[[int, int], int] = index_rows
    padded_slots: Callable[[torch.Tensor], torch.Tensor] = padded_slots
    dummy_slots: Callable[[torch.Tensor], torch.Tensor] = dummy_slots
    longest_row: Callable[[Sequence[int]], int] = longest_row
    embedded_ids: Callable[[torch.Tensor], torch.Tensor] = embedded_ids
    visible: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = visible
    drafter_blocks: Callable[[Sequence[int], Sequence[int]], Sequence[int]] = drafter_blocks
    drafter_reads: Callable[[int, bool], int] = drafter_reads
    next_proposals: Callable[[list[int] | None, list[int]], list[int]] = next_proposals
    kernels: KernelDecisions = CORRECT
    scheduler: SchedulerDecisions = CORRECT_SCHEDULER
    prefix: PrefixDecisions = CORRECT_PREFIX
    guide: GuideDecisions = CORRECT_GUIDE
    sampler: SamplerDecisions = CORRECT_SAMPLER
    stops: StopDecisions = CORRECT_STOPS


POLICY = Policy()
"""The correct engine, variant ``fixed``."""
