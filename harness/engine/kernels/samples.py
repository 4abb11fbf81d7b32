"""Random packed batches for the kernels: what the compiler registry and the self-checks feed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one layer: key and value heads, head dims, convolution width, drafts."""

    H: int = 2
    HV: int = 4
    K: int = 16
    V: int = 16
    W: int = 4
    k: int = 3

    @property
    def D(self) -> int:
        """Convolution channels: q, k and v side by side."""
        return 2 * self.H * self.K + self.HV * self.V

    @property
    def columns(self) -> int:
        """Capacity of a convolution line."""
        return self.W - 1 + self.k


QWEN3_NEXT = Shape(H=16, HV=32, K=128, V=128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: its tokens, the count committed by the step before, and whether it continues a state or is padding."""

    length: int
    accepted: int = 1
    known: bool = True
    padding: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Inputs of every kernel for one set of rows. Pools lie between guard slots; index tensors are strided views."""

    shape: Shape
    rows: tuple[Row, ...]
    x: Tensor  # [N, D]
    g: Tensor  # [N, HV]
    beta: Tensor  # [N, HV]
    weight: Tensor  # [D, W]
    bias: Tensor  # [D]
    lines: Tensor  # [P + 2, C, D] with one guard slot at either end
    states: Tensor  # [P + 2, HV, V, K] likewise
    query_start_loc: Tensor  # [B + 1]
    state_indices: Tensor  # [B, k + 1]
    num_accepted_tokens: Tensor  # [B]
    has_initial_state: Tensor  # [B]
    journals: Journal  # [P + 2, ...] likewise
    turns: Tensor  # [B], a strided view

    @property
    def journal(self) -> Journal:
        k, writes, g = (pool[1:-1] for pool in self.journals.pools)
        return Journal(k=k, writes=writes, g=g)

    @property
    def conv_state(self) -> Tensor:
        return self.lines[1:-1]

    @property
    def state(self) -> Tensor:
        return self.states[1:-1]

    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k [N, H, K] and v [N, HV, V] as views of ``x``, the way a layer splits its convolution's output."""
        s = self.shape
        q, k, v = self.x.split([s.H * s.K, s.H * s.K, s.HV * s.V], 1)
        return q.unflatten(1, (s.H, s.K)), k.unflatten(1, (s.H, s.K)), v.unflatten(1, (s.HV, s.V))

    def conv(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Positional arguments of the convolutions."""
        return self.x, self.conv_state, self.weight, self.bias

    def gdn(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Positional arguments of the recurrences."""
        return *self.qkv(), self.g, self.beta, self.state

    def verify(self) -> dict[str, Any]:
        """Keyword arguments of ``gdn_verify``; ``conv_update`` takes column 0 of ``state_indices``."""
        return {
            "query_start_loc": self.query_start_loc,
            "state_indices": self.state_indices,
            "num_accepted_tokens": self.num_accepted_tokens,
        }

    def update(self) -> dict[str, Any]:
        """Keyword arguments of ``conv_update``."""
        return self.verify() | {"state_indices": self.state_indices[:, 0]}

    def replay(self) -> dict[str, Any]:
        """Keyword arguments of ``gdn_replay``."""
        return self.update() | {"turns": self.turns}

    def prefill(self) -> dict[str, Any]:
        """Keyword arguments of the prefills."""
        return {
            "query_start_loc": self.query_start_loc,
            "state_indices": self.state_indices[:, 0],
            "has_initial_state": self.has_initial_state,
        }


def batch(
    shape: Shape,
    rows: Sequence[Row],
    *,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype = torch.float32,
) -> Batch:
    """A batch of ``rows``. Slots are dealt at random; zero-length rows name slots far outside the pool."""
    random = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=random)

    B, window = len(rows), shape.k + 1
    length = torch.tensor([row.length for row in rows], dtype=torch.int32)
    padding = torch.tensor([row.padding for row in rows])
    N, P = int(length.sum()), 1 + B * window + 3

    slots = 1 + torch.randperm(P - 1, generator=random)
    table = (
        slots[-1].int().repeat(B, window + 3)
    )  # an engine's table is wider than the window: a slot of others
    table[:, 1 : window + 1] = slots[: B * window].view(B, window)
    table[length == 0] = 1_000_000
    table[padding] = 0

    def place(x: Tensor, kind: torch.dtype | None = None) -> Tensor:
        return x.to(device=device, dtype=kind or x.dtype)

    def journal() -> Journal:
        halves = P + 2, 2, window
        return Journal(
            k=place(normal(*halves, shape.H, shape.K), dtype),
            writes=place(normal(*halves, shape.HV, shape.V) * shape.K**-0.5),
            g=place(-normal(*halves, shape.HV).exp() * 0.3),
        )

    return Batch(
        shape=shape,
        rows=tuple(rows),
        x=place(normal(N, shape.D), dtype),
        g=place(-normal(N, shape.HV).exp() * 0.3),
        beta=place(normal(N, shape.HV).sigmoid()),
        weight=place(normal(shape.D, shape.W) * 0.5, dtype),
        bias=place(normal(shape.D), dtype),
        lines=place(normal(P + 2, shape.columns, shape.D), dtype),
        states=place(normal(P + 2, shape.HV, shape.V, shape.K), state_dtype),
        query_start_loc=place(torch.cat([torch.zeros(1, dtype=torch.int32), length.cumsum(0).int()])),
        state_indices=place(table)[:, 1 : window + 1],
        num_accepted_tokens=place(torch.tensor([row.accepted for row in rows], dtype=torch.int32)),
        has_initial_state=place(torch.tensor([row.known for row in rows])),
        journals=journal(),
        turns=place(torch.randint(2, (B, 3), generator=random, dtype=torch.int32))[:, 1],
    )
