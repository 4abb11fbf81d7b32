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

from .blocked import columns, exact_matmul, mix, solve
from .decisions import CORRECT, KernelDecisions
from .journal import Journal
from .launch import Launch, cover, fat, interpreting, pool, rows_of

_INDEX_TENSORS = ["query_start_loc", "state_indices", "num_accepted_tokens", "turns"]


@triton.jit(
    do_not_specialize=["index_stride", "turn_stride"], do_not_specialize_on_alignment=_INDEX_TENSORS
)
def gdn_replay_kernel(
    q, k, v, g, beta, out, state, last_k, last_v, last_gates,
    query_start_loc, state_indices, num_accepted_tokens, turns,
    q_stride, k_stride, v_stride, slot_stride, last_k_stride, last_v_stride, last_gates_stride,
    index_stride, turn_stride,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr, R: tl.constexpr,
    replayed: tl.constexpr, row_length: tl.constexpr, is_padding: tl.constexpr,
    C: tl.constexpr, LEVELS: tl.constexpr, SHORT: tl.constexpr, STATE_SHORT: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: one row, BLOCK_H value heads, BLOCK_V of their rows.

    Columns: R of the journal, R new tokens, their R queries. The new row goes to the other half of the journal, so no
    program can overwrite what another one still has to read.
    """
    row = tl.program_id(0)
    start = tl.load(query_start_loc + row).to(tl.int64)
    length = tl.minimum(row_length((tl.load(query_start_loc + row + 1) - start).to(tl.int32)), R)
    slot = tl.load(state_indices + row.to(tl.int64) * index_stride).to(tl.int64)
    if (length <= 0) | is_padding(slot):
        return
    a = tl.minimum(replayed(tl.load(num_accepted_tokens + row)), R)
    half = tl.load(turns + row.to(tl.int64) * turn_stride) & 1

    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    iv = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    ik = tl.arange(0, BLOCK_K)
    c = tl.arange(0, C)
    of_head = head < HV
    of_key = of_head[:, None, None] & (ik < K)[None, None, :]
    of_value = of_head[:, None, None] & (iv < V)[None, :, None]
    of_state = of_value & (ik < K)[None, None, :]
    state += slot * slot_stride + (head[:, None] * V + iv[None, :])[:, :, None] * K + ik[None, None, :]
    h = tl.load(state, mask=of_state, other=0.0).to(tl.float32)  # [BLOCK_H, BLOCK_V, BLOCK_K]

    is_old, is_new, is_query = c < a, (c >= R) & (c < R + length), (c >= 2 * R) & (c < 2 * R + length)
    old, t = half * R + c, start + c - R
    last_k += slot * last_k_stride
    last_v += slot * last_v_stride
    last_gates += slot * last_gates_stride

    key = (head // GROUP)[:, None, None] * K + ik[None, None, :]
    key_heads: tl.constexpr = HV // GROUP
    x = tl.load(
        last_k + old[None, :, None] * (key_heads * K) + key, mask=of_key & is_old[None, :, None], other=0.0
    ).to(tl.float32)  # [BLOCK_H, C, BLOCK_K]
    new_k = tl.load(k + t[None, :, None] * k_stride + key, mask=of_key & is_new[None, :, None], other=0.0)
    asked = of_key & is_query[None, :, None]
    x += tl.load(q + (t - R)[None, :, None] * q_stride + key, mask=asked, other=0.0).to(tl.float32)
    x += new_k.to(tl.float32)

    of_old, of_new = of_head[:, None] & is_old[None, :], of_head[:, None] & is_new[None, :]
    gate = last_gates + (old[None, :] * HV + head[:, None]) * 2
    fresh = t[None, :] * HV + head[:, None]
    new_g = tl.load(g + fresh, mask=of_new, other=0.0)
    new_beta = tl.load(beta + fresh, mask=of_new, other=0.0)
    b_g = tl.load(gate, mask=of_old, other=0.0) + new_g
    b_beta = tl.load(gate + 1, mask=of_old, other=0.0) + new_beta

    value = (head[:, None] * V + iv[None, :])[:, :, None]
    new_v = tl.load(
        v + t[None, None, :] * v_stride + value, mask=of_value & is_new[None, None, :], other=0.0
    )  # [BLOCK_H, BLOCK_V, C]
    b_v = tl.load(
        last_v + old[None, None, :] * (HV * V) + value, mask=of_value & is_old[None, None, :], other=0.0
    ).to(tl.float32)
    b_v += new_v.to(tl.float32)

    other = (1 - half) * R + c - R
    tl.store(last_v + other[None, None, :] * (HV * V) + value, new_v, mask=of_value & is_new[None, None, :])
    if tl.program_id(2) == 0:
        leads = (head % GROUP == 0)[:, None, None]
        into = last_k + other[None, :, None] * (key_heads * K) + key
        tl.store(into, new_k, mask=of_key & leads & is_new[None, :, None])
        gate = last_gates + (other[None, :] * HV + head[:, None]) * 2
        tl.store(gate, new_g, mask=of_new)
        tl.store(gate + 1, new_beta, mask=of_new)

    Y, r, decay = mix(x, b_g, b_beta, c, K**-0.5, 2 * R, R, LEVELS, SHORT)
    new = solve(h, x, b_v, Y, r, decay, b_beta, c, 2 * R, SHORT, STATE_SHORT)  # [BLOCK_H, BLOCK_V, C]
    given = of_value & is_query[None, None, :]
    tl.store(out + (t - R)[None, None, :] * (HV * V) + value, new, mask=given)

    if a > 0:
        later = (c[None, :, None] > c[None, None, :]) & is_old[None, :, None]
        to_end = tl.exp(tl.sum(tl.where(later, b_g[:, :, None], 0.0), axis=1)) * r
        new *= tl.where(is_old[None, :], to_end, 0.0)[:, None, :]
        total = tl.exp(tl.sum(tl.where(is_old[None, :], b_g, 0.0), axis=1))
        h = h * total[:, None, None] + exact_matmul(new, x, SHORT)
        tl.store(state, h, mask=of_state)


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
    block_h, block_v = fat(1, HV), max(16, min(fat(64, V), cover(V)))
    return Launch(
        gdn_replay_kernel,
        (len(state_indices), triton.cdiv(HV, block_h), triton.cdiv(V, block_v)),
        {
            "q": q,
            "k": k,
            "v": v,
            "g": g.contiguous(),
            "beta": beta.contiguous(),
            "out": out,
            "state": state,
            "last_k": pool(journal.k, "journal.k"),
            "last_v": pool(journal.v, "journal.v"),
            "last_gates": pool(journal.gates, "journal.gates"),
            "query_start_loc": query_start_loc,
            "state_indices": state_indices,
            "num_accepted_tokens": num_accepted_tokens,
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
            **columns(2 * R, R),
            "SHORT": k.dtype == q.dtype == torch.bfloat16 and not interpreting(),
            "STATE_SHORT": state.dtype == torch.bfloat16 and not interpreting(),
            "BLOCK_H": block_h,
            "BLOCK_V": block_v,
            "BLOCK_K": max(16, cover(K)),
        },
    )
