"""One linear layer's whole decode step in one launch, in Triton: convolution, gates, recurrence and gated norm.

For small batches, where every launch costs more than its work: one token per row. Programs share what belongs to a key
head: the convolution line of its channels, which may move on when all have read it, and the norm over its value heads,
which needs all their outputs. Whichever program of a key head comes last does both.

The naive twin is ``NaiveKernels.decode``, which is the separate kernels one after the other.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .decisions import CORRECT
from .few import fold, rounded, segments
from .gating import softplus
from .launch import Launch, cover, fat, pool, rows_of

OPTIONS = {"num_warps": 1}
FEW_ROWS = 4
"""Up to it more and smaller programs are faster."""
THRESHOLDS = (FEW_ROWS,)
"""As in ``gdn.py``."""


@triton.jit
def convolve_one(x, line, weight, bias, d, mask, column_stride, W: tl.constexpr, HAS_BIAS: tl.constexpr):
    """silu of the convolution of one token at channels d, and its raw input: x and line point at channel 0."""
    new = tl.load(x + d, mask=mask, other=0.0)
    y = new.to(tl.float32) * tl.load(weight + d * W + W - 1, mask=mask, other=0.0).to(tl.float32)
    if HAS_BIAS:
        y += tl.load(bias + d, mask=mask, other=0.0).to(tl.float32)
    for i in tl.static_range(W - 1):
        tap = tl.load(weight + d * W + i, mask=mask, other=0.0).to(tl.float32)
        y += tl.load(line + i * column_stride + d, mask=mask, other=0.0).to(tl.float32) * tap
    return y * tl.sigmoid(y), new


@triton.jit
def move_on(line, new, d, mask, column_stride, W: tl.constexpr):
    """Shift the history of channels d by one column, in order, and put the new input behind it."""
    for i in tl.static_range(W - 2):
        kept = tl.load(line + (i + 1) * column_stride + d, mask=mask)
        tl.debug_barrier()  # another thread may hold the same channel
        tl.store(line + i * column_stride + d, kept, mask=mask)
    tl.store(line + (W - 2) * column_stride + d, new, mask=mask)


@triton.jit(do_not_specialize=["index_stride"], do_not_specialize_on_alignment=["state_indices"])
def decode_kernel(
    x, a, b, z, line, weight, bias, A_log, dt_bias, state, norm_weight, core, out, arrivals, state_indices,
    x_stride, a_stride, b_stride, z_stride, line_stride, column_stride, slot_stride, index_stride, eps,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr,
    HAS_BIAS: tl.constexpr, is_padding: tl.constexpr, SHARERS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr, ALL_V: tl.constexpr, SEGMENTS: tl.constexpr, LINE: tl.constexpr,
):  # fmt: skip
    """One program: one row, BLOCK_H value heads, BLOCK_V of their rows."""
    row = tl.program_id(2).to(tl.int64)
    slot = tl.load(state_indices + row * index_stride).to(tl.int64)
    if is_padding(slot):
        return
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    iv = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    ik = tl.arange(0, SEGMENTS)[:, None] * LINE + tl.arange(0, LINE)[None, :]  # [SEGMENTS, LINE]
    of_head = head < HV
    of_key = of_head[:, None, None] & (ik < K)[None, :, :]
    of_value = of_head[:, None] & (iv < V)[None, :]
    value = head[:, None] * V + iv[None, :]
    place = state + slot * slot_stride + value[:, None, :, None] * K + ik[None, :, None, :]
    of_state = of_value[:, None, :, None] & (ik < K)[None, :, None, :]
    h = tl.load(place, mask=of_state, other=0.0).to(tl.float32)  # [BLOCK_H, SEGMENTS, BLOCK_V, LINE]

    x += row * x_stride
    line += slot * line_stride
    keys: tl.constexpr = HV // GROUP * K
    query_at = (head // GROUP)[:, None, None] * K + ik[None, :, :]
    key_at, value_at = keys + query_at, 2 * keys + value
    b_q, new_q = convolve_one(x, line, weight, bias, query_at, of_key, column_stride, W, HAS_BIAS)
    b_k, new_k = convolve_one(x, line, weight, bias, key_at, of_key, column_stride, W, HAS_BIAS)
    b_v, new_v = convolve_one(x, line, weight, bias, value_at, of_value, column_stride, W, HAS_BIAS)
    rate = tl.exp(tl.load(A_log + head, mask=of_head, other=0.0).to(tl.float32))
    raw = tl.load(a + row * a_stride + head, mask=of_head, other=0.0).to(tl.float32)
    raw += tl.load(dt_bias + head, mask=of_head, other=0.0).to(tl.float32)
    decay = tl.exp(-rate * softplus(raw))
    strength = tl.sigmoid(tl.load(b + row * b_stride + head, mask=of_head, other=0.0).to(tl.float32))

    h, o = fold(h, b_q, b_k, b_v, decay, strength, K**-0.5)
    tl.store(place, h, mask=of_state, cache_modifier=".cs")
    tl.store(core + row * (HV * V) + value, o, mask=of_value)
    tl.debug_barrier()  # every thread of this program has read the line and written its outputs
    move_on(line, new_v, value_at, of_value, column_stride, W)
    counter = arrivals + row * (HV // GROUP) + head // GROUP
    last = tl.atomic_add(counter, 1, mask=of_head) == SHARERS - 1
    last &= of_head
    if tl.sum(last.to(tl.int32), axis=0) > 0:
        tl.store(counter, 0, mask=last)
        move_on(line, new_q, query_at, of_key & last[:, None, None], column_stride, W)
        move_on(line, new_k, key_at, of_key & last[:, None, None], column_stride, W)
        all_v = tl.arange(0, ALL_V)
        scale = tl.load(norm_weight + all_v, mask=all_v < V, other=0.0).to(tl.float32)[None, :]
        for i in tl.static_range(GROUP):
            at = (head // GROUP * GROUP + i)[:, None] * V + all_v[None, :]
            mine = last[:, None] & (all_v < V)[None, :]
            y = tl.load(core + row * (HV * V) + at, mask=mine, other=0.0, cache_modifier=".cg")
            gate = tl.load(z + row * z_stride + at, mask=mine, other=0.0).to(tl.float32)
            y *= tl.rsqrt(tl.sum(rounded(y, y), axis=1) / V + eps)[:, None] * scale * gate * tl.sigmoid(gate)
            tl.store(out + row * (HV * V) + at, y, mask=mine)


def decode_launch(
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
    core: Tensor,
    out: Tensor,
    arrivals: Tensor,
    *,
    state_indices: Tensor,
) -> Launch:
    """The launch behind ``Kernels.decode``; ``out [B, HV, V]`` and ``arrivals [B, H]`` int32 must hold zeros.

    ``core [B, HV, V]`` float32 is scratch. ``arrivals`` holds zeros afterwards: one buffer serves a whole stream.
    """
    x, a, b, z = rows_of(x), rows_of(a), rows_of(b), rows_of(z)
    _, HV, V, K = pool(state, "state").shape
    few = len(state_indices) <= FEW_ROWS
    block_h, block_v = fat(1, HV), min(fat(8 if few else 16, V), cover(V))
    group, blocks = HV * K * 2 // (x.shape[1] - HV * V), triton.cdiv(V, block_v)
    return Launch(
        decode_kernel,
        (blocks, triton.cdiv(HV, block_h), len(state_indices)),
        {
            "x": x,
            "a": a,
            "b": b,
            "z": z,
            "line": pool(conv_state, "conv_state"),
            "weight": conv_weight.contiguous(),
            "bias": conv_weight if conv_bias is None else conv_bias.contiguous(),
            "A_log": A_log.contiguous(),
            "dt_bias": dt_bias.contiguous(),
            "state": state,
            "norm_weight": norm_weight.contiguous(),
            "core": core,
            "out": out,
            "arrivals": arrivals,
            "state_indices": state_indices,
            "x_stride": x.stride(0),
            "a_stride": a.stride(0),
            "b_stride": b.stride(0),
            "z_stride": z.stride(0),
            "line_stride": conv_state.stride(0),
            "column_stride": conv_state.stride(1),
            "slot_stride": state.stride(0),
            "index_stride": state_indices.stride(0),
            "eps": eps,
            "HV": HV,
            "K": K,
            "V": V,
            "GROUP": group,
            "SHARERS": group * blocks,
            "W": conv_weight.shape[1],
            "HAS_BIAS": conv_bias is not None,
            "is_padding": CORRECT.is_padding.triton,
            "BLOCK_H": block_h,
            "BLOCK_V": block_v,
            "ALL_V": cover(V),
            **segments(K, state.element_size()),
        },
        OPTIONS,
    )
