"""The gated delta rule over whole prompts, in Triton: chunked, in the WY form of the paper.

Within a chunk of C tokens, ``G`` is the running sum of the log decays and ``L[i, j] = exp(G_i - G_j)`` for i >= j::

    A = strictly lower part of  diag(beta) (k k^T * L)      X = (I + A)^-1
    u = X (beta * v)            w = X (beta * exp(G) * k)   new = u - w S^T
    o = (exp(G) * q) S^T + lower(q k^T * L) new             S <- exp(G_C) S + new^T (exp(G_C - G) * k)

The first kernel computes u and w of every chunk at once, the second walks each prompt with its state in registers.
Every ``G_i - G_j`` is summed from its own terms, so a strong decay early in a chunk costs no accuracy later in it.

The naive twin is ``NaiveKernels.gdn_prefill``. Source: Yang et al. 2024, arXiv 2412.06464, section 3.3.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .decisions import CORRECT
from .blocked import unit
from .launch import Launch, cover, fat, pool, rows_of

OPTIONS = {"num_warps": 4, "num_stages": 1}  # prefetching the next chunk would not fit into shared memory

_ALIGNMENT = ["chunk_start", "chunk_end", "query_start_loc", "state_indices", "has_initial_state"]


@triton.jit
def inner_decay(g, i):
    """``G_i - G_j`` for i >= j (zero above the diagonal), [C, C], from the log decays g [C] at positions i [C]."""
    later = i[:, None] > i[None, :]
    return tl.cumsum(tl.where(later, g[:, None], 0.0), axis=0)


@triton.jit
def inverse(A, i, LEVELS: tl.constexpr):
    """``(I + A)^-1`` of a strictly lower triangular A [C, C]: invert blocks of 1, 2, 4, ... until one is left."""
    row, column = i[:, None], i[None, :]
    X = tl.where(row == column, 1.0, 0.0)
    for level in range(LEVELS):
        joins = ((row >> (level + 1)) == (column >> (level + 1))) & ((row >> level) != (column >> level))
        XA = tl.dot(X, tl.where(joins, A, 0.0), input_precision="ieee")
        X -= tl.dot(XA, X, input_precision="ieee")
    return X


@triton.jit(do_not_specialize_on_alignment=_ALIGNMENT)
def chunk_wy_kernel(
    k, v, g, beta, w, u, chunk_start, chunk_end, k_stride, v_stride,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr,
    C: tl.constexpr, LEVELS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program: one chunk, one value head. Writes u and w of the chunk's tokens."""
    start = tl.load(chunk_start + tl.program_id(0)).to(tl.int64)
    end = tl.load(chunk_end + tl.program_id(0)).to(tl.int64)
    if start >= end:
        return
    head = tl.program_id(1)
    i, ik, iv = tl.arange(0, C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    t = start + i
    real = t < end
    of_key = real[:, None] & (ik < K)[None, :]
    of_value = real[:, None] & (iv < V)[None, :]

    b_k = tl.load(k + t[:, None] * k_stride + (head // GROUP) * K + ik[None, :], mask=of_key, other=0.0)
    b_k = unit(b_k.to(tl.float32), 1)
    b_g = tl.load(g + t * HV + head, mask=real, other=0.0)
    strength = tl.load(beta + t * HV + head, mask=real, other=0.0)[:, None]

    A = tl.dot(b_k, tl.trans(b_k), input_precision="ieee") * tl.exp(inner_decay(b_g, i)) * strength
    X = inverse(tl.where(i[:, None] > i[None, :], A, 0.0), i, LEVELS)

    b_v = tl.load(v + t[:, None] * v_stride + head * V + iv[None, :], mask=of_value, other=0.0).to(tl.float32)
    b_u = tl.dot(X, strength * b_v, input_precision="ieee")
    tl.store(u + (t[:, None] * HV + head) * V + iv[None, :], b_u, mask=of_value)
    b_w = tl.dot(X, strength * tl.exp(tl.cumsum(b_g, axis=0))[:, None] * b_k, input_precision="ieee")
    tl.store(w + (t[:, None] * HV + head) * K + ik[None, :], b_w, mask=of_key)


@triton.jit(do_not_specialize=["index_stride"], do_not_specialize_on_alignment=_ALIGNMENT)
def chunk_scan_kernel(
    q, k, g, w, u, out, state, query_start_loc, state_indices, has_initial_state,
    q_stride, k_stride, slot_stride, index_stride,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr, is_padding: tl.constexpr,
    C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program: one prompt, one value head, BLOCK_V rows of its state, chunk after chunk."""
    row, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(query_start_loc + row).to(tl.int64)
    end = tl.load(query_start_loc + row + 1).to(tl.int64)
    slot = tl.load(state_indices + row * index_stride).to(tl.int64)
    if (start >= end) | is_padding(slot):
        return

    i, ik = tl.arange(0, C), tl.arange(0, BLOCK_K)
    iv = tl.program_id(2) * BLOCK_V + tl.arange(0, BLOCK_V)
    of_state = (iv < V)[:, None] & (ik < K)[None, :]
    state += slot * slot_stride + (head * V + iv[:, None]) * K + ik[None, :]
    known = tl.load(has_initial_state + row) != 0
    h = tl.load(state, mask=of_state & known, other=0.0).to(tl.float32)  # [BLOCK_V, BLOCK_K]

    for first in range(start, end, C):
        t = first + i
        real = t < end
        of_key = real[:, None] & (ik < K)[None, :]
        of_value = real[:, None] & (iv < V)[None, :]
        key = (head // GROUP) * K + ik[None, :]
        b_q = tl.load(q + t[:, None] * q_stride + key, mask=of_key, other=0.0)
        b_q = unit(b_q.to(tl.float32), 1) * (K**-0.5)
        b_k = tl.load(k + t[:, None] * k_stride + key, mask=of_key, other=0.0)
        b_k = unit(b_k.to(tl.float32), 1)
        b_g = tl.load(g + t * HV + head, mask=real, other=0.0)
        b_w = tl.load(w + (t[:, None] * HV + head) * K + ik[None, :], mask=of_key, other=0.0)
        b_u = tl.load(u + (t[:, None] * HV + head) * V + iv[None, :], mask=of_value, other=0.0)

        new = b_u - tl.dot(b_w, tl.trans(h), input_precision="ieee")  # [C, BLOCK_V]
        scores = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * tl.exp(inner_decay(b_g, i))
        scores = tl.where(i[:, None] >= i[None, :], scores, 0.0)
        o = tl.dot(scores, new, input_precision="ieee")
        b_q *= tl.exp(tl.cumsum(b_g, axis=0))[:, None]
        o += tl.dot(b_q, tl.trans(h), input_precision="ieee")
        tl.store(out + (t[:, None] * HV + head) * V + iv[None, :], o, mask=of_value)

        to_end = tl.sum(tl.where(i[:, None] > i[None, :], b_g[:, None], 0.0), axis=0)  # G_C - G_j
        b_k *= tl.exp(to_end)[:, None]
        h = h * tl.exp(tl.sum(b_g, axis=0)) + tl.dot(tl.trans(new), b_k, input_precision="ieee")

    tl.store(state, h, mask=of_state)


def prefill_launches(
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
    has_initial_state: Tensor,
    chunk: int | None = None,
) -> tuple[Launch, Launch]:
    """The launches behind ``Kernels.gdn_prefill``; ``out [N, HV, V]`` must hold zeros, ``chunk`` is a power of two.

    The default chunk is 16 tokens: products in true float32 are made of plain multiply-adds, and on sm_80 and sm_90
    larger chunks spill kilobytes of registers per thread. The interpreter prefers 64.
    """
    chunk = chunk or fat(16, 64)
    q, k, v = rows_of(q), rows_of(k), rows_of(v)
    N, (_, HV, V, K) = len(v), pool(state, "state").shape
    starts, ends = chunks_of(query_start_loc, N, chunk)
    block_v, block_k = (max(16, cover(size)) for size in (V, K))
    common: dict[str, object] = {
        "k": k,
        "g": g.contiguous(),
        "w": torch.empty(N, HV, K, dtype=torch.float32, device=v.device),
        "u": torch.empty(N, HV, V, dtype=torch.float32, device=v.device),
        "k_stride": k.stride(0),
        "HV": HV,
        "K": K,
        "V": V,
        "GROUP": HV // k.shape[1],
        "C": chunk,
        "BLOCK_K": block_k,
    }
    wy = Launch(
        chunk_wy_kernel,
        (len(starts), HV),
        common
        | {
            "v": v,
            "beta": beta.contiguous(),
            "chunk_start": starts,
            "chunk_end": ends,
            "v_stride": v.stride(0),
            "LEVELS": chunk.bit_length() - 1,
            "BLOCK_V": block_v,
        },
        OPTIONS,
    )
    block_v = min(block_v, 16)
    scan = Launch(
        chunk_scan_kernel,
        (len(state_indices), HV, triton.cdiv(V, block_v)),
        common
        | {
            "q": q,
            "out": out,
            "state": state,
            "query_start_loc": query_start_loc,
            "state_indices": state_indices,
            "has_initial_state": has_initial_state,
            "q_stride": q.stride(0),
            "slot_stride": state.stride(0),
            "index_stride": state_indices.stride(0),
            "is_padding": CORRECT.is_padding.triton,
            "BLOCK_V": block_v,
        },
        OPTIONS,
    )
    return wy, scan


def chunks_of(query_start_loc: Tensor, tokens: int, chunk: int) -> tuple[Tensor, Tensor]:
    """First and last + 1 token of every chunk, [M] each, M = an upper bound known without waiting for the device.

    Surplus chunks are empty (start == end).
    """
    bounds = query_start_loc.long()
    count = (bounds.diff() + chunk - 1) // chunk  # [B]
    total = count.cumsum(0)  # [B]
    index = torch.arange(tokens // chunk + len(count), device=bounds.device)  # [M]
    row = torch.searchsorted(total, index, right=True)
    surplus = row >= len(count)
    row = row.clamp(max=len(count) - 1)
    start = bounds[row] + (index - total[row] + count[row]) * chunk
    end = torch.minimum(start + chunk, bounds[row + 1])
    return start.masked_fill(surplus, 0).int(), end.masked_fill(surplus, 0).int()
