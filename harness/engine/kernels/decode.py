"""One linear layer's whole decode step in one launch, in Triton: convolution, gates, recurrence and gated norm.

For small batches, where every launch costs more than its work: one token per row, one program per row and value head.
What several programs share is the convolution line of their key head; the last of them to have read it moves it on.

The naive twin is ``NaiveKernels.decode``, which is the separate kernels one after the other.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .blocked import L2_EPS
from .decisions import CORRECT
from .gating import softplus
from .launch import Launch, cover, fat, interpreting, pool, rows_of

OPTIONS = {"num_warps": 8}


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
    x, a, b, z, line, weight, bias, A_log, dt_bias, state, norm_weight, out, arrivals, state_indices,
    x_stride, a_stride, b_stride, z_stride, line_stride, column_stride, slot_stride, index_stride, eps,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr,
    HAS_BIAS: tl.constexpr, is_padding: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr, SEGMENTS: tl.constexpr, LINE: tl.constexpr,
):  # fmt: skip
    """One program: one row, BLOCK_H value heads. K is cut into SEGMENTS of LINE, so that threads sum over it alone."""
    row = tl.program_id(1).to(tl.int64)
    slot = tl.load(state_indices + row * index_stride).to(tl.int64)
    if is_padding(slot):
        return
    head = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    iv = tl.arange(0, BLOCK_V)
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
    tl.debug_barrier()  # every thread of this program has read the line
    place_of_key = arrivals + row * (HV // GROUP) + head // GROUP
    last = tl.atomic_add(place_of_key, 1, mask=of_head) == GROUP - 1
    tl.store(place_of_key, 0, mask=of_head & last)
    move_on(line, new_q, query_at, of_key & last[:, None, None], column_stride, W)
    move_on(line, new_k, key_at, of_key & last[:, None, None], column_stride, W)
    move_on(line, new_v, value_at, of_value, column_stride, W)

    rate = tl.exp(tl.load(A_log + head, mask=of_head, other=0.0).to(tl.float32))
    raw = tl.load(a + row * a_stride + head, mask=of_head, other=0.0).to(tl.float32)
    raw += tl.load(dt_bias + head, mask=of_head, other=0.0).to(tl.float32)
    decay = tl.exp(-rate * softplus(raw))
    strength = tl.sigmoid(tl.load(b + row * b_stride + head, mask=of_head, other=0.0).to(tl.float32))

    # Both sums run over the old state, so that neither waits for the other.
    r_k = tl.rsqrt(tl.sum(tl.sum(b_k * b_k, axis=1), axis=1) + L2_EPS)
    r_q = tl.rsqrt(tl.sum(tl.sum(b_q * b_q, axis=1), axis=1) + L2_EPS) * (K**-0.5)
    overlap = tl.sum(tl.sum(b_q * b_k, axis=1), axis=1)
    seen = tl.sum(tl.sum(h * b_k[:, :, None, :], axis=1), axis=2)  # [BLOCK_H, BLOCK_V]
    asked = tl.sum(tl.sum(h * b_q[:, :, None, :], axis=1), axis=2)
    u = (strength * r_k)[:, None] * (b_v - (decay * r_k)[:, None] * seen)
    o = r_q[:, None] * (decay[:, None] * asked + overlap[:, None] * u)
    h = h * decay[:, None, None, None] + u[:, None, :, None] * b_k[:, :, None, :]
    tl.store(place, h, mask=of_state)

    o *= tl.rsqrt(tl.sum(o * o, axis=1) / V + eps)[:, None]
    gate = tl.load(z + row * z_stride + value, mask=of_value, other=0.0).to(tl.float32)
    o *= tl.load(norm_weight + iv, mask=iv < V, other=0.0).to(tl.float32)[None, :] * gate * tl.sigmoid(gate)
    tl.store(out + row * (HV * V) + value, o, mask=of_value)


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
    out: Tensor,
    arrivals: Tensor,
    *,
    state_indices: Tensor,
) -> Launch:
    """The launch behind ``Kernels.decode``; ``out [B, HV, V]`` and ``arrivals [B, H]`` int32 must hold zeros.

    ``arrivals`` holds zeros afterwards, so one buffer serves every launch of a stream.
    """
    x, a, b, z = rows_of(x), rows_of(a), rows_of(b), rows_of(z)
    _, HV, V, K = pool(state, "state").shape
    line = cover(K) if interpreting() else min(cover(K), 128 // state.element_size())
    block_h = fat(1, HV)
    return Launch(
        decode_kernel,
        (triton.cdiv(HV, block_h), len(state_indices)),
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
            "GROUP": HV * K * 2 // (x.shape[1] - HV * V),
            "W": conv_weight.shape[1],
            "HAS_BIAS": conv_bias is not None,
            "is_padding": CORRECT.is_padding.triton,
            "BLOCK_H": block_h,
            "BLOCK_V": cover(V),
            "SEGMENTS": cover(K) // line,
            "LINE": line,
        },
        OPTIONS,
    )
