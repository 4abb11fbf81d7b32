"""Random batches over every kernel: what a warm-up must have compiled everything for.

Batch sizes, row lengths, accepted counts, empty and padded rows, and where the tensors of a step lie in memory are
drawn anew for every step: index tensors are views into wider tables, tokens begin anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from .base import Kernels
from .journal import Journal
from .samples import Shape
from .warmup import THRESHOLDS, Layer

MOST_ROWS = 64
LONGEST_PROMPT = 130
EDGES = sorted(
    {1, 16, 32, 48, MOST_ROWS}.union(*({t, t + 1} for listed in THRESHOLDS.values() for t in listed))
)
"""Batch sizes at which something might change: Triton's own (1, and what 16 divides), and both sides of ours."""


def layer(
    shape: Shape,
    *,
    dtype: torch.dtype,
    state_dtype: torch.dtype,
    device: str = "cpu",
    slots: int = MOST_ROWS,
    seed: int = 0,
) -> Layer:
    """A layer with random weights and pools of ``slots`` requests, the null slot before them."""
    random = torch.Generator(device).manual_seed(seed)

    def normal(*size: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(size, generator=random, device=device).to(kind)

    s, window = shape, shape.k + 1
    P = 1 + slots * window
    return Layer(
        conv_state=normal(P, s.columns, s.D),
        conv_weight=normal(s.D, s.W) * 0.5,
        conv_bias=None,
        A_log=normal(s.HV, kind=torch.float32),
        dt_bias=normal(s.HV, kind=torch.float32),
        state=normal(P, s.HV, s.V, s.K, kind=state_dtype),
        norm_weight=normal(s.V),
        journal=Journal(
            k=normal(P, 2, window, s.H, s.K),
            writes=normal(P, 2, window, s.HV, s.V, kind=torch.float32),
            g=normal(P, 2, window, s.HV, kind=torch.float32).abs().neg(),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Steps of up to ``slots`` rows over one layer, drawn from ``random``."""

    layer: Layer
    random: Random
    slots: int = MOST_ROWS
    exact: bool = (
        False  # every tensor an allocation of its own size: a checker of memory sees what lies beyond
    )

    def step(self, kernels: Kernels, rows: int | None = None) -> int:
        """One verify step, one of prompts and one decode through every kernel of the contract; returns its rows,
        which are drawn where they are not given."""
        edge = self.random.random() < 0.5
        B = rows or (self.random.choice(EDGES) if edge else self.random.randint(1, self.slots))
        B = min(B, self.slots)
        self._verify(kernels, B)
        self._prefill(kernels, B)
        self._decode(kernels, B)
        return B

    def _verify(self, kernels: Any, B: int) -> None:
        layer, R = self.layer, self.layer.rows
        lengths = [self.random.randint(0, R) for _ in range(B)]
        bounds, x = self._bounds(lengths), self._tokens(sum(lengths))
        table = self._table(B, R)
        accepted = self._index([self.random.randint(1, R) for _ in range(B)])
        committed = self._index([self.random.randint(0, R) for _ in range(B)])
        turns = self._index([self.random.randint(0, 1) for _ in range(B)])
        rows = {"query_start_loc": bounds, "num_accepted_tokens": accepted}
        mixed = kernels.conv_update(*self._convolution(x), **rows, state_indices=table[:, 0])
        tokens = self._recurrence(kernels, mixed)
        out = kernels.gdn_verify(*tokens, layer.state, **rows, state_indices=table)
        kernels.gated_norm(out, self._view(len(x), *layer.state.shape[1:3]), layer.norm_weight, layer.eps)
        if layer.journal:
            replayed = {**rows, "num_accepted_tokens": committed, "turns": turns}
            kernels.gdn_replay(*tokens, layer.state, layer.journal, **replayed, state_indices=table[:, 0])

    def _prefill(self, kernels: Any, B: int) -> None:
        most = LONGEST_PROMPT if B <= 8 else self.layer.rows
        lengths = [self.random.randint(0, most) for _ in range(B)]
        x = self._tokens(sum(lengths))
        rows = {
            "query_start_loc": self._bounds(lengths),
            "state_indices": self._table(B, 1)[:, 0],
            "has_initial_state": self._index([self.random.randint(0, 1) for _ in range(B)]).bool(),
        }
        mixed = kernels.conv_prefill(*self._convolution(x), **rows)
        kernels.gdn_prefill(*self._recurrence(kernels, mixed), self.layer.state, **rows)

    def _decode(self, kernels: Any, B: int) -> None:
        layer = self.layer
        HV, V = layer.state.shape[1:3]
        x, a, b, z = (self._view(B, *size) for size in ((len(layer.conv_weight),), (HV,), (HV,), (HV, V)))
        weights = (layer.conv_state, layer.conv_weight, layer.conv_bias, layer.A_log, layer.dt_bias)
        table = self._table(B, 1)
        kernels.decode(
            x, a, b, z, *weights, layer.state, layer.norm_weight, layer.eps, state_indices=table[:, 0]
        )
        rows = {
            "query_start_loc": self._bounds([1] * B),
            "num_accepted_tokens": self._index([1] * B),
        }
        kernels.gdn_verify(*self._recurrence(kernels, x), layer.state, **rows, state_indices=table[:, :1])

    def _convolution(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        return x, self.layer.conv_state, self.layer.conv_weight, self.layer.conv_bias

    def _recurrence(self, kernels: Any, x: Tensor) -> tuple[Tensor, ...]:
        """q, k, v and gates of tokens x [N, D]: as a layer splits them, or each a view of its own."""
        q, k, v = self.layer.split(x)
        HV = self.layer.state.shape[1]
        g, beta = kernels.gating(
            self._view(len(x), HV), self._view(len(x), HV), self.layer.A_log, self.layer.dt_bias
        )
        if self.random.random() < 0.5:
            q, k, v = (self._view(*part.shape) for part in (q, k, v))
            g, beta = (self._moved(part) for part in (g, beta))
        return q, k, v, g, beta

    def _tokens(self, N: int) -> Tensor:
        return self._view(N, len(self.layer.conv_weight))

    def _view(self, N: int, *size: int) -> Tensor:
        """N random tokens, dense or as columns of a wider buffer, from any row and any column of it."""
        inner = 1
        for one in size:
            inner *= one
        first, column, beyond = (0 if self.exact else self.random.choice((0, 0, 1, 3)) for _ in range(3))
        like = self.layer.conv_weight
        wide = torch.randn(N + first, column + inner + beyond, dtype=like.dtype, device=like.device)
        return wide[first:, column : column + inner].unflatten(1, size)

    def _moved(self, x: Tensor) -> Tensor:
        """The same values, one element further in memory than an allocation begins."""
        buffer = x.new_empty(x.numel() + 1)
        buffer[1:] = x.flatten()
        return buffer[1:].view(x.shape)

    def _bounds(self, lengths: list[int]) -> Tensor:
        total = [0]
        for length in lengths:
            total.append(total[-1] + length)
        return self._index(total)

    def _table(self, B: int, width: int) -> Tensor:
        """Slots [B, width] that no other row has, a padded row now and then: columns of a wider table."""
        R = self.layer.rows
        order = self.random.sample(range(self.slots), B)
        rows = [[1 + request * R + j for j in range(R)] for request in order]
        for row in rows:
            if self.random.random() < 0.1:
                row[:] = [0] * R
        first = self.random.choice((0, 1))
        wide = [[7] * first + row + [7] for row in rows]
        table = torch.tensor(wide, dtype=torch.int32, device=self.layer.state.device)
        return table[:, first : first + width]

    def _index(self, values: list[int]) -> Tensor:
        """[n] int32, dense or every other entry of a longer tensor, from any place of it."""
        first, step = self.random.choice((0, 0, 1, 3)), self.random.choice((1, 1, 2))
        long = self.layer.index(first + step * len(values))
        view = long[first::step]
        view.copy_(torch.tensor(values, dtype=torch.int32))
        return view
