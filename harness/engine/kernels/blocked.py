"""A few tokens of the gated delta rule at once: the blocked (WY) form that both verify kernels share, in Triton.

A row's tokens and queries stand in order of time as *columns*, [C]: every token followed by its query. With S the state
before the first of them and ``G`` the running sum of the log decays (every ``G_i - G_j`` summed from its own terms, so
that a strong decay costs no accuracy after it)::

    token i   new_i = beta_i (v_i - exp(G_i) S k_i - sum_j exp(G_i - G_j) (k_i.k_j) new_j)      over tokens j < i
    query i     o_i =               exp(G_i) S q_i + sum_j exp(G_i - G_j) (q_i.k_j) new_j

So the state is multiplied once, by all columns together, and what is left is one triangular system of size C. Tokens
that a row does not have are columns of zeros and change nothing. One warp does it all: it has no one to wait for.

Source: Yang et al. 2024, arXiv 2412.06464, section 3.3.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .launch import cover

L2_EPS = tl.constexpr(1e-6)


@triton.jit
def flat(x):
    """[1, m, n] as [m, n]: on a GPU there is one head, and the matrix units want two dimensions."""
    return tl.reshape(x, [x.shape[1], x.shape[2]])


@triton.jit
def matmul(a, b, PRECISION: tl.constexpr):
    """Products of [h, m, k] and [h, k, n]."""
    if a.shape[0] == 1:
        return tl.expand_dims(tl.dot(flat(a), flat(b), input_precision=PRECISION), 0)
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def leading(a):
    """The leading bits of float32 a that bfloat16 can hold, cut off rather than rounded: one instruction."""
    return (a.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def add_matmul(c, a, b, SHORT: tl.constexpr, WHOLE: tl.constexpr):
    """``c + a b`` to float32's accuracy on matrix units. SHORT: b is bfloat16, so a in three pieces of that is enough.

    WHOLE: a holds bfloat16 values to begin with and is one piece.
    """
    if SHORT:
        a, b, c = flat(a), flat(b), flat(c)
        if not WHOLE:
            for _ in tl.static_range(2):
                piece = leading(a)
                c = tl.dot(piece.to(tl.bfloat16), b, c)
                a -= piece
        return tl.expand_dims(tl.dot(a.to(tl.bfloat16), b, c), 0)
    else:
        return c + matmul(a, b, "tf32x3")


@triton.jit
def inverse(A, c, USED: tl.constexpr):
    """``(I + A)^-1`` of strictly lower triangular A [h, C, C] whose query columns are zero, column by column."""
    row, column = c[None, :, None], c[None, None, :]
    X = tl.where(row == column, 1.0, 0.0) + A * 0.0
    for j in tl.static_range(0, USED, 2):
        pull = tl.sum(tl.where(column == j, A, 0.0), axis=2)
        solved = tl.sum(tl.where(row == j, X, 0.0), axis=1)
        X -= pull[:, :, None] * solved[:, None, :]
    return X


@triton.jit
def to_matrix(x, LANES: tl.constexpr, PAIRS: tl.constexpr):
    """Reorder K of x [h, m, K] to the order in which the matrix units want a thread's registers.

    A thread loads ``2 PAIRS`` neighbours at once, LANES threads side by side. The units give it pairs that lie 8 apart.
    A product does not mind the order of K, so the loaded registers are operand and accumulator without being moved.
    """
    split = tl.reshape(x, [x.shape[0], x.shape[1], x.shape[2] // (LANES * PAIRS * 2), LANES, PAIRS, 2])
    return tl.reshape(tl.permute(split, 0, 1, 2, 4, 3, 5), [x.shape[0], x.shape[1], x.shape[2]])


@triton.jit
def load_state(place, mask, LANES: tl.constexpr, PAIRS: tl.constexpr):
    """A tile of states from pointers [h, SEGMENTS, V, LINE] as float32 [h, V, K], K in matrix order."""
    h = tl.permute(tl.load(place, mask=mask, other=0.0), 0, 2, 1, 3)
    h = tl.reshape(h, [h.shape[0], h.shape[1], h.shape[2] * h.shape[3]])
    return to_matrix(h, LANES, PAIRS).to(tl.float32)


@triton.jit
def store_state(place, h, mask, LANES: tl.constexpr, PAIRS: tl.constexpr, CACHE: tl.constexpr):
    """The way back of ``load_state``."""
    line: tl.constexpr = LANES * PAIRS * 2
    h = tl.reshape(h, [h.shape[0], h.shape[1], h.shape[2] // line, PAIRS, LANES, 2])
    h = tl.reshape(
        tl.permute(h, 0, 2, 1, 4, 3, 5), [place.shape[0], place.shape[1], place.shape[2], place.shape[3]]
    )
    tl.store(place, h, mask=mask, cache_modifier=CACHE)


@triton.jit
def is_query(c):
    """Which columns are queries."""
    return (c & 1) == 1


@triton.jit
def mix(x, g, beta, c, scale, USED: tl.constexpr):
    """What the columns do to each other, before any state is seen.

    x [h, C, K] raw keys and queries; g, beta [h, C], zero where there is no token.
    Returns Y [h, C, C], which solves the triangular system; r [h, C], the reciprocals of the norms; exp(G) [h, C].
    """
    row, column = c[None, :, None], c[None, None, :]
    asks = is_query(c)
    products = matmul(x, tl.trans(x, 0, 2, 1), "tf32x3")
    squares = tl.sum(tl.where(row == column, products, 0.0), axis=2)
    r = tl.rsqrt(squares + L2_EPS) * tl.where(asks, scale, 1.0)[None, :]

    terms = g[:, :, None] + products * 0.0
    between = tl.cumsum(tl.where(row > column, terms, 0.0), axis=1)  # G_i - G_j
    since_start = tl.sum(tl.where(row <= column, terms, 0.0), axis=1)
    M = products * r[:, :, None] * r[:, None, :] * tl.exp(between)
    M *= tl.where(asks[None, :], -1.0, beta)[:, :, None]
    M = tl.where((row > column) & ~asks[None, None, :], M, 0.0)
    return inverse(M, c, USED), r, tl.exp(since_start)


@triton.jit
def solve(h, x, v, Y, r, decay, beta, c, SHORT: tl.constexpr, STATE_SHORT: tl.constexpr):
    """``new`` of the tokens and ``o`` of the queries, [h, V, C], from a state h [h, V, K] and values v [h, V, C]."""
    seen = add_matmul(v * 0.0, h, tl.trans(x, 0, 2, 1), SHORT, STATE_SHORT)
    asks = is_query(c)[None, :]
    factor = tl.where(asks, 1.0, -beta) * r * decay
    rhs = v * tl.where(asks, 0.0, beta)[:, None, :] + seen * factor[:, None, :]
    return matmul(rhs, tl.trans(Y, 0, 2, 1), "tf32x3")


def columns(tokens: int) -> dict[str, int]:
    """Sizes of the blocked form as constexprs, for rows of so many tokens at most."""
    return {"USED": 2 * tokens, "C": max(16, cover(2 * tokens))}


def tile(K: int, itemsize: int) -> dict[str, int]:
    """Sizes of a state's tile as constexprs: K is SEGMENTS lines, a line LANES loads, a load PAIRS pairs (16 bytes)."""
    lanes, pairs, block = 4, 8 // itemsize, max(16, cover(K))
    while lanes * pairs * 2 > block:
        lanes //= 2
    return {"SEGMENTS": block // (lanes * pairs * 2), "LANES": lanes, "PAIRS": pairs}
