"""The gated delta rule over the rows of a verify step that keep one state (layout ``replay``), in Triton.

One launch replays the tokens that were committed of a row's last step from its journal, writes the state once, and
computes the outputs of the new row behind it. It moves two states per row where layout ``slots`` moves ``k + 2``.

The naive twin is ``NaiveKernels.gdn_replay``. Source: Yang et al. 2024, arXiv 2412.06464, eq. 10 and section 3.3.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .blocked import add_matmul, columns, is_query, load_state, mix, solve, store_state, tile, to_matrix
from .decisions import CORRECT, KernelDecisions
from .journal import Journal
from .launch import Launch, cover, dense, fat, interpreting, pool, rows_of

OPTIONS = {"num_warps": 1, "num_stages": 2}
MANY_ROWS = 8
"""Up to it there are fewer heads than a GPU has places for programs, so heads are split."""
THRESHOLDS = (MANY_ROWS,)
"""As in ``gdn.py``."""
_INDEX_TENSORS = ["query_start_loc", "state_indices", "num_accepted_tokens", "turns"]


@triton.jit(do_not_specialize=["index_stride", "turn_stride"], do_not_specialize_on_alignment=_INDEX_TENSORS)
def gdn_replay_kernel(
    q, k, v, g, beta, out, state, last_k, last_v, last_gates,
    query_start_loc, state_indices, num_accepted_tokens, turns,
    q_stride, k_stride, v_stride, slot_stride, last_k_stride, last_v_stride, last_gates_stride,
    index_stride, turn_stride,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr, R: tl.constexpr,
    replayed: tl.constexpr, row_length: tl.constexpr, is_padding: tl.constexpr,
    OLD: tl.constexpr, USED: tl.constexpr, C: tl.constexpr, SHORT: tl.constexpr, STATE_SHORT: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr, SPAN: tl.constexpr,
    SEGMENTS: tl.constexpr, LANES: tl.constexpr, PAIRS: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """One program: one row, BLOCK_H value heads, SPAN of their rows in blocks of BLOCK_V.

    The new row goes to the other half of the journal, so no program overwrites what another one still has to read.
    """
    row = tl.program_id(2)
    start = tl.load(query_start_loc + row).to(tl.int64)
    length = tl.minimum(row_length((tl.load(query_start_loc + row + 1) - start).to(tl.int32)), R)
    slot = tl.load(state_indices + row.to(tl.int64) * index_stride).to(tl.int64)
    if (length <= 0) | is_padding(slot):
        return
    a = tl.minimum(replayed(tl.load(num_accepted_tokens + row)), R)
    turn = tl.load(turns + row.to(tl.int64) * turn_stride) & 1

    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    line: tl.constexpr = LANES * PAIRS * 2
    ik = tl.arange(0, SEGMENTS * line)
    segment = (tl.arange(0, SEGMENTS)[:, None] * line)[None, :, None, :] + tl.arange(0, line)[
        None, None, None, :
    ]
    c = tl.arange(0, C)
    of_head = head < HV
    of_key = of_head[:, None, None] & (ik < K)[None, None, :]
    key = (head // GROUP)[:, None, None] * K + ik[None, None, :]
    key_heads: tl.constexpr = HV // GROUP
    i = (c - R) // 2  # new token i is column R + 2 i, its query the next one
    old, new = c < a, (c >= R) & (i < length)
    token, query = new & ~is_query(c, R), new & is_query(c, R)
    t, before, after = start + i, turn * R + c, (1 - turn) * R + i
    last_k += slot * last_k_stride
    last_v += slot * last_v_stride
    last_gates += slot * last_gates_stride + head[:, None] * 2

    source = tl.where(old, last_k + before * (key_heads * K), k + t * k_stride)
    source = tl.where(query, q + t * q_stride, source)
    told = of_key & token[None, :, None]
    raw = tl.load(source[None, :, None] + key, mask=of_key & (old | new)[None, :, None], other=0.0)
    x = to_matrix(raw, LANES, PAIRS)  # [BLOCK_H, C, K]
    if not SHORT:
        x = x.to(tl.float32)
    of_old, of_new = of_head[:, None] & old[None, :], of_head[:, None] & token[None, :]
    new_g = tl.load(g + t[None, :] * HV + head[:, None], mask=of_new, other=0.0)
    new_beta = tl.load(beta + t[None, :] * HV + head[:, None], mask=of_new, other=0.0)
    gates = last_gates + before[None, :] * (HV * 2)
    b_g = tl.load(gates, mask=of_old, other=0.0) + new_g
    b_beta = tl.load(gates + 1, mask=of_old, other=0.0) + new_beta

    first = tl.program_id(0) * SPAN
    if first == 0:
        leads = (head % GROUP == 0)[:, None, None]
        tl.store(last_k + after[None, :, None] * (key_heads * K) + key, raw, mask=told & leads)
        gates = last_gates + after[None, :] * (HV * 2)
        tl.store(gates, new_g, mask=of_new)
        tl.store(gates + 1, new_beta, mask=of_new)

    Y, r, decay = mix(x, b_g, b_beta, c, K**-0.5, OLD, USED)
    later = (c[None, :, None] > c[None, None, :]) & old[None, :, None]
    to_end = tl.exp(tl.sum(tl.where(later, b_g[:, :, None], 0.0), axis=1)) * r
    to_end = tl.where(old[None, :], to_end, 0.0)
    fade = tl.exp(tl.sum(tl.where(old[None, :], b_g, 0.0), axis=1))

    for at in range(first, first + SPAN, BLOCK_V):
        iv = at + tl.arange(0, BLOCK_V)
        of_value = of_head[:, None] & (iv < V)[None, :]
        of_state = of_value[:, None, :, None] & (segment < K)
        value = head[:, None] * V + iv[None, :]
        place = state + slot * slot_stride + value[:, None, :, None] * K + segment
        h = load_state(place, of_state, LANES, PAIRS)  # [BLOCK_H, BLOCK_V, K]

        taken = of_value[:, None, :] & token[None, :, None]
        new_v = tl.load(v + t[None, :, None] * v_stride + value[:, None, :], mask=taken, other=0.0)
        tl.store(last_v + after[None, :, None] * (HV * V) + value[:, None, :], new_v, mask=taken)
        had = of_value[:, None, :] & old[None, :, None]
        b_v = tl.load(last_v + before[None, :, None] * (HV * V) + value[:, None, :], mask=had, other=0.0)
        b_v = tl.trans(b_v.to(tl.float32) + new_v.to(tl.float32), 0, 2, 1)  # [BLOCK_H, BLOCK_V, C]

        u = solve(h, x, b_v, Y, r, decay, b_beta, c, OLD, SHORT, STATE_SHORT)
        given = of_value[:, None, :] & query[None, :, None]
        tl.store(out + t[None, :, None] * (HV * V) + value[:, None, :], tl.trans(u, 0, 2, 1), mask=given)
        h = add_matmul(h * fade[:, None, None], u * to_end[:, None, :], x, SHORT, False)
        store_state(place, h, of_state & (a > 0), LANES, PAIRS, CACHE)


def replay_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    out: Tensor,
    state: Tensor,
    journal: Journal,
    *,
    query_start_loc: Tensor,
    state_indices: Tensor,
    num_accepted_tokens: Tensor,
    turns: Tensor,
    decisions: KernelDecisions = CORRECT,
) -> Launch:
    """The launch behind ``Kernels.gdn_replay``; ``out [N, HV, V]`` must hold zeros."""
    q, k, v = rows_of(q), rows_of(k), rows_of(v)
    _, HV, V, K = pool(state, "state").shape
    R = journal.rows
    block_h, block_v = fat(1, HV), max(16, min(fat(16, V), cover(V)))
    many = len(state_indices) > MANY_ROWS
    span = max(block_v, min(fat(128 if many else 32, V), cover(V)))
    return Launch(
        gdn_replay_kernel,
        (triton.cdiv(V, span), triton.cdiv(HV, block_h), len(state_indices)),
        {
            "q": q,
            "k": k,
            "v": v,
            "g": dense(g),
            "beta": dense(beta),
            "out": out,
            "state": state,
            "last_k": pool(journal.k, "journal.k"),
            "last_v": pool(journal.v, "journal.v"),
            "last_gates": pool(journal.gates, "journal.gates"),
            "query_start_loc": query_start_loc.contiguous(),
            "state_indices": state_indices,
            "num_accepted_tokens": num_accepted_tokens.contiguous(),
            "turns": turns,
            "q_stride": q.stride(0),
            "k_stride": k.stride(0),
            "v_stride": v.stride(0),
            "slot_stride": state.stride(0),
            "last_k_stride": journal.k.stride(0),
            "last_v_stride": journal.v.stride(0),
            "last_gates_stride": journal.gates.stride(0),
            "index_stride": state_indices.stride(0),
            "turn_stride": turns.stride(0),
            "HV": HV,
            "K": K,
            "V": V,
            "GROUP": HV // k.shape[1],
            "R": R,
            "replayed": decisions.replayed.triton,
            "row_length": decisions.row_length.triton,
            "is_padding": decisions.is_padding.triton,
            **columns(R, R),
            "SHORT": k.dtype == q.dtype == torch.bfloat16 and not interpreting(),
            "STATE_SHORT": state.dtype == torch.bfloat16 and not interpreting(),
            "BLOCK_H": block_h,
            "BLOCK_V": block_v,
            "SPAN": span,
            **tile(K, state.element_size()),
            "CACHE": ".cs",
        },
        OPTIONS,
    )
