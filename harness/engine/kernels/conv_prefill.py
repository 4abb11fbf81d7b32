"""Causal depthwise convolution with silu over whole prompts, in Triton.

The naive twin is ``NaiveKernels.conv_prefill``. Two launches: every output reads the old lines, then they are written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .conv import INDEX_TENSORS, operands
from .decisions import CORRECT
from .launch import Launch, cover, fat

_INDEX_TENSORS = [*INDEX_TENSORS, "has_initial_state", "row_of"]


@triton.jit(do_not_specialize=["tokens", "index_stride"], do_not_specialize_on_alignment=_INDEX_TENSORS)
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


@triton.jit(do_not_specialize=["index_stride"], do_not_specialize_on_alignment=_INDEX_TENSORS)
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
    (D, W), query_start_loc = weight.shape, query_start_loc.contiguous()
    block_t, block_d = fat(16, len(x)), min(fat(128, D), cover(D))
    common = operands(x, conv_state, weight, bias, query_start_loc, state_indices)
    common |= {
        "has_initial_state": has_initial_state.contiguous(),
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
        common | {"BLOCK_C": cover(W - 1)},
    )
    return outputs, lines


def row_of(query_start_loc: Tensor, tokens: int) -> Tensor:
    """The row that owns each packed token, -1 for none: [N] int32. Never waits for the device."""
    token = torch.arange(tokens, dtype=query_start_loc.dtype, device=query_start_loc.device)
    row = torch.searchsorted(query_start_loc, token, right=True, out_int32=True) - 1
    return row.masked_fill(token >= query_start_loc[-1], -1)
