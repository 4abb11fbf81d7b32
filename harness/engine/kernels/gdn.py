"""The gated delta rule over the rows of a verify step that leave a state per token (layout ``slots``), in Triton.

The naive twin is ``NaiveKernels.gdn_verify``. Source: Yang et al. 2024, arXiv 2412.06464, eq. 10.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import few
from .blocked import columns, is_query, load_state, mix, solve, store_state, tile, to_matrix
from .decisions import CORRECT, KernelDecisions
from .launch import Launch, cover, dense, fat, interpreting, pool, rows_of

OPTIONS = {"num_warps": 1, "num_stages": 1}
MANY_ROWS = 16
"""Batches above it get fewer and larger programs, where rows are short."""
THRESHOLDS = (MANY_ROWS,)
"""Batch sizes above which a launch needs another compiled variant: an engine warms up both sides."""


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
    USED: tl.constexpr, C: tl.constexpr, SHORT: tl.constexpr, STATE_SHORT: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr, SPAN: tl.constexpr,
    SEGMENTS: tl.constexpr, LANES: tl.constexpr, PAIRS: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """One program: one row, BLOCK_H value heads, SPAN of their rows in blocks of BLOCK_V."""
    row = tl.program_id(2)
    start = tl.load(query_start_loc + row).to(tl.int64)
    length = tl.minimum(row_length((tl.load(query_start_loc + row + 1) - start).to(tl.int32)), R)
    state_indices += row.to(tl.int64) * index_row_stride
    if (length <= 0) | is_padding(tl.load(state_indices)):
        return

    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    line: tl.constexpr = LANES * PAIRS * 2
    ik = tl.arange(0, SEGMENTS * line)
    segment = (tl.arange(0, SEGMENTS)[:, None] * line)[None, :, None, :] + tl.arange(0, line)[
        None, None, None, :
    ]
    c = tl.arange(0, C)
    of_head = head < HV
    of_key = of_head[:, None] & (ik < K)[None, :]
    key = (head // GROUP)[:, None] * K + ik[None, :]
    i = c // 2  # token i is column 2 i, its query the next one
    token, query = (i < length) & ~is_query(c), (i < length) & is_query(c)
    t = start + i
    source = tl.where(query, q + t * q_stride, k + t * k_stride)[None, :, None]
    raw = tl.load(source + key[:, None, :], mask=of_key[:, None, :] & (i < length)[None, :, None], other=0.0)
    x = to_matrix(raw, LANES, PAIRS)  # [BLOCK_H, C, K]
    if not SHORT:
        x = x.to(tl.float32)
    gates = of_head[:, None] & token[None, :]
    b_g = tl.load(g + t[None, :] * HV + head[:, None], mask=gates, other=0.0)
    b_beta = tl.load(beta + t[None, :] * HV + head[:, None], mask=gates, other=0.0)
    Y, r, decay = mix(x, b_g, b_beta, c, K**-0.5, USED)

    origin = tl.load(state_indices + read_column(tl.load(num_accepted_tokens + row)) * index_column_stride)
    first = tl.program_id(0) * SPAN
    for at in range(first, first + SPAN, BLOCK_V):
        iv = at + tl.arange(0, BLOCK_V)
        of_value = of_head[:, None] & (iv < V)[None, :]
        of_state = of_value[:, None, :, None] & (segment < K)
        value = head[:, None] * V + iv[None, :]
        place = state + value[:, None, :, None] * K + segment
        known = of_state & ~is_padding(origin)
        h = load_state(
            place + origin.to(tl.int64) * slot_stride, known, LANES, PAIRS
        )  # [BLOCK_H, BLOCK_V, K]

        b_v = tl.load(
            v + t[None, :, None] * v_stride + value[:, None, :],
            mask=of_value[:, None, :] & token[None, :, None], other=0.0,
        )  # fmt: skip
        b_v = tl.trans(b_v.to(tl.float32), 0, 2, 1)  # [BLOCK_H, BLOCK_V, C]
        new = solve(h, x, b_v, Y, r, decay, b_beta, c, SHORT, STATE_SHORT)
        tl.store(
            out + t[None, :, None] * (HV * V) + value[:, None, :], tl.trans(new, 0, 2, 1),
            mask=of_value[:, None, :] & query[None, :, None],
        )  # fmt: skip

        new *= r[:, None, :]
        for j in range(length):
            b_k = tl.load(k + (start + j) * k_stride + key, mask=of_key, other=0.0).to(tl.float32)
            b_k = to_matrix(b_k[:, None, :], LANES, PAIRS)
            fade = tl.exp(tl.load(g + (start + j) * HV + head, mask=of_head, other=0.0))
            u = tl.sum(tl.where((c == 2 * j)[None, None, :], new, 0.0), axis=2)
            h = h * fade[:, None, None] + u[:, :, None] * b_k
            slot = tl.load(state_indices + write_column(j) * index_column_stride)
            into = place + slot.to(tl.int64) * slot_stride
            store_state(into, h, of_state & ~is_padding(slot), LANES, PAIRS, CACHE)


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
    B, R = state_indices.shape
    block_h = fat(1, HV)
    arguments = {
        "q": q,
        "k": k,
        "v": v,
        "g": dense(g),
        "beta": dense(beta),
        "out": out,
        "state": state,
        "query_start_loc": query_start_loc.contiguous(),
        "state_indices": state_indices,
        "num_accepted_tokens": num_accepted_tokens.contiguous(),
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
        "BLOCK_H": block_h,
        "CACHE": ".cs",  # states are written and not read again before many other layers were
    }
    if R <= few.MOST:
        block_v = min(fat(8, V), cover(V))
        arguments |= {"BLOCK_V": block_v, **few.segments(K, state.element_size())}
        grid = triton.cdiv(V, block_v), triton.cdiv(HV, block_h), B
        return Launch(few.gdn_verify_few_kernel, grid, arguments, OPTIONS)
    block_v = max(16, min(fat(16, V), cover(V)))
    many = (
        R <= 5 and B > MANY_ROWS
    )  # measured: long rows and small batches want more programs, each of them smaller
    span = max(block_v, min(fat(64 if many else 16, V), cover(V)))
    arguments |= {
        **columns(R),
        **tile(K, state.element_size()),
        "SHORT": k.dtype == q.dtype == torch.bfloat16 and not interpreting(),
        "STATE_SHORT": state.dtype == torch.bfloat16 and not interpreting(),
        "BLOCK_V": block_v,
        "SPAN": span,
    }
    return Launch(gdn_verify_kernel, (triton.cdiv(V, span), triton.cdiv(HV, block_h), B), arguments, OPTIONS)
