"""How the linear layers split a step's rows in two, and how a captured graph would pad them.

Speculative rows read their state at a - 1 and leave one state per token; the others (pieces of a prompt, or whatever
the policy sends there) read and write column 0. Padding repeats what a captured graph replays: zero-length rows on
the null slot, with an accepted count of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.engine.config import NULL_SLOT, EngineConfig
from harness.engine.packed import PackedTokens, boundaries, pack
from harness.engine.policy import Policy
from harness.engine.scheduler import ScheduledRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecRows:
    """The S speculative rows, padded to the captured number of rows."""

    query_start_loc: torch.Tensor  # [S + 1]
    state_indices: torch.Tensor  # [S, k + 1]
    num_accepted_tokens: torch.Tensor  # [S]
    token_mask: torch.Tensor  # [N] bool: tokens that belong to these rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRows:
    """The rows that live in column 0 of their slots."""

    query_start_loc: torch.Tensor  # [R + 1]
    slots: torch.Tensor  # [R, k + 1]
    has_initial_state: torch.Tensor  # [R] bool
    has_prompt: bool

    @property
    def state_indices(self) -> torch.Tensor:
        """Column 0, ``[R]``: a strided view, as of a real block table."""
        return self.slots[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One step. ``num_actual_tokens`` is what the linear layers believe N to be; attention alone needs no rows."""

    tokens: PackedTokens
    spec: SpecRows | None = None
    plain: PlainRows | None = None
    num_actual_tokens: int = 0
    padded_rows: int = 0
    padded_tokens: int = 0


class BatchBuilder:
    """Builds batches; owns the persistent tensors whose size the policy decides."""

    def __init__(self, config: EngineConfig, policy: Policy) -> None:
        self._config = config
        self._policy = policy
        largest = max(config.capture_sizes, default=0)
        rows = policy.row_buffer(config.max_num_seqs, config.k, largest)
        tokens = policy.token_buffer(config.max_num_seqs, config.k, largest)
        device = config.device
        self._query_start_loc = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self._state_indices = torch.zeros(rows, config.k + 1, dtype=torch.int32, device=device)
        self._num_accepted = torch.ones(rows, dtype=torch.int32, device=device)
        self._token_mask = torch.zeros(tokens, dtype=torch.bool, device=device)

    def build(self, rows: Sequence[ScheduledRow]) -> Batch:
        """The tensors of one step; torch's own error where the policy's sizes do not fit."""
        is_spec = [self._policy.is_speculative(len(row.drafts), row.in_prompt) for row in rows]
        spec_rows = [row for row, spec in zip(rows, is_spec, strict=True) if spec]
        plain_rows = [row for row, spec in zip(rows, is_spec, strict=True) if not spec]
        num_tokens, spec_tokens = _count(rows), _count(spec_rows)
        captured = self._config.capture_size(num_tokens) if not plain_rows else None
        counted = self._policy.count_spec_tokens(spec_tokens, len(spec_rows), self._config.k, num_tokens)
        padded_tokens = captured - num_tokens if captured else 0
        token_mask = self._bool(is_spec).repeat_interleave(self._int([len(row.input_ids) for row in rows]))
        spec = self._spec(spec_rows, token_mask) if spec_rows else None
        if spec and captured:
            spec = self._captured(spec, captured)
        return Batch(
            tokens=pack(
                [row.request for row in rows],
                [row.input_ids for row in rows],
                [row.start for row in rows],
                self._config,
                padded_tokens,
            ),
            spec=spec,
            plain=self._plain(plain_rows) if plain_rows else None,
            num_actual_tokens=captured or counted + num_tokens - spec_tokens,
            padded_rows=spec.num_accepted_tokens.numel() - len(spec_rows) if spec else 0,
            padded_tokens=padded_tokens,
        )

    def _spec(self, rows: Sequence[ScheduledRow], token_mask: torch.Tensor) -> SpecRows:
        return SpecRows(
            query_start_loc=boundaries([len(row.input_ids) for row in rows], self._config.device),
            state_indices=self._int([row.request.slots for row in rows]),
            num_accepted_tokens=self._int([row.request.num_accepted for row in rows]),
            token_mask=token_mask,
        )

    def _captured(self, spec: SpecRows, captured: int) -> SpecRows:
        """The same rows in the persistent tensors of a graph that was captured for ``captured`` tokens."""
        rows = self._policy.captured_rows(captured, self._config.max_num_seqs, self._config.k)
        end = int(spec.query_start_loc[-1])
        return SpecRows(
            query_start_loc=_into(self._query_start_loc, spec.query_start_loc, rows + 1, fill=end),
            state_indices=_into(self._state_indices, spec.state_indices, rows, fill=NULL_SLOT),
            num_accepted_tokens=_into(self._num_accepted, spec.num_accepted_tokens, rows, fill=1),
            token_mask=_into(self._token_mask, spec.token_mask, captured, fill=True),
        )

    def _plain(self, rows: Sequence[ScheduledRow]) -> PlainRows:
        return PlainRows(
            query_start_loc=boundaries([len(row.input_ids) for row in rows], self._config.device),
            slots=self._int([row.request.slots for row in rows]),
            has_initial_state=self._bool([row.start > 0 for row in rows]),
            has_prompt=any(row.in_prompt for row in rows),
        )

    def _int(self, values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self._config.device)

    def _bool(self, values: list[bool]) -> torch.Tensor:
        return torch.tensor(values, device=self._config.device)


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
