"""Causal depthwise convolution with silu over packed rows, in Triton.

The naive twin is ``NaiveKernels.conv_update`` and ``conv_prefill``. Row lengths are only ever read from
``query_start_loc`` on the device, so one compiled kernel serves every mixture of lengths.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .decisions import CORRECT, KernelDecisions
from .launch import Launch, fat, pool, rows_of

# Index tensors are views into tables of the engine: their alignment and strides must not select a compiled variant.
_ALIGNMENT = ["query_start_loc", "state_indices", "num_accepted_tokens", "has_initial_state", "row_of"]
_STRIDES = ["index_stride", "tokens"]


@triton.jit(do_not_specialize=_STRIDES, do_not_specialize_on_alignment=_ALIGNMENT)
def conv_update_kernel(
    x, out, line, weight, bias,
    query_start_loc, state_indices, num_accepted_tokens,
    x_stride, slot_stride, column_stride, index_stride,
    D: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr,
    history_start: tl.constexpr, kept_start: tl.constexpr, input_column: tl.constexpr, is_padding: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one row, BLOCK_D channels. First every output, then the row's line as a single tile."""
    row = tl.program_id(0)
    start = tl.load(query_start_loc + row).to(tl.int64)
    length = (tl.load(query_start_loc + row + 1) - start).to(tl.int32)
    slot = tl.load(state_indices + row * index_stride).to(tl.int64)
    if (length <= 0) | is_padding(slot):
        return
    a = tl.load(num_accepted_tokens + row)

    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    x += start * x_stride + d
    out += start * D + d
    line += slot * slot_stride + d
    history = line + history_start(a) * column_stride
    for first in range(0, length, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        y = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
        if HAS_BIAS:
            y += tl.load(bias + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
        for i in tl.static_range(W):
            tap = tl.load(weight + d * W + i, mask=d < D, other=0.0).to(tl.float32)
            source = t + (i - W + 1)  # negative: before the row, in its line
            inside = (d < D)[None, :] & (t < length)[:, None]
            new = tl.load(x + source[:, None] * x_stride, mask=inside & (source >= 0)[:, None], other=0.0)
            old = tl.load(
                history + (t + i)[:, None] * column_stride, mask=inside & (source < 0)[:, None], other=0.0
            )
            y += (new.to(tl.float32) + old.to(tl.float32)) * tap[None, :]
        y = y * tl.sigmoid(y)
        tl.store(out + t[:, None] * D, y, mask=(d < D)[None, :] & (t < length)[:, None])

    c = tl.arange(0, BLOCK_C)
    input_at = input_column(length, W, COLUMNS)
    survives = ((c < input_at) & (c < COLUMNS))[:, None] & (d < D)[None, :]
    arrives = ((c >= input_at) & (c < input_at + length) & (c < COLUMNS))[:, None] & (d < D)[None, :]
    kept = tl.load(
        line + tl.maximum(0, tl.minimum(kept_start(a) + c, COLUMNS - 1))[:, None] * column_stride,
        mask=survives, other=0.0,
    )  # fmt: skip
    new = tl.load(x + (c - input_at)[:, None] * x_stride, mask=arrives, other=0.0)
    tl.debug_barrier()  # another thread may own the column that this one is about to overwrite
    tl.store(line + c[:, None] * column_stride, kept, mask=survives)
    tl.store(line + c[:, None] * column_stride, new, mask=arrives)


@triton.jit(do_not_specialize=_STRIDES, do_not_specialize_on_alignment=_ALIGNMENT)
def conv_prefill_kernel(
    x, out, line, weight, bias,
    query_start_loc, state_indices, has_initial_state, row_of,
    tokens, x_stride, slot_stride, column_stride, index_stride,
    D: tl.constexpr, W: tl.constexpr, HAS_BIAS: tl.constexpr, is_padding: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_T packed tokens, whichever rows they belong to, times BLOCK_D channels. Reads lines only."""
    n = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    row = tl.load(row_of + n, mask=n < tokens, other=-1)  # -1: the token belongs to no row
    slot = tl.load(state_indices + row * index_stride, mask=row >= 0, other=0).to(tl.int64)
    live = (row >= 0) & ~is_padding(slot)
    known = live & (tl.load(has_initial_state + row, mask=live, other=0) != 0)
    t = n - tl.load(query_start_loc + row, mask=live, other=0)

    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    n = n.to(tl.int64)
    y = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    if HAS_BIAS:
        y += tl.load(bias + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    for i in tl.static_range(W):
        tap = tl.load(weight + d * W + i, mask=d < D, other=0.0).to(tl.float32)
        back = W - 1 - i
        new = tl.load(
            x + (n - back)[:, None] * x_stride + d[None, :],
            mask=(live & (t >= back))[:, None] & (d < D)[None, :], other=0.0,
        )  # fmt: skip
        old = tl.load(
            line + (slot * slot_stride + (t + i) * column_stride)[:, None] + d[None, :],
            mask=(known & (t < back))[:, None] & (d < D)[None, :], other=0.0,
        )  # fmt: skip
        y += (new.to(tl.float32) + old.to(tl.float32)) * tap[None, :]
    y = y * tl.sigmoid(y)
    tl.store(out + n[:, None] * D + d[None, :], y, mask=live[:, None] & (d < D)[None, :])


@triton.jit(do_not_specialize=_STRIDES, do_not_specialize_on_alignment=_ALIGNMENT)
def conv_line_kernel(
    x, line,
    query_start_loc, state_indices, has_initial_state,
    x_stride, slot_stride, column_stride, index_stride,
    D: tl.constexpr, W: tl.constexpr, is_padding: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """After a prefill: columns 0..W-2 of each row's line become its last W-1 inputs."""
    row = tl.program_id(0)
    start = tl.load(query_start_loc + row).to(tl.int64)
    length = (tl.load(query_start_loc + row + 1) - start).to(tl.int32)
    slot = tl.load(state_indices + row * index_stride).to(tl.int64)
    if (length <= 0) | is_padding(slot):
        return
    known = tl.load(has_initial_state + row) != 0

    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    c = tl.arange(0, BLOCK_C)
    x += start * x_stride + d
    line += slot * slot_stride + d
    inside = (c < W - 1)[:, None] & (d < D)[None, :]
    source = length.to(tl.int64) - (W - 1) + c  # negative: a prompt shorter than the history moves it left
    arrives = inside & (source >= 0)[:, None]
    survives = inside & (source < 0)[:, None]
    new = tl.load(x + source[:, None] * x_stride, mask=arrives, other=0.0)
    old = tl.load(line + (length + c)[:, None] * column_stride, mask=survives & known, other=0.0)
    tl.debug_barrier()
    tl.store(line + c[:, None] * column_stride, new, mask=arrives)
    tl.store(line + c[:, None] * column_stride, old, mask=survives)


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
    block_d = fat(256, D)
    return Launch(
        conv_update_kernel,
        (len(state_indices), triton.cdiv(D, block_d)),
        {
            **_common(x, conv_state, weight, bias, query_start_loc, state_indices),
            "out": out,
            "num_accepted_tokens": num_accepted_tokens,
            "COLUMNS": columns,
            "history_start": decisions.history_start.triton,
            "kept_start": decisions.kept_start.triton,
            "input_column": decisions.input_column.triton,
            "is_padding": decisions.is_padding.triton,
            "BLOCK_T": fat(4, columns - W + 2),
            "BLOCK_C": triton.next_power_of_2(columns),
            "BLOCK_D": block_d,
        },
    )


def prefill_launches(
    x: Tensor,
    out: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    query_start_loc: Tensor,
    state_indices: Tensor,
    has_initial_state: Tensor,
) -> tuple[Launch, Launch]:
    """The launches behind ``Kernels.conv_prefill``: outputs read the lines, then the lines are written."""
    D, W = weight.shape
    block_t, block_d = fat(16, len(x)), fat(128, D)
    common = _common(x, conv_state, weight, bias, query_start_loc, state_indices)
    common |= {
        "has_initial_state": has_initial_state,
        "is_padding": CORRECT.is_padding.triton,
        "BLOCK_D": block_d,
    }
    outputs = Launch(
        conv_prefill_kernel,
        (triton.cdiv(len(x), block_t), triton.cdiv(D, block_d)),
        common
        | {"out": out, "row_of": row_of(query_start_loc, len(x)), "tokens": len(x), "BLOCK_T": block_t},
    )
    del common["weight"], common["bias"], common["HAS_BIAS"]
    lines = Launch(
        conv_line_kernel,
        (len(state_indices), triton.cdiv(D, block_d)),
        common | {"BLOCK_C": triton.next_power_of_2(max(W - 1, 1))},
    )
    return outputs, lines


def row_of(query_start_loc: Tensor, tokens: int) -> Tensor:
    """The row that owns each packed token, -1 for none: [N] int32. Never waits for the device."""
    token = torch.arange(tokens, dtype=query_start_loc.dtype, device=query_start_loc.device)
    row = torch.searchsorted(query_start_loc, token, right=True, out_int32=True) - 1
    return row.masked_fill(token >= query_start_loc[-1], -1)


def _common(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, query_start_loc: Tensor, slots: Tensor
) -> dict[str, object]:
    x = rows_of(x)
    return {
        "x": x,
        "line": pool(conv_state, "conv_state"),
        "weight": weight.contiguous(),
        "bias": weight if bias is None else bias,
        "query_start_loc": query_start_loc,
        "state_indices": slots,
        "x_stride": x.stride(0),
        "slot_stride": conv_state.stride(0),
        "column_stride": conv_state.stride(1),
        "index_stride": slots.stride(0),
        "D": weight.shape[0],
        "W": weight.shape[1],
        "HAS_BIAS": bias is not None,
    }
