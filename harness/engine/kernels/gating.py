"""Decay and write strength of every token and head, in Triton. The naive twin is ``NaiveKernels.gating``."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import Launch, fat, rows_of


@triton.jit
def softplus(x):
    """``log(1 + exp(x))`` without overflow, and accurate where it is tiny (there ``1 + exp(x)`` rounds to 1).

    ``log(1 + y) = 2 atanh(y / (2 + y))``, and with y <= 1 the series of atanh needs seven terms.
    """
    y = tl.exp(-tl.abs(x))
    s = y / (2.0 + y)
    p = s * s
    series = 1 / 3 + p * (1 / 5 + p * (1 / 7 + p * (1 / 9 + p * (1 / 11 + p * (1 / 13)))))
    return tl.maximum(x, 0.0) + 2.0 * s * (1.0 + p * series)


@triton.jit(do_not_specialize=["total"])
def gating_kernel(
    a, b, A_log, dt_bias, g, beta, total, a_stride, b_stride, HV: tl.constexpr, BLOCK: tl.constexpr
):
    """One program: BLOCK (token, head) pairs."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < total
    n, head = i // HV, i % HV
    x = tl.load(a + n * a_stride + head, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(dt_bias + head, mask=inside, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(A_log + head, mask=inside, other=0.0).to(tl.float32))
    strength = tl.load(b + n * b_stride + head, mask=inside, other=0.0).to(tl.float32)
    tl.store(g + i, -rate * softplus(x), mask=inside)
    tl.store(beta + i, tl.sigmoid(strength), mask=inside)


def gating_launch(a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, g: Tensor, beta: Tensor) -> Launch:
    """The launch behind ``Kernels.gating``; g, beta [N, HV] are written."""
    a, b = rows_of(a), rows_of(b)
    block = fat(1024, g.numel())
    return Launch(
        gating_kernel,
        (triton.cdiv(g.numel(), block),),
        {
            "a": a,
            "b": b,
            "A_log": A_log.contiguous(),
            "dt_bias": dt_bias.contiguous(),
            "g": g,
            "beta": beta,
            "total": g.numel(),
            "a_stride": a.stride(0),
            "b_stride": b.stride(0),
            "HV": g.shape[1],
            "BLOCK": block,
        },
    )
