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

from .blocked import L2_EPS
from .decisions import CORRECT
from .launch import Launch, cover, dense, fat, interpreting, pool, rows_of

_ALIGNMENT = ["chunk_start", "chunk_end", "query_start_loc", "state_indices", "has_initial_state"]


@triton.jit
def product(a, b, FAST: tl.constexpr):
    """``a b``: FAST in one bfloat16 pass, else to float32's accuracy on tf32 units."""
    if FAST:
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        return tl.dot(a, b, input_precision="tf32x3")


@triton.jit
def inner_decay(g, i, FAST: tl.constexpr):
    """``exp(G_i - G_j)`` for i >= j, zero above the diagonal, [C, C], from the log decays g [C] at positions i [C]."""
    if FAST:
        total = tl.cumsum(g, axis=0)
        between = total[:, None] - total[None, :]
    else:
        between = tl.cumsum(tl.where(i[:, None] > i[None, :], g[:, None], 0.0), axis=0)
    reached = i[:, None] >= i[None, :]
    return tl.where(reached, tl.exp(tl.where(reached, between, 0.0)), 0.0)


@triton.jit
def inverse(A, i, LEVELS: tl.constexpr, FAST: tl.constexpr):
    """``(I + A)^-1`` of a strictly lower triangular A [C, C]: invert blocks of 1, 2, 4, ... until one is left.

    Up to 16 the blocks on the diagonal are a batch of their own, one warp for each.
    """
    BLOCKS: tl.constexpr = A.shape[0] // 16
    block, inside = tl.arange(0, BLOCKS), tl.arange(0, 16)
    same = block[:, None, None, None] == block[None, None, :, None]
    diagonal = tl.sum(
        tl.where(same, tl.reshape(A, [BLOCKS, 16, BLOCKS, 16]), 0.0), axis=2
    )  # [BLOCKS, 16, 16]
    row, column = inside[None, :, None], inside[None, None, :]
    X = tl.where(row == column, 1.0, 0.0) - tl.where((row >> 1) == (column >> 1), diagonal, 0.0)
    for level in tl.static_range(1, 4):
        joins = ((row >> (level + 1)) == (column >> (level + 1))) & ((row >> level) != (column >> level))
        XA = tl.dot(X, tl.where(joins, diagonal, 0.0), input_precision="tf32x3")
        X -= tl.dot(XA, X, input_precision="tf32x3")
    X = tl.reshape(tl.where(same, X[:, :, None, :], 0.0), [BLOCKS * 16, BLOCKS * 16])
    row, column = i[:, None], i[None, :]
    for level in tl.static_range(4, LEVELS):
        joins = ((row >> (level + 1)) == (column >> (level + 1))) & ((row >> level) != (column >> level))
        XA = tl.dot(X, tl.where(joins, A, 0.0), input_precision="tf32" if FAST else "tf32x3")
        X -= tl.dot(XA, X, input_precision="tf32" if FAST else "tf32x3")
    return X


