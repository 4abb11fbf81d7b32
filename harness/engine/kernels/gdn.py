"""The gated delta rule over the rows of a verify step, in Triton.

The naive twin is ``NaiveKernels.gdn_verify``. Source: Yang et al. 2024, arXiv 2412.06464, eq. 10.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .decisions import CORRECT, KernelDecisions
from .launch import Launch, cover, fat, pool, rows_of

L2_EPS = tl.constexpr(1e-6)


@triton.jit
def unit(x, axis: tl.constexpr):
    """``x`` divided by its l2 norm along ``axis``."""
    return x * tl.rsqrt(tl.sum(x * x, axis=axis, keep_dims=True) + L2_EPS)


@triton.jit(
    do_not_specialize=["index_row_stride", "index_column_stride"],
    do_not_specialize_on_alignment=["query_start_loc", "state_indices", "num_accepted_tokens"],
)
def gdn_verify_kernel(
    q, k, v, g, beta, out, state,
    query_start_loc, state_indices, num_accepted_tokens,
    q_stride, k_stride, v_stride, slot_stride, index_row_stride, index_column_stride,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr,
    read_column: tl.constexpr, write_column: tl.constexpr, row_length: tl.constexpr, is_padding: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: one row, BLOCK_H value heads, BLOCK_V of their rows. The state stays in registers throughout."""
    row = tl.program_id(0)
    start = tl.load(query_start_loc + row).to(tl.int64)
    length = row_length((tl.load(query_start_loc + row + 1) - start).to(tl.int32))
    state_indices += row.to(tl.int64) * index_row_stride
    if (length <= 0) | is_padding(tl.load(state_indices)):
        return

    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    iv = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    ik = tl.arange(0, BLOCK_K)
    of_head = head < HV
    of_key = of_head[:, None] & (ik < K)[None, :]
    of_value = of_head[:, None] & (iv < V)[None, :]
    of_state = of_value[:, :, None] & (ik < K)[None, None, :]
    key = (head // GROUP)[:, None] * K + ik[None, :]
    value = head[:, None] * V + iv[None, :]
    state += value[:, :, None] * K + ik[None, None, :]

    slot = tl.load(state_indices + read_column(tl.load(num_accepted_tokens + row)) * index_column_stride)
    h = tl.load(state + slot.to(tl.int64) * slot_stride, mask=of_state & ~is_padding(slot), other=0.0)
    h = h.to(tl.float32)  # [BLOCK_H, BLOCK_V, BLOCK_K]
    for j in range(length):
        t = start + j
        b_q = unit(tl.load(q + t * q_stride + key, mask=of_key, other=0.0).to(tl.float32), 1) * (K**-0.5)
        b_k = unit(tl.load(k + t * k_stride + key, mask=of_key, other=0.0).to(tl.float32), 1)
        b_v = tl.load(v + t * v_stride + value, mask=of_value, other=0.0).to(tl.float32)
        decay = tl.exp(tl.load(g + t * HV + head, mask=of_head, other=0.0))
        strength = tl.load(beta + t * HV + head, mask=of_head, other=0.0)

        h *= decay[:, None, None]
        u = strength[:, None] * (b_v - tl.sum(h * b_k[:, None, :], axis=2))
        h += u[:, :, None] * b_k[:, None, :]
        tl.store(out + t * (HV * V) + value, tl.sum(h * b_q[:, None, :], axis=2), mask=of_value)

        slot = tl.load(state_indices + write_column(j) * index_column_stride)
        tl.store(state + slot.to(tl.int64) * slot_stride, h, mask=of_state & ~is_padding(slot))


def verify_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    out: Tensor,
    state: Tensor,
    *,
    query_start_loc: Tensor,
    state_indices: Tensor,
    num_accepted_tokens: Tensor,
    decisions: KernelDecisions = CORRECT,
) -> Launch:
    """The launch behind ``Kernels.gdn_verify``; ``out [N, HV, V]`` must hold zeros."""
    q, k, v = rows_of(q), rows_of(k), rows_of(v)
    _, HV, V, K = pool(state, "state").shape
    block_h, block_v = fat(1, HV), min(fat(32, V), cover(V))
    return Launch(
        gdn_verify_kernel,
        (len(state_indices), triton.cdiv(HV, block_h), triton.cdiv(V, block_v)),
        {
            "q": q,
            "k": k,
            "v": v,
            "g": g.contiguous(),
            "beta": beta.contiguous(),
            "out": out,
            "state": state,
            "query_start_loc": query_start_loc,
            "state_indices": state_indices,
            "num_accepted_tokens": num_accepted_tokens,
            "q_stride": q.stride(0),
            "k_stride": k.stride(0),
            "v_stride": v.stride(0),
            "slot_stride": state.stride(0),
            "index_row_stride": state_indices.stride(0),
            "index_column_stride": state_indices.stride(1),
            "HV": HV,
            "K": K,
            "V": V,
            "GROUP": HV // k.shape[1],
            "read_column": decisions.read_column.triton,
            "write_column": decisions.write_column.triton,
            "row_length": decisions.row_length.triton,
            "is_padding": decisions.is_padding.triton,
            "BLOCK_H": block_h,
            "BLOCK_V": block_v,
            "BLOCK_K": cover(K),
        },
    )
