"""The decisions inside a kernel that a rollback bug can live in.

Each decision is one line of arithmetic, written twice: on torch tensors for the naive twin, and as a ``@triton.jit``
function that the Triton kernel receives as a ``constexpr``. A fault replaces one of them::

    dataclasses.replace(CORRECT, read_column=Decision(naive=always_first, triton=always_first_jit))

Letters: ``a`` tokens committed by the row's previous step, ``j`` position of a token in its row, ``W`` width of the
convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl  # noqa: F401  Triton's interpreter asks every module with jit functions for it
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision, twice: ``naive`` maps integer tensors, ``triton`` maps scalars inside a kernel."""

    naive: Callable[..., Tensor]
    triton: Any  # what triton.jit returns: a JITFunction, or an InterpretedFunction under TRITON_INTERPRET=1


def read_column(a: Tensor) -> Tensor:
    """Which of the row's slots holds the live recurrent state: the one after the last committed token."""
    return a - 1


def write_column(j: Tensor) -> Tensor:
    """Which of the row's slots receives the recurrent state after token ``j``."""
    return j


def history_start(a: Tensor) -> Tensor:
    """First of the W-1 columns of the convolution line that precede the row's first token."""
    return a - 1


def kept_start(a: Tensor) -> Tensor:
    """First old column of the convolution line that survives the step; it moves to column 0."""
    return a


def input_column(length: Tensor, width: int, columns: int) -> Tensor:
    """Column that receives the row's first new input: right after the W-2 survivors, whatever the row's length.

    ``columns`` is the capacity W-1+k of the line.
    """
    return length * 0 + (width - 2)


def row_length(length: Tensor) -> Tensor:
    """How many of a row's ``length`` tokens are folded into the recurrent state: all (vllm #37035)."""
    return length


def replayed(a: Tensor) -> Tensor:
    """How many tokens of a row's journal are folded into its state: those that the step before committed."""
    return a


def is_padding(slot: Tensor) -> Tensor:
    """Whether a slot id is the null slot, which is never read and never written."""
    return slot == 0


@triton.jit
def _read_column(a):
    return a - 1


@triton.jit
def _write_column(j):
    return j


@triton.jit
def _history_start(a):
    return a - 1


@triton.jit
def _kept_start(a):
    return a


@triton.jit
def _input_column(length, width, columns):
    return length * 0 + (width - 2)


@triton.jit
def _row_length(length):
    return length


@triton.jit
def _replayed(a):
    return a


@triton.jit
def _is_padding(slot):
    return slot == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDecisions:
    """All of them: the reader's map of where these bugs live inside the kernels. The defaults are right."""

    read_column: Decision = Decision(naive=read_column, triton=_read_column)
    write_column: Decision = Decision(naive=write_column, triton=_write_column)
    history_start: Decision = Decision(naive=history_start, triton=_history_start)
    kept_start: Decision = Decision(naive=kept_start, triton=_kept_start)
    input_column: Decision = Decision(naive=input_column, triton=_input_column)
    row_length: Decision = Decision(naive=row_length, triton=_row_length)
    replayed: Decision = Decision(naive=replayed, triton=_replayed)
    is_padding: Decision = Decision(naive=is_padding, triton=_is_padding)


CORRECT = KernelDecisions()
