"""The gated delta rule over the rows of a verify step that leave a state per token (layout ``slots``), in Triton.

The naive twin is ``NaiveKernels.gdn_verify``. Source: Yang et al. 2024, arXiv 2412.06464, eq. 10.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .blocked import columns, mix, solve
from .decisions import CORRECT, KernelDecisions
from .launch import Launch, cover, fat, interpreting, pool, rows_of


@triton.jit(
    do_not_specialize=["index_row_stride", "index_column_stride"],
    do_not_specialize_on_alignment=["query_start_loc", "state_indices", "num_accepted_tokens"],
)
def gdn_verify_kernel(
    q, k, v, g, beta, out, state,
    query_start_loc, state_indices, num_accepted_tokens,
    q_stride, k_stride, v_stride, slot_stride, index_row_stride, index_column_stride,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr, R: tl.constexpr,
    read_column: tl.constexpr, write_column: tl.constexpr, row_length: tl.constexpr, is_padding: tl.constexpr,
    C: tl.constexpr, LEVELS: tl.constexpr, SHORT: tl.constexpr, STATE_SHORT: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: one row, BLOCK_H value heads, BLOCK_V of their rows. All outputs at once, then state after state."""
    row = tl.program_id(0)
    start = tl.load(query_start_loc + row).to(tl.int64)
    length = tl.minimum(row_length((tl.load(query_start_loc + row + 1) - start).to(tl.int32)), R)
    state_indices += row.to(tl.int64) * index_row_stride
    if (length <= 0) | is_padding(tl.load(state_indices)):
        return

    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    iv = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    ik = tl.arange(0, BLOCK_K)
    c = tl.arange(0, C)
    of_head = head < HV
    of_key = of_head[:, None] & (ik < K)[None, :]
    of_value = of_head[:, None] & (iv < V)[None, :]
    of_state = of_value[:, :, None] & (ik < K)[None, None, :]
    state += (head[:, None] * V + iv[None, :])[:, :, None] * K + ik[None, None, :]

    slot = tl.load(state_indices + read_column(tl.load(num_accepted_tokens + row)) * index_column_stride)
    h = tl.load(state + slot.to(tl.int64) * slot_stride, mask=of_state & ~is_padding(slot), other=0.0)
    h = h.to(tl.float32)  # [BLOCK_H, BLOCK_V, BLOCK_K]

    is_token, is_query = c < length, (c >= R) & (c < R + length)
    t = start + c
    key = (head // GROUP)[:, None, None] * K + ik[None, None, :]
    told = of_key[:, None, :] & is_token[None, :, None]
    asked = of_key[:, None, :] & is_query[None, :, None]
    x = tl.load(k + t[None, :, None] * k_stride + key, mask=told, other=0.0).to(tl.float32)
    x += tl.load(q + (t - R)[None, :, None] * q_stride + key, mask=asked, other=0.0).to(tl.float32)
    gates = of_head[:, None] & is_token[None, :]
    b_g = tl.load(g + t[None, :] * HV + head[:, None], mask=gates, other=0.0)
    b_beta = tl.load(beta + t[None, :] * HV + head[:, None], mask=gates, other=0.0)
    value = (head[:, None] * V + iv[None, :])[:, :, None]
    taken = of_value[:, :, None] & is_token[None, None, :]
    b_v = tl.load(v + t[None, None, :] * v_stride + value, mask=taken, other=0.0).to(tl.float32)

    Y, r, decay = mix(x, b_g, b_beta, c, K**-0.5, R, R, LEVELS, SHORT)
    new = solve(h, x, b_v, Y, r, decay, b_beta, c, R, SHORT, STATE_SHORT)  # [BLOCK_H, BLOCK_V, C]
    given = of_value[:, :, None] & is_query[None, None, :]
    tl.store(out + (t - R)[None, None, :] * (HV * V) + value, new, mask=given)

    new *= r[:, None, :]
    for j in range(length):
        b_k = tl.load(k + (start + j) * k_stride + (head // GROUP)[:, None] * K + ik[None, :], mask=of_key, other=0.0)
        log_decay = tl.load(g + (start + j) * HV + head, mask=of_head, other=0.0)
        u = tl.sum(tl.where((c == j)[None, None, :], new, 0.0), axis=2)
        h = h * tl.exp(log_decay)[:, None, None] + u[:, :, None] * b_k.to(tl.float32)[:, None, :]
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
    R = state_indices.shape[1]
    block_h, block_v = fat(1, HV), max(16, min(fat(32, V), cover(V)))
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
            "R": R,
            "read_column": decisions.read_column.triton,
            "write_column": decisions.write_column.triton,
            "row_length": decisions.row_length.triton,
            "is_padding": decisions.is_padding.triton,
            **columns(R, R),
            "SHORT": k.dtype == q.dtype == torch.bfloat16 and not interpreting(),
            "STATE_SHORT": state.dtype == torch.bfloat16 and not interpreting(),
            "BLOCK_H": block_h,
            "BLOCK_V": block_v,
            "BLOCK_K": max(16, cover(K)),
        },
    )
