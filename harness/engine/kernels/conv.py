"""Causal depthwise convolution with silu over the rows of a verify step, in Triton.

The naive twin is ``NaiveKernels.conv_update``. Row lengths are only ever read from ``query_start_loc`` on the device,
so one compiled kernel serves every mixture of lengths.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .decisions import CORRECT, KernelDecisions
from .launch import Launch, cover, fat, pool, rows_of

# Index tensors are views into tables of the engine: their alignment and strides must not select a compiled variant.
INDEX_TENSORS = ["query_start_loc", "state_indices", "num_accepted_tokens"]


@triton.jit
def convolve(
    x, history, weight, bias, t, length, d, x_stride, column_stride,
    D: tl.constexpr, W: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """silu of the convolution at a row's tokens t [T], channels d [E]: [T, E].

    ``x`` points at the row's first token and ``history`` at the W-1 columns that precede it.
    """
    inside = (t < length)[:, None] & (d < D)[None, :]
    y = tl.zeros(inside.shape, tl.float32)
    if HAS_BIAS:
        y += tl.load(bias + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    for i in tl.static_range(W):
        tap = tl.load(weight + d * W + i, mask=d < D, other=0.0).to(tl.float32)
        source = (t - (W - 1 - i))[:, None]  # negative: before the row, in its line
        new = tl.load(x + source * x_stride + d[None, :], mask=inside & (source >= 0), other=0.0)
        column = (t + i)[:, None]
        old = tl.load(history + column * column_stride + d[None, :], mask=inside & (source < 0), other=0.0)
        y += (new.to(tl.float32) + old.to(tl.float32)) * tap[None, :]
    return y * tl.sigmoid(y)


@triton.jit
def advance_line(
    x, line, a, length, d, x_stride, column_stride,
    D: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_C: tl.constexpr,
    kept_start: tl.constexpr, input_column: tl.constexpr,
):  # fmt: skip
    """Move a row's line on, all columns at once: the survivors to the front, then the row's raw inputs."""
    c = tl.arange(0, BLOCK_C)[:, None]
    inside = (c < COLUMNS) & (d < D)[None, :]
    input_at = input_column(length, W, COLUMNS)
    survives = inside & (c < input_at)
    arrives = inside & (c >= input_at) & (c < input_at + length)
    source = tl.maximum(0, tl.minimum(kept_start(a) + c, COLUMNS - 1))
    kept = tl.load(line + source * column_stride + d[None, :], mask=survives, other=0.0)
    new = tl.load(x + (c - input_at) * x_stride + d[None, :], mask=arrives, other=0.0)
    tl.debug_barrier()  # another thread may still have to read the column that this one overwrites
    tl.store(line + c * column_stride + d[None, :], kept, mask=survives)
    tl.store(line + c * column_stride + d[None, :], new, mask=arrives)


@triton.jit(do_not_specialize=["index_stride"], do_not_specialize_on_alignment=INDEX_TENSORS)
def conv_update_kernel(
    x, out, line, weight, bias, query_start_loc, state_indices, num_accepted_tokens,
    x_stride, slot_stride, column_stride, index_stride,
    D: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr,
    history_start: tl.constexpr, kept_start: tl.constexpr, input_column: tl.constexpr, is_padding: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one row, BLOCK_D channels. First every output, then the line."""
    row = tl.program_id(0)
    start = tl.load(query_start_loc + row).to(tl.int64)
    length = (tl.load(query_start_loc + row + 1) - start).to(tl.int32)
    slot = tl.load(state_indices + row * index_stride).to(tl.int64)
    if (length <= 0) | is_padding(slot):
        return
    a = tl.load(num_accepted_tokens + row)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    x += start * x_stride
    out += start * D
    line += slot * slot_stride

    history = line + history_start(a) * column_stride
    for first in range(0, length, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        y = convolve(x, history, weight, bias, t, length, d, x_stride, column_stride, D, W, HAS_BIAS)
        tl.store(out + t[:, None] * D + d[None, :], y, mask=(t < length)[:, None] & (d < D)[None, :])
    advance_line(
        x, line, a, length, d, x_stride, column_stride, D, W, COLUMNS, BLOCK_C, kept_start, input_column
    )  # fmt: skip


def update_launch(
    x: Tensor,
    out: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    query_start_loc: Tensor,
    state_indices: Tensor,
    num_accepted_tokens: Tensor,
    decisions: KernelDecisions = CORRECT,
) -> Launch:
    """The launch behind ``Kernels.conv_update``; ``out [N, D]`` must hold zeros."""
    columns, (D, W) = pool(conv_state, "conv_state").shape[1], weight.shape
    block_d = min(fat(256, D), cover(D))
    return Launch(
        conv_update_kernel,
        (len(state_indices), triton.cdiv(D, block_d)),
        {
            **operands(x, conv_state, weight, bias, query_start_loc, state_indices),
            "out": out,
            "num_accepted_tokens": num_accepted_tokens.contiguous(),
            "COLUMNS": columns,
            "history_start": decisions.history_start.triton,
            "kept_start": decisions.kept_start.triton,
            "input_column": decisions.input_column.triton,
            "is_padding": decisions.is_padding.triton,
            "BLOCK_T": min(fat(4, columns), cover(columns - W + 2)),
            "BLOCK_C": cover(columns),
            "BLOCK_D": block_d,
        },
    )


def operands(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, query_start_loc: Tensor, slots: Tensor
) -> dict[str, object]:
    """Arguments that every convolution kernel takes."""
    x = rows_of(x)
    return {
        "x": x,
        "line": pool(conv_state, "conv_state"),
        "weight": weight.contiguous(),
        "bias": weight if bias is None else bias.contiguous(),
        "query_start_loc": query_start_loc.contiguous(),
        "state_indices": slots,
        "x_stride": x.stride(0),
        "slot_stride": conv_state.stride(0),
        "column_stride": conv_state.stride(1),
        "index_stride": slots.stride(0),
        "D": weight.shape[0],
        "W": weight.shape[1],
        "HAS_BIAS": bias is not None,
    }
