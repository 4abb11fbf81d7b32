"""A Triton launch as a value: it can be run, compiled ahead of time, or asked which compiled variant it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from harness.errors import EngineError

BOUNDARY = 16
"""Bytes of a pointer, or elements of a stride, that Triton asks for: what divides selects a compiled variant."""


@dataclass(frozen=True, slots=True)
class Launch:
    """``kernel[grid](**arguments)``, not yet done."""

    kernel: Any  # what triton.jit returns
    grid: tuple[int, ...]
    arguments: Mapping[str, object]  # every parameter of the kernel by name, constexprs too
    options: Mapping[str, int] = field(default_factory=dict)  # num_warps, num_stages

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)

    def run(self) -> None:
        """Launch; an empty grid is no launch at all."""
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, **self.options)


def interpreting() -> bool:
    """Whether Triton's own library was imported under TRITON_INTERPRET=1, so that kernels run on the CPU."""
    return isinstance(tl.cdiv, InterpretedFunction)


def fat(block: int, count: int) -> int:
    """Block size over a run-time ``count``: ``block`` whatever the count, so that no count selects a compiled variant.

    Under the interpreter, which pays per program and hardly per element, one block that covers everything.
    """
    return cover(count) if interpreting() else block


def cover(size: int) -> int:
    """The smallest power of two that is not below ``size``."""
    return 1 << max(size - 1, 0).bit_length()


def rows_of(x: Tensor) -> Tensor:
    """``x [N, ...]`` with every token's data contiguous: its own tensor, unless it must be copied.

    It must be where Triton could tell it from a fresh tensor, by the boundary it lies on or by the kind of its stride:
    a view that begins anywhere would select a compiled variant of its own.
    """
    inner = _contiguous(x)
    if inner is None:
        return x.contiguous()
    usual = x.data_ptr() % BOUNDARY == 0 and _kind(x.stride(0)) == _kind(inner)
    return x if usual else x.clone(memory_format=torch.contiguous_format)


def dense(x: Tensor) -> Tensor:
    """``x`` contiguous and on a boundary, as a fresh tensor is: its own tensor, unless it must be copied."""
    x = x.contiguous()
    return x if x.data_ptr() % BOUNDARY == 0 else x.clone()


def _contiguous(x: Tensor) -> int | None:
    """Elements of one entry of ``x [N, ...]`` where each is contiguous, else None."""
    inner = 1
    for size, stride in zip(reversed(x.shape[1:]), reversed(x.stride()[1:]), strict=True):
        if size != 1 and stride != inner:
            return None
        inner *= size
    return inner


def _kind(stride: int) -> int:
    """What Triton tells of a stride: that it is 1, that it divides, or nothing."""
    return 1 if stride == 1 else BOUNDARY if stride % BOUNDARY == 0 else 0


def pool(state: Tensor, name: str) -> Tensor:
    """``state [P, ...]`` itself. A pool is updated in place, so one with scattered slots is an EngineError."""
    if _contiguous(state) is None:
        raise EngineError(
            f"{name} {tuple(state.shape)} has strides {state.stride()}: a slot must be contiguous"
        )
    return state
