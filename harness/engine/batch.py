"""How the linear layers split a step's rows in two, and how a captured step pads them.

Speculative rows read their state at a - 1 and leave one state per token, or in layout ``replay`` one state and a log of
the row; the others (pieces of a prompt, or whatever the policy sends there) read and write column 0. Padding is what a
captured graph needs, whether there is one (``graphs.py``) or not: its padded tokens form rows of their own on the null
slot, k + 1 tokens at most, with an accepted count of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from harness.engine.config import NULL_SLOT, EngineConfig
from harness.engine.packed import PackedTokens, boundaries, pack
from harness.engine.plan import ScheduledRow
from harness.engine.policy import Policy
from harness.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What each speculative row finds in its journal (layout ``replay``)."""

    num_tokens: torch.Tensor  # [S], 0 where the state in the slot is all there is
    turns: torch.Tensor  # [S], the half of the journal that holds them


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecRows:
    """The S speculative rows, padded to the captured number of rows."""

    query_start_loc: torch.Tensor  # [S + 1]
    state_indices: torch.Tensor  # [S, k + 1], or [S, 1] in layout replay
    num_accepted_tokens: torch.Tensor  # [S]
    replayed: Replayed | None  # None: a state for every token
    token_mask: torch.Tensor  # [N] bool: tokens that belong to these rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRows:
    """The rows that live in column 0 of their slots."""

    query_start_loc: torch.Tensor  # [R + 1]
    slots: torch.Tensor  # [R, k + 1]
    has_initial_state: torch.Tensor  # [R] bool
    has_prompt: bool
    state_indices: torch.Tensor  # [R], column 0 of the slots: a strided view, as of a real block table


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step. ``num_actual_tokens`` is what the linear layers believe N to be; attention alone needs no rows.

    ``captured`` is the size of the CUDA graph that the step is a replay of.
    """

    tokens: PackedTokens
    spec: SpecRows | None = None
    plain: PlainRows | None = None
    is_spec: tuple[bool, ...] = ()  # of the rows that were scheduled, in their order
    num_actual_tokens: int = 0
    padded_rows: int = 0
    padded_tokens: int = 0
    captured: int | None = None


class BatchBuilder:
    """Builds batches; owns the persistent tensors whose size the policy decides."""

    def __init__(self, config: EngineConfig, policy: Policy) -> None:
        self._config = config
        self._policy = policy
        self._first_k: int | None = None
        largest = max(config.capture_sizes, default=0)
        rows = policy.row_buffer(config.max_num_seqs, config.k, largest)
        tokens = policy.token_buffer(config.max_num_seqs, config.k, largest)
        device = config.device
        self._query_start_loc = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self._state_indices = torch.zeros(rows, config.slots_per_request, dtype=torch.int32, device=device)
        self._num_accepted, self._num_replayed, self._turns = (
            torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(3)
        )
        self._token_mask = torch.zeros(tokens, dtype=torch.bool, device=device)

    def build(self, rows: Sequence[ScheduledRow], draft_length: int | None = None) -> Batch:
        """The tensors of one step; EngineError, or torch's own, where the policy's sizes do not fit.

        ``draft_length`` is the k of this step, at most the engine's.
        """
        if self._first_k is None:
            self._first_k = self._config.k if draft_length is None else draft_length
        is_spec = [self._policy.is_speculative(row, rows, self._config.k) for row in rows]
        spec_rows = [row for row, spec in zip(rows, is_spec, strict=True) if spec]
        plain_rows = [row for row, spec in zip(rows, is_spec, strict=True) if not spec]
        self._policy.check_mix(spec_rows, plain_rows)
        num_tokens, spec_tokens = _count(rows), _count(spec_rows)
        captured = self._config.capture_size(num_tokens) if not plain_rows else None
        counted = self._policy.count_spec_tokens(spec_tokens, len(spec_rows), self._config.k, num_tokens)
        padded_tokens = captured - num_tokens if captured else 0
        graph = captured if self._config.graphs else None
        token_mask = self._bool(is_spec).repeat_interleave(self._int([len(row.input_ids) for row in rows]))
        table = self._int([row.request.slots for row in rows])  # [B, k + 1], or [B, 1]
        spec = self._spec(spec_rows, table, self._bool(is_spec), token_mask) if spec_rows else None
        if spec and captured:
            spec = self._captured(spec, captured, self._policy.padded_slots)
        return Batch(
            tokens=pack(
                [row.request.blocks for row in rows],
                [row.input_ids for row in rows],
                [row.start for row in rows],
                self._config,
                longest=self._policy.longest_row([len(row.input_ids) for row in rows]),
                padded_tokens=padded_tokens,
                captured=graph is not None,
            ),
            spec=spec,
            plain=self._plain(plain_rows, table[~self._bool(is_spec)]) if plain_rows else None,
            is_spec=tuple(is_spec),
            num_actual_tokens=captured or counted + num_tokens - spec_tokens,
            padded_rows=spec.num_accepted_tokens.numel() - len(spec_rows) if spec else 0,
            padded_tokens=padded_tokens,
            captured=graph,
        )

    def dummy(self) -> Batch:
        """A step without requests, as long as a full row: what an idle rank runs (vllm #35243)."""
        captured = self._config.capture_size(self._config.k + 1)
        num_tokens = captured or self._config.k + 1
        graph = captured if self._config.graphs else None
        none = torch.zeros(1, dtype=torch.int32, device=self._config.device)
        empty = SpecRows(
            query_start_loc=none,
            state_indices=none[:0, None].expand(0, self._config.slots_per_request),
            num_accepted_tokens=none[:0],
            replayed=self._replayed([]),
            token_mask=self._bool([]),
        )
        spec = self._captured(empty, num_tokens, self._policy.dummy_slots)
        return Batch(
            tokens=pack(
                [],
                [],
                [],
                self._config,
                longest=self._policy.longest_row([]),
                padded_tokens=num_tokens,
                captured=graph is not None,
            ),
            spec=spec,
            num_actual_tokens=num_tokens,
            padded_rows=spec.num_accepted_tokens.numel(),
            padded_tokens=num_tokens,
            captured=graph,
        )

    def _spec(
        self,
        rows: Sequence[ScheduledRow],
        table: torch.Tensor,
        is_spec: torch.Tensor,
        token_mask: torch.Tensor,
    ) -> SpecRows:
        lengths = [len(row.input_ids) for row in rows]
        accepted = [row.request.num_accepted for row in rows]
        self._policy.check_accepted(accepted, lengths)
        columns = self._policy.table_columns(self._first_k or 0, self._config.k)
        if max(*lengths, *accepted) > columns:
            raise EngineError(f"column {max(*lengths, *accepted) - 1} lies outside 0..{columns - 1}")
        return SpecRows(
            query_start_loc=boundaries(lengths, self._config.device),
            state_indices=self._policy.spec_table(table, is_spec)[:, :columns],
            num_accepted_tokens=self._int(accepted),
            replayed=self._replayed(rows),
            token_mask=token_mask,
        )

    def _replayed(self, rows: Sequence[ScheduledRow]) -> Replayed | None:
        if self._config.layout == "slots":
            return None
        requests = [row.request for row in rows]
        return Replayed(
            num_tokens=self._int([r.num_accepted if r.has_journal else 0 for r in requests]),
            turns=self._int([self._policy.replayed_half(r.turn) for r in requests]),
        )

    def _captured(
        self, spec: SpecRows, captured: int, slots: Callable[[torch.Tensor], torch.Tensor]
    ) -> SpecRows:
        """The same rows in the persistent tensors of a graph that was captured for ``captured`` tokens."""
        k, real = self._config.k, spec.num_accepted_tokens.numel()
        rows = self._policy.captured_rows(captured, self._config.max_num_seqs, k)
        self._policy.check_capture(captured, rows, self._config.num_slots, k)
        end = int(spec.query_start_loc[-1])
        bounds = _into(self._query_start_loc, spec.query_start_loc, rows + 1, fill=captured)
        padding = torch.arange(1, max(rows - real, 0) + 1, device=bounds.device) * (k + 1) + end
        bounds[real + 1 :] = padding.clamp(max=captured)
        indexed = self._policy.index_rows(rows, real)
        stale = self._state_indices[real:indexed].clone()
        table = _into(self._state_indices, spec.state_indices, indexed, fill=NULL_SLOT)
        table[real:] = slots(stale)
        if len(table) != rows:
            raise EngineError(f"the shape of the slot table is {list(table.shape)}, the step has {rows} rows")
        return SpecRows(
            query_start_loc=bounds,
            state_indices=table,
            num_accepted_tokens=_into(self._num_accepted, spec.num_accepted_tokens, rows, fill=1),
            replayed=Replayed(
                num_tokens=_into(self._num_replayed, spec.replayed.num_tokens, rows, fill=0),
                turns=_into(self._turns, spec.replayed.turns, rows, fill=0),
            )
            if spec.replayed
            else None,
            token_mask=_into(self._token_mask, spec.token_mask, captured, fill=True),
        )

    def _plain(self, rows: Sequence[ScheduledRow], table: torch.Tensor) -> PlainRows:
        return PlainRows(
            query_start_loc=boundaries([len(row.input_ids) for row in rows], self._config.device),
            slots=table,
            has_initial_state=self._bool([self._policy.has_initial_state(row) for row in rows]),
            has_prompt=any(row.in_prompt or len(row.input_ids) > 1 for row in rows),
            state_indices=self._policy.prefill_indices(table),
        )

    def _int(self, values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self._config.device)

    def _bool(self, values: list[bool]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.bool, device=self._config.device)


def _count(rows: Sequence[ScheduledRow]) -> int:
    return sum(len(row.input_ids) for row in rows)


def _into(buffer: torch.Tensor, values: torch.Tensor, size: int, *, fill: int) -> torch.Tensor:
    """The first ``size`` entries of a persistent tensor, set to ``values`` and padded with ``fill``.

    Values beyond ``size`` are lost, as with a slice in a real engine; a buffer that is too small makes torch refuse.
    """
    kept = min(values.shape[0], size)
    buffer[:kept].copy_(values[:kept])
    buffer[kept:size].fill_(fill)
    return buffer[:size]
