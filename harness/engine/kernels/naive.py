"""The naive twin: every kernel in plain torch, as the paper writes it, vectorised over rows and heads.

Source: Yang et al. 2024, "Gated Delta Networks", arXiv 2412.06464, eq. 10 (the recurrence).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.errors import EngineError

from .decisions import CORRECT, KernelDecisions
from .fold import Fold
from .journal import Journal
from .rows import Rows


class NaiveKernels:
    """``Kernels`` on any device torch knows. Checks every index that it dereferences."""

    def conv_update(
        self,
        x: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """See ``Kernels.conv_update``."""
        columns, width = conv_state.shape[1], weight.shape[1]
        rows = Rows.live(query_start_loc, decisions.is_padding.naive(state_indices), len(x))
        out = x.new_zeros(x.shape)  # [N, D]
        if not rows.longest:
            return out
        slot = _inside(state_indices[rows.index].long(), len(conv_state), "slot")  # [R]
        a = num_accepted_tokens[rows.index].long()  # [R]

        line = conv_state[slot]  # [R, C, D]
        history = _columns(line, decisions.history_start.naive(a), width - 1)  # [R, W-1, D]
        _convolve(out, x, history, weight, bias, rows)

        first = decisions.input_column.naive(rows.length, width, columns)  # [R] column of the first new input
        end = _inside(first + rows.length - 1, columns, "column")[:, None] + 1
        column = torch.arange(columns, device=x.device)
        survivor = (decisions.kept_start.naive(a)[:, None] + column).clamp(0, columns - 1)  # [R, C]
        position, _ = rows.padded()
        fresh = position.gather(1, (column - first[:, None]).clamp(0, rows.longest - 1))  # [R, C]
        kept = line.gather(1, survivor[:, :, None].expand_as(line))
        moved = torch.where((column < first[:, None])[:, :, None], kept, x[fresh].to(line.dtype))
        conv_state[slot] = torch.where((column < end)[:, :, None], moved, line)
        return out

    def conv_prefill(
        self,
        x: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        has_initial_state: Tensor,
    ) -> Tensor:
        """See ``Kernels.conv_prefill``."""
        width = weight.shape[1]
        rows = Rows.live(query_start_loc, CORRECT.is_padding.naive(state_indices), len(x))
        out = x.new_zeros(x.shape)  # [N, D]
        if not rows.longest:
            return out
        slot = _inside(state_indices[rows.index].long(), len(conv_state), "slot")  # [R]
        known = has_initial_state[rows.index].bool()[:, None, None]
        history = conv_state[slot, : width - 1]  # [R, W-1, D]
        history = torch.where(known, history, torch.zeros_like(history))
        window = _convolve(out, x, history, weight, bias, rows)
        conv_state[slot, : width - 1] = _columns(window, rows.length, width - 1).to(conv_state.dtype)
        return out

    def gdn_verify(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """See ``Kernels.gdn_verify``."""
        rows = Rows.live(query_start_loc, decisions.is_padding.naive(state_indices[:, 0]), len(v))
        rows = Rows(rows.index, rows.start, decisions.row_length.naive(rows.length))
        out = v.new_zeros(v.shape)  # [N, HV, V]
        if not rows.longest:
            return out
        table = state_indices[rows.index].long()  # [R, k+1]
        a = num_accepted_tokens[rows.index].long()  # [R]
        fold = Fold(q, k, v, g, beta, state.dtype)
        h = _load(state, _select(table, decisions.read_column.naive(a)), decisions)  # [R, HV, V, K]
        for j in range(rows.longest):
            t = rows.tokens(j)
            o, _ = fold.step(h[: len(t)], t)
            out[t] = o.to(out.dtype)
            column = decisions.write_column.naive(torch.full_like(t, j))
            _store(state, _select(table[: len(t)], column), h[: len(t)], decisions)
        return out

    def gdn_replay(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        journal: Journal,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        turns: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """See ``Kernels.gdn_replay``; token by token here."""
        rows = Rows.live(query_start_loc, decisions.is_padding.naive(state_indices), len(v))
        rows = Rows(rows.index, rows.start, decisions.row_length.naive(rows.length))
        out = v.new_zeros(v.shape)  # [N, HV, V]
        if not rows.longest:
            return out
        _inside(rows.length - 1, journal.rows, "token")
        slot = state_indices[rows.index].long()  # [R]
        turn = turns[rows.index].long()  # [R]
        a = decisions.replayed.naive(num_accepted_tokens[rows.index].long())  # [R]
        _inside(a, journal.rows + 1, "accepted count")
        h = _load(state, slot, decisions)  # [R, HV, V, K]
        fold_journal(h, journal, slot, turn, a)
        _store(state, slot, h, decisions)
        fold = Fold(q, k, v, g, beta, state.dtype)
        for j in range(rows.longest):
            t = rows.tokens(j)
            o, writes = fold.step(h[: len(t)], t)
            out[t] = o.to(out.dtype)
            place = slot[: len(t)], 1 - turn[: len(t)], j
            journal.k[place] = k[t].to(journal.k.dtype)
            journal.writes[place] = writes.to(journal.writes.dtype)
            journal.g[place] = g[t].to(journal.g.dtype)
        return out

    def gdn_prefill(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        has_initial_state: Tensor,
    ) -> Tensor:
        """See ``Kernels.gdn_prefill``; token by token here."""
        rows = Rows.live(query_start_loc, CORRECT.is_padding.naive(state_indices), len(v))
        out = v.new_zeros(v.shape)  # [N, HV, V]
        if not rows.longest:
            return out
        slot = state_indices[rows.index].long()  # [R]
        fold = Fold(q, k, v, g, beta, state.dtype)
        h = _load(state, slot, CORRECT)  # [R, HV, V, K]
        h[~has_initial_state[rows.index].bool()] = 0
        for j in range(rows.longest):
            t = rows.tokens(j)
            o, _ = fold.step(h[: len(t)], t)
            out[t] = o.to(out.dtype)
        _store(state, slot, h, CORRECT)
        return out

    def gating(self, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Kernels.gating``."""
        g = -A_log.float().exp() * F.softplus(a.float() + dt_bias.float(), threshold=20)
        return g, b.float().sigmoid()

    def gated_norm(self, x: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See ``Kernels.gated_norm``."""
        rms = (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()
        return (x.float() * rms * weight.float() * F.silu(z.float())).to(x.dtype)

    def decode(
        self,
        x: Tensor,
        a: Tensor,
        b: Tensor,
        z: Tensor,
        conv_state: Tensor,
        conv_weight: Tensor,
        conv_bias: Tensor | None,
        A_log: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        norm_weight: Tensor,
        eps: float,
        *,
        state_indices: Tensor,
    ) -> Tensor:
        """See ``Kernels.decode``: the separate kernels, one after the other."""
        B, HV, V, K = len(x), *state.shape[1:]
        one = torch.ones(B, dtype=torch.int32, device=x.device)
        rows = torch.arange(B + 1, device=x.device)
        g, beta = self.gating(a, b, A_log, dt_bias)
        mixed = NaiveKernels.conv_update(
            self,
            x,
            conv_state,
            conv_weight,
            conv_bias,
            query_start_loc=rows,
            state_indices=state_indices,
            num_accepted_tokens=one,
        )
        q, k, v = mixed.split([(x.shape[1] - HV * V) // 2] * 2 + [HV * V], 1)
        o = NaiveKernels.gdn_verify(
            self,
            q.unflatten(1, (-1, K)),
            k.unflatten(1, (-1, K)),
            v.unflatten(1, (HV, V)),
            g,
            beta,
            state,
            query_start_loc=rows,
            state_indices=state_indices[:, None],
            num_accepted_tokens=one,
        )
        return self.gated_norm(o, z, norm_weight, eps)


def fold_journal(h: Tensor, journal: Journal, slot: Tensor, turn: Tensor, a: Tensor) -> None:
    """Fold the first ``a [R]`` tokens of half ``turn [R]`` of the journals at ``slot [R]`` into ``h [R, HV, V, K]``."""
    for j in range(int(a.max())):
        due = (a > j).nonzero().squeeze(1)
        k, writes, g = (pool[slot[due], turn[due], j].to(h.dtype) for pool in journal.pools)
        k = k.repeat_interleave(h.shape[1] // k.shape[1], 1)  # [r, HV, K]
        h[due] = h[due] * g.exp()[:, :, None, None] + writes[..., None] * k[:, :, None, :]


def _convolve(
    out: Tensor, x: Tensor, history: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows
) -> Tensor:
    """Write silu(conv) of the rows into ``out [N, D]``; return the inputs with their history, [R, W-1+T, D]."""
    position, real = rows.padded()  # [R, T]
    dtype = torch.promote_types(x.dtype, torch.float32)
    window = torch.cat([history.to(dtype), x[position].to(dtype)], 1)  # [R, W-1+T, D]
    taps = weight.to(dtype).unbind(1)  # W x [D]
    y = sum((window[:, i : i + rows.longest] * tap for i, tap in enumerate(taps)), window.new_zeros(()))
    if bias is not None:
        y = y + bias.to(dtype)
    out[position[real]] = F.silu(y)[real].to(out.dtype)
    return window


def _columns(line: Tensor, start: Tensor, count: int) -> Tensor:
    """``count`` columns of each ``line [R, C, D]`` from its own ``start [R]``: [R, count, D]."""
    column = start[:, None] + torch.arange(count, device=line.device)
    _inside(column, line.shape[1], "column")
    return line.gather(1, column[:, :, None].expand(-1, -1, line.shape[2]))


def _select(table: Tensor, column: Tensor) -> Tensor:
    """Slot ``table[r, column[r]]`` of each row: [R]."""
    return table.gather(1, _inside(column, table.shape[1], "column")[:, None]).squeeze(1)


def _load(state: Tensor, slot: Tensor, decisions: KernelDecisions) -> Tensor:
    h = state[_inside(slot, len(state), "slot")].to(torch.promote_types(state.dtype, torch.float32))
    h[decisions.is_padding.naive(slot)] = 0
    return h


def _store(state: Tensor, slot: Tensor, h: Tensor, decisions: KernelDecisions) -> None:
    real = ~decisions.is_padding.naive(slot)
    if not bool(real.all()):
        slot, h = slot[real], h[real]
    state[_inside(slot, len(state), "slot")] = h.to(state.dtype)


def _inside(index: Tensor, bound: int, noun: str) -> Tensor:
    """``index`` itself, or EngineError if any of it lies outside ``0 .. bound-1``."""
    bad = index[(index < 0) | (index >= bound)]
    if bad.numel():
        raise EngineError(f"{noun} {bad.flatten()[:8].tolist()} lies outside 0..{bound - 1}")
    return index