@triton.jit(do_not_specialize_on_alignment=_ALIGNMENT)
def chunk_wy_kernel(
    q, k, v, g, beta, w, u, scores, reads, writes, chunk_start, chunk_end, q_stride, k_stride, v_stride,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr, FAST: tl.constexpr,
    C: tl.constexpr, LEVELS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program: one chunk, one value head: all that the chunk's tokens do to each other, before any state is seen.

    Writes u, w, the scores of queries with keys [N, HV, C], and per token the factors of its read and of its write.
    """
    start = tl.load(chunk_start + tl.program_id(1)).to(tl.int64)
    end = tl.load(chunk_end + tl.program_id(1)).to(tl.int64)
    if start >= end:
        return
    head = tl.program_id(0)
    i, ik, iv = tl.arange(0, C), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    t = start + i
    real = t < end
    of_key = real[:, None] & (ik < K)[None, :]
    of_value = real[:, None] & (iv < V)[None, :]

    key = (head // GROUP) * K + ik[None, :]
    b_k = tl.load(k + t[:, None] * k_stride + key, mask=of_key, other=0.0)
    b_q = tl.load(q + t[:, None] * q_stride + key, mask=of_key, other=0.0)
    as_float = b_k.to(tl.float32)
    r_k = tl.rsqrt(tl.sum(as_float * as_float, axis=1) + L2_EPS)
    as_float = b_q.to(tl.float32)
    r_q = tl.rsqrt(tl.sum(as_float * as_float, axis=1) + L2_EPS) * (K**-0.5)
    if not FAST:
        b_q, b_k = b_q.to(tl.float32), b_k.to(tl.float32)
    b_g = tl.load(g + t * HV + head, mask=real, other=0.0)
    strength = tl.load(beta + t * HV + head, mask=real, other=0.0)
    total = tl.cumsum(b_g, axis=0)
    since_start = tl.exp(total)
    if FAST:
        to_end = tl.exp(tl.sum(b_g, axis=0) - total)
    else:
        to_end = tl.exp(
            tl.sum(tl.where(i[:, None] > i[None, :], b_g[:, None], 0.0), axis=0)
        )  # from its own terms
    tl.store(reads + t * HV + head, since_start * r_q, mask=real)
    tl.store(writes + t * HV + head, to_end * r_k, mask=real)

    decay = inner_decay(b_g, i, FAST) * r_k[None, :]
    b_s = product(b_q, tl.trans(b_k), FAST) * decay * r_q[:, None]
    tl.store(scores + (t[:, None] * HV + head) * C + i[None, :], b_s, mask=real[:, None])
    A = product(b_k, tl.trans(b_k), FAST) * decay * (strength * r_k)[:, None]
    X = inverse(tl.where(i[:, None] > i[None, :], A, 0.0), i, LEVELS, FAST) * strength[None, :]

    b_v = tl.load(v + t[:, None] * v_stride + head * V + iv[None, :], mask=of_value, other=0.0)
    if not FAST:
        b_v = b_v.to(tl.float32)
    tl.store(u + (t[:, None] * HV + head) * V + iv[None, :], product(X, b_v, FAST), mask=of_value)
    X *= (since_start * r_k)[None, :]
    tl.store(w + (t[:, None] * HV + head) * K + ik[None, :], product(X, b_k, FAST), mask=of_key)


@triton.jit(do_not_specialize=["index_stride"], do_not_specialize_on_alignment=_ALIGNMENT)
def chunk_scan_kernel(
    q, k, g, w, u, scores, reads, writes, out, state, query_start_loc, state_indices, has_initial_state,
    q_stride, k_stride, slot_stride, index_stride,
    HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, GROUP: tl.constexpr, is_padding: tl.constexpr,
    FAST: tl.constexpr, C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program: one prompt, one value head, BLOCK_V rows of its state, chunk after chunk."""
    row, head = tl.program_id(2), tl.program_id(1)
    start = tl.load(query_start_loc + row).to(tl.int64)
    end = tl.load(query_start_loc + row + 1).to(tl.int64)
    slot = tl.load(state_indices + row * index_stride).to(tl.int64)
    if (start >= end) | is_padding(slot):
        return

    i, ik = tl.arange(0, C), tl.arange(0, BLOCK_K)
    iv = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    of_state = (iv < V)[:, None] & (ik < K)[None, :]
    state += slot * slot_stride + (head * V + iv[:, None]) * K + ik[None, :]
    known = tl.load(has_initial_state + row) != 0
    h = tl.load(state, mask=of_state & known, other=0.0).to(tl.float32)  # [BLOCK_V, BLOCK_K]

    for first in range(0, (end - start).to(tl.int32), C):
        t = start + first + i
        real = t < end
        of_key = real[:, None] & (ik < K)[None, :]
        of_value = real[:, None] & (iv < V)[None, :]
        key = (head // GROUP) * K + ik[None, :]
        b_q = tl.load(q + t[:, None] * q_stride + key, mask=of_key, other=0.0)
        b_k = tl.load(k + t[:, None] * k_stride + key, mask=of_key, other=0.0)
        b_w = tl.load(w + (t[:, None] * HV + head) * K + ik[None, :], mask=of_key, other=0.0)
        b_u = tl.load(u + (t[:, None] * HV + head) * V + iv[None, :], mask=of_value, other=0.0)
        b_g = tl.load(g + t * HV + head, mask=real, other=0.0)
        b_s = tl.load(scores + (t[:, None] * HV + head) * C + i[None, :], mask=real[:, None], other=0.0)
        read = tl.load(reads + t * HV + head, mask=real, other=0.0)
        write = tl.load(writes + t * HV + head, mask=real, other=0.0)
        if not FAST:
            b_q, b_k = b_q.to(tl.float32), b_k.to(tl.float32)

        new = b_u.to(tl.float32) - product(b_w, tl.trans(h), FAST)  # [C, BLOCK_V]
        o = product(b_q, tl.trans(h), FAST) * read[:, None] + product(b_s, new, FAST)
        tl.store(out + (t[:, None] * HV + head) * V + iv[None, :], o, mask=of_value)
        h = h * tl.exp(tl.sum(b_g, axis=0)) + product(tl.trans(new * write[:, None]), b_k, FAST)

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

    Tokens in bfloat16 go the fast way: operands of products are bfloat16, sums and the state are float32.
    """
    fast = q.dtype == k.dtype == v.dtype == torch.bfloat16 and not interpreting()
    chunk = chunk or fat(64 if fast else 16, 64)
    q, k, v = rows_of(q), rows_of(k), rows_of(v)
    N, (_, HV, V, K) = len(v), pool(state, "state").shape
    starts, ends = chunks_of(query_start_loc, N, chunk)
    block_v, block_k = (max(16, cover(size)) for size in (V, K))
    kind = torch.bfloat16 if fast else torch.float32
    common: dict[str, object] = {
        "q": q,
        "k": k,
        "g": dense(g),
        "w": torch.empty(N, HV, K, dtype=kind, device=v.device),
        "u": torch.empty(N, HV, V, dtype=kind, device=v.device),
        "scores": torch.empty(N, HV, chunk, dtype=kind, device=v.device),
        "reads": torch.empty(N, HV, dtype=torch.float32, device=v.device),
        "writes": torch.empty(N, HV, dtype=torch.float32, device=v.device),
        "q_stride": q.stride(0),
        "k_stride": k.stride(0),
        "HV": HV,
        "K": K,
        "V": V,
        "GROUP": HV // k.shape[1],
        "FAST": fast,
        "C": chunk,
        "BLOCK_K": block_k,
    }
    wy = Launch(
        chunk_wy_kernel,
        (HV, len(starts)),
        common
        | {
            "v": v,
            "beta": dense(beta),
            "chunk_start": starts,
            "chunk_end": ends,
            "v_stride": v.stride(0),
            "LEVELS": chunk.bit_length() - 1,
            "BLOCK_V": block_v,
        },
        {"num_warps": 4, "num_stages": 1},
    )
    block_v = min(block_v, 64 if fast else 16)
    scan = Launch(
        chunk_scan_kernel,
        (triton.cdiv(V, block_v), HV, len(state_indices)),
        common
        | {
            "out": out,
            "state": state,
            "query_start_loc": query_start_loc.contiguous(),
            "state_indices": state_indices,
            "has_initial_state": has_initial_state.contiguous(),
            "slot_stride": state.stride(0),
            "index_stride": state_indices.stride(0),
            "is_padding": CORRECT.is_padding.triton,
            "BLOCK_V": block_v,
        },
        {"num_warps": 4, "num_stages": 1},
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
