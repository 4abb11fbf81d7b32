"""A few tokens of the gated delta rule at once: the blocked (WY) form that both verify kernels share, in Triton.

A row's tokens and queries stand side by side as *columns*, [C]: first TOKENS tokens in order, then the queries of the
last of them. ``G`` is the running sum of the log decays; a query has the time of its token. With S the state before
the first token and every decay summed from its own terms (a strong decay costs no accuracy after it)::

    new = (I + A)^-1 beta (v - exp(G) S k)      A[i, j] = beta_i k_i.k_j exp(G_i - G_j)    for j < i
    o   = exp(G) S q + B new                    B[i, j] =        q_i.k_j exp(G_i - G_j)    for j <= i

So the state is multiplied once, by all columns together: what is left are products of [C, C]. Tokens that a row does
not have are columns of zeros and change nothing.

Source: Yang et al. 2024, arXiv 2412.06464, section 3.3.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .launch import cover

L2_EPS = tl.constexpr(1e-6)


@triton.jit
def unit(x, axis: tl.constexpr):
    """``x`` divided by its l2 norm along ``axis``."""
    return x * tl.rsqrt(tl.sum(x * x, axis=axis, keep_dims=True) + L2_EPS)


@triton.jit
def matmul(a, b, PRECISION: tl.constexpr):
    """Products of [h, m, k] and [h, k, n]. On a GPU h is 1, and the matrix units want two dimensions."""
    if a.shape[0] == 1:
        a2 = tl.reshape(a, [a.shape[1], a.shape[2]])
        b2 = tl.reshape(b, [b.shape[1], b.shape[2]])
        return tl.expand_dims(tl.dot(a2, b2, input_precision=PRECISION), 0)
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def exact_matmul(a, b, SHORT: tl.constexpr):
    """``a b`` to float32's accuracy on tf32 units. SHORT: b came from bfloat16, so tf32 holds it and only a is split."""
    if SHORT:
        high = (a.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)  # the ten bits tf32 keeps
        return matmul(high, b, "tf32") + matmul(a - high, b, "tf32")
    else:
        return matmul(a, b, "tf32x3")


@triton.jit
def inverse(A, c, LEVELS: tl.constexpr):
    """``(I + A)^-1`` of strictly lower triangular A [h, C, C]: invert blocks of 1, 2, 4, ... up to 2^LEVELS."""
    row, column = c[None, :, None], c[None, None, :]
    X = tl.where(row == column, 1.0, 0.0) + A * 0.0
    for level in tl.static_range(LEVELS):
        joins = ((row >> (level + 1)) == (column >> (level + 1))) & ((row >> level) != (column >> level))
        XA = matmul(X, tl.where(joins, A, 0.0), "ieee")
        X -= matmul(XA, X, "ieee")
    return X


@triton.jit
def mix(x, g, beta, c, scale, TOKENS: tl.constexpr, R: tl.constexpr, LEVELS: tl.constexpr, SHORT: tl.constexpr):
    """What the columns do to each other, before any state is seen.

    x [h, C, K] raw keys, then raw queries of the last R tokens; g, beta [h, C], zero where there is no token.
    Returns Y [h, C, C], which turns right-hand sides into ``new`` and ``o``; the norms' reciprocals r [h, C]; and
    exp(G) [h, C].
    """
    row, column = c[None, :, None], c[None, None, :]
    is_token = row < TOKENS
    time = tl.where(is_token, row, row - R)
    if SHORT:
        x = x.to(tl.bfloat16)  # as it came: products of these are exact
    products = matmul(x, tl.trans(x, 0, 2, 1), "tf32x3")
    squares = tl.sum(tl.where(row == column, products, 0.0), axis=2)
    r = tl.rsqrt(squares + L2_EPS) * tl.where(c < TOKENS, 1.0, scale)[None, :]

    reached = tl.where(column <= time, 1.0, 0.0) + products * 0.0
    between = matmul(reached, tl.where(row > column, g[:, :, None], 0.0), "ieee")  # G_i - G_j
    since_start = tl.sum(reached * g[:, None, :], axis=2)
    weights = products * r[:, :, None] * r[:, None, :] * tl.exp(between)
    A = tl.where(is_token & (column < row), weights * beta[:, :, None], 0.0)
    B = tl.where(~is_token & (column <= time), weights, 0.0)
    X = inverse(A, c, LEVELS)
    return X + matmul(B, X, "ieee"), r, tl.exp(since_start)


@triton.jit
def solve(h, x, v, Y, r, decay, beta, c, TOKENS: tl.constexpr, SHORT: tl.constexpr, STATE_SHORT: tl.constexpr):
    """``new`` of the tokens and ``o`` of the queries, [h, V, C], from a state h [h, V, K] and values v [h, V, C]."""
    if SHORT and STATE_SHORT:
        seen = matmul(h.to(tl.bfloat16), tl.trans(x.to(tl.bfloat16), 0, 2, 1), "tf32")
    else:
        seen = exact_matmul(h, tl.trans(x, 0, 2, 1), SHORT)
    is_token = (c < TOKENS)[None, :]
    sign = tl.where(is_token, -beta, 1.0) * r * decay
    rhs = v * tl.where(is_token, beta, 0.0)[:, None, :] + seen * sign[:, None, :]
    return matmul(rhs, tl.trans(Y, 0, 2, 1), "tf32x3")


def columns(tokens: int, queries: int) -> dict[str, int]:
    """Sizes of the blocked form as constexprs: C columns, and the levels that invert ``tokens`` of them."""
    return {"C": max(16, cover(tokens + queries)), "LEVELS": cover(tokens).bit_length() - 1}
