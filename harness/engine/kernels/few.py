"""The gated delta rule token by token, for rows of one or two tokens, in Triton: the blocked form does not pay there.

A tile of the state is [heads, SEGMENTS, values, LINE]: K is cut into segments of one cache line, and the segments come
before the values. So a thread holds a piece of every segment of a few values, eight threads read a line, and a sum
over K costs three shuffles for four values where [values, K] would cost five for one.

The naive twin is ``NaiveKernels.gdn_verify``. Source: Yang et al. 2024, arXiv 2412.06464, eq. 10.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .blocked import L2_EPS
from .launch import cover, interpreting

MOST = 2  # tokens of a row: what was measured to be faster than the blocked form


@triton.jit
def rounded(a, b):
    """``a b``, rounded before anything is added to it.

    Else the compiler fuses a product with the addition of what another thread sends, threads add in different orders,
    and those that hold copies of one sum hold different last bits. Which of them is stored would be left to chance.
    """
    return tl.fma(a, b, 0.0)


@triton.jit
def fold(h, q, k, v, decay, strength, scale):
    """One token: h [h, SEGMENTS, V, LINE], raw q, k [h, SEGMENTS, LINE], v [h, V], decay, strength [h]; gives h, o.

    Both sums over K run over the old state, and norms are applied to what was summed: no sum waits for another.
    """
    r_k = tl.rsqrt(tl.sum(tl.sum(rounded(k, k), axis=1), axis=1) + L2_EPS)
    r_q = tl.rsqrt(tl.sum(tl.sum(rounded(q, q), axis=1), axis=1) + L2_EPS) * scale
    overlap = tl.sum(tl.sum(rounded(q, k), axis=1), axis=1)
    seen = tl.sum(tl.sum(rounded(h, k[:, :, None, :]), axis=1), axis=2)  # [h, V]
    asked = tl.sum(tl.sum(rounded(h, q[:, :, None, :]), axis=1), axis=2)
    u = (strength * r_k)[:, None] * (v - (decay * r_k)[:, None] * seen)
    o = r_q[:, None] * (decay[:, None] * asked + overlap[:, None] * u)
    return h * decay[:, None, None, None] + u[:, None, :, None] * k[:, :, None, :], o


@triton.jit(
    do_not_specialize=["index_row_stride", "index_column_stride"],
    do_not_specialize_on_alignment=["query_start_loc", "state_indices", "num_accepted_tokens"],
)
def gdn_verify_few_kernel(
    q, k, v, g, beta, out, state,
    query_start_loc, state_indices, num_accepted_tokens,
    q_stride, k_stride, v_stride, slot_stride, index_row_stride, index_column_stride,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr, R: tl.constexpr,
    read_column: tl.constexpr, write_column: tl.constexpr, row_length: tl.constexpr, is_padding: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr, SEGMENTS: tl.constexpr, LINE: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """One program: one row, BLOCK_H value heads, BLOCK_V of their rows. The state stays in registers throughout."""
    row = tl.program_id(2)
    start = tl.load(query_start_loc + row).to(tl.int64)
    length = tl.minimum(row_length((tl.load(query_start_loc + row + 1) - start).to(tl.int32)), R)
    state_indices += row.to(tl.int64) * index_row_stride
    if (length <= 0) | is_padding(tl.load(state_indices)):
        return

    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    iv = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    ik = tl.arange(0, SEGMENTS)[:, None] * LINE + tl.arange(0, LINE)[None, :]  # [SEGMENTS, LINE]
    of_head = head < HV
    of_key = of_head[:, None, None] & (ik < K)[None, :, :]
    of_value = of_head[:, None] & (iv < V)[None, :]
    of_state = of_value[:, None, :, None] & (ik < K)[None, :, None, :]
    key = (head // GROUP)[:, None, None] * K + ik[None, :, :]
    value = head[:, None] * V + iv[None, :]
    state += value[:, None, :, None] * K + ik[None, :, None, :]

    slot = tl.load(state_indices + read_column(tl.load(num_accepted_tokens + row)) * index_column_stride)
    h = tl.load(state + slot.to(tl.int64) * slot_stride, mask=of_state & ~is_padding(slot), other=0.0)
    h = h.to(tl.float32)  # [BLOCK_H, SEGMENTS, BLOCK_V, LINE]
    for j in range(length):
        t = start + j
        b_q = tl.load(q + t * q_stride + key, mask=of_key, other=0.0).to(tl.float32)
        b_k = tl.load(k + t * k_stride + key, mask=of_key, other=0.0).to(tl.float32)
        b_v = tl.load(v + t * v_stride + value, mask=of_value, other=0.0).to(tl.float32)
        decay = tl.exp(tl.load(g + t * HV + head, mask=of_head, other=0.0))
        strength = tl.load(beta + t * HV + head, mask=of_head, other=0.0)
        h, o = fold(h, b_q, b_k, b_v, decay, strength, K**-0.5)
        tl.store(out + t * (HV * V) + value, o, mask=of_value)

        slot = tl.load(state_indices + write_column(j) * index_column_stride)
        into = state + slot.to(tl.int64) * slot_stride
        tl.store(into, h, mask=of_state & ~is_padding(slot), cache_modifier=CACHE)


def segments(K: int, itemsize: int) -> dict[str, int]:
    """SEGMENTS and LINE of a key dimension as constexprs, for states of that item size: lines of 128 bytes."""
    line = cover(K) if interpreting() else min(cover(K), 128 // itemsize)
    return {"SEGMENTS": cover(K) // line, "LINE": line}
