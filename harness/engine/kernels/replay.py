"""The gated delta rule over the rows of a verify step that keep one state (layout ``replay``), in Triton.

One launch folds what the committed tokens of a row's last step wrote into the row's state, stores it once, and computes
the outputs of the new row behind it. It moves two states per row where layout ``slots`` moves ``k + 2``.

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

OPTIONS = {"num_warps": 1}
MANY_ROWS = 8
"""Up to it there are fewer heads than a GPU has places for programs, so heads are split."""
THRESHOLDS = (MANY_ROWS,)
"""As in ``gdn.py``."""
_INDEX_TENSORS = ["query_start_loc", "state_indices", "num_accepted_tokens", "turns"]


@triton.jit(do_not_specialize=["index_stride", "turn_stride"], do_not_specialize_on_alignment=_INDEX_TENSORS)
def gdn_replay_kernel(
    q, k, v, g, beta, out, state, last_k, last_writes, last_g,
    query_start_loc, state_indices, num_accepted_tokens, turns,
    q_stride, k_stride, v_stride, slot_stride, last_k_stride, last_writes_stride, last_g_stride,
    index_stride, turn_stride,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr, R: tl.constexpr,
    replayed: tl.constexpr, row_length: tl.constexpr, is_padding: tl.constexpr,
    USED: tl.constexpr, C: tl.constexpr, OLD: tl.constexpr, SHORT: tl.constexpr,
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
    of_head = head < HV
    of_key = of_head[:, None, None] & (ik < K)[None, None, :]
    key = (head // GROUP)[:, None, None] * K + ik[None, None, :]
    key_heads: tl.constexpr = HV // GROUP
    c = tl.arange(0, C)
    i = c // 2  # new token i is column 2 i, its query the next one
    token, query = (i < length) & ~is_query(c), (i < length) & is_query(c)
    j = tl.arange(0, OLD)
    old = j < a
    t, before, after = start + i, turn * R + j, (1 - turn) * R + i
    last_k += slot * last_k_stride
    last_writes += slot * last_writes_stride
    last_g += slot * last_g_stride + head[:, None]

    source = tl.where(query, q + t * q_stride, k + t * k_stride)[None, :, None]
    raw = tl.load(source + key, mask=of_key & (i < length)[None, :, None], other=0.0)
    x = to_matrix(raw, LANES, PAIRS)  # [BLOCK_H, C, K]
    told = last_k + before[None, :, None] * (key_heads * K) + key
    keys = to_matrix(tl.load(told, mask=of_key & old[None, :, None], other=0.0), LANES, PAIRS)
    if not SHORT:
        x, keys = x.to(tl.float32), keys.to(tl.float32)
    new, had = of_head[:, None] & token[None, :], of_head[:, None] & old[None, :]
    b_g = tl.load(g + t[None, :] * HV + head[:, None], mask=new, other=0.0)
    b_beta = tl.load(beta + t[None, :] * HV + head[:, None], mask=new, other=0.0)
    old_g = tl.load(last_g + before[None, :] * HV, mask=had, other=0.0)

    first = tl.program_id(0) * SPAN
    if first == 0:
        leads = (head % GROUP == 0)[:, None, None]
        log = last_k + after[None, :, None] * (key_heads * K) + key
        tl.store(log, raw, mask=of_key & token[None, :, None] & leads)
        tl.store(last_g + after[None, :] * HV, b_g, mask=new)

    Y, r, decay = mix(x, b_g, b_beta, c, K**-0.5, USED)
    behind = (j[None, :, None] > j[None, None, :]) & old[None, :, None]
    to_end = tl.exp(tl.sum(tl.where(behind, old_g[:, :, None], 0.0), axis=1))  # [BLOCK_H, OLD]
    fade = tl.exp(tl.sum(old_g, axis=1))

    # Told of the loop rather than of the launch: else Triton loads ahead only what a product multiplies, and not the
    # state, which is what a product is added to.
    for at in tl.range(first, first + SPAN, BLOCK_V, num_stages=2):
        iv = at + tl.arange(0, BLOCK_V)
        of_value = of_head[:, None] & (iv < V)[None, :]
        of_state = of_value[:, None, :, None] & (segment < K)
        value = head[:, None] * V + iv[None, :]
        place = state + slot * slot_stride + value[:, None, :, None] * K + segment
        h = load_state(place, of_state, LANES, PAIRS)  # [BLOCK_H, BLOCK_V, K]
        logged = last_writes + before[None, :, None] * (HV * V) + value[:, None, :]
        writes = tl.load(logged, mask=of_value[:, None, :] & old[None, :, None], other=0.0)
        writes = tl.trans(writes * to_end[:, :, None], 0, 2, 1)  # [BLOCK_H, BLOCK_V, OLD]
        h = add_matmul(h * fade[:, None, None], writes, keys, SHORT, False)
        store_state(place, h, of_state & (a > 0), LANES, PAIRS, CACHE)

        taken = of_value[:, None, :] & token[None, :, None]
        b_v = tl.load(v + t[None, :, None] * v_stride + value[:, None, :], mask=taken, other=0.0)
        b_v = tl.trans(b_v.to(tl.float32), 0, 2, 1)  # [BLOCK_H, BLOCK_V, C]
        u = solve(h, x, b_v, Y, r, decay, b_beta, c, SHORT, False)
        given = of_value[:, None, :] & query[None, :, None]
        tl.store(out + t[None, :, None] * (HV * V) + value[:, None, :], tl.trans(u, 0, 2, 1), mask=given)
        logged = last_writes + after[None, :, None] * (HV * V) + value[:, None, :]
        tl.store(logged, tl.trans(u * r[:, None, :], 0, 2, 1), mask=taken)


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
            "last_writes": pool(journal.writes, "journal.writes"),
            "last_g": pool(journal.g, "journal.g"),
            "query_start_loc": query_start_loc.contiguous(),
            "state_indices": state_indices,
            "num_accepted_tokens": num_accepted_tokens.contiguous(),
            "turns": turns,
            "q_stride": q.stride(0),
            "k_stride": k.stride(0),
            "v_stride": v.stride(0),
            "slot_stride": state.stride(0),
            "last_k_stride": journal.k.stride(0),
            "last_writes_stride": journal.writes.stride(0),
            "last_g_stride": journal.g.stride(0),
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
            **columns(R),
            "OLD": max(16, cover(R)),
            "SHORT": k.dtype == q.dtype == torch.bfloat16 and not interpreting(),
            "BLOCK_H": block_h,
            "BLOCK_V": block_v,
            "SPAN": span,
            **tile(K, state.element_size()),
            "CACHE": ".cs",
        },
        OPTIONS,
    )
