"""RMS norm over the head dimension followed by a silu gate, in Triton. The twin is ``NaiveKernels.gated_norm``."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import Launch, cover, fat, rows_of


@triton.jit(do_not_specialize=["rows"])
def gated_norm_kernel(
    x, z, weight, out, rows, x_stride, z_stride, eps,
    HV: tl.constexpr, V: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_R (token, head) pairs."""
    r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    iv = tl.arange(0, BLOCK_V)
    inside = (r < rows)[:, None] & (iv < V)[None, :]
    n, value = (r // HV)[:, None], (r % HV)[:, None] * V + iv[None, :]
    b_x = tl.load(x + n * x_stride + value, mask=inside, other=0.0).to(tl.float32)
    b_z = tl.load(z + n * z_stride + value, mask=inside, other=0.0).to(tl.float32)
    b_w = tl.load(weight + iv, mask=iv < V, other=0.0).to(tl.float32)
    rms = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / V + eps)
    y = b_x * rms[:, None] * b_w[None, :] * b_z * tl.sigmoid(b_z)
    tl.store(out + r[:, None] * V + iv[None, :], y, mask=inside)


def gated_norm_launch(x: Tensor, z: Tensor, weight: Tensor, out: Tensor, eps: float) -> Launch:
    """The launch behind ``Kernels.gated_norm``; out [N, HV, V] is written."""
    x, z = rows_of(x), rows_of(z)
    N, HV, V = x.shape
    block_r = fat(8, N * HV)
    return Launch(
        gated_norm_kernel,
        (triton.cdiv(N * HV, block_r),),
        {
            "x": x,
            "z": z,
            "weight": weight.contiguous(),
            "out": out,
            "rows": N * HV,
            "x_stride": x.stride(0),
            "z_stride": z.stride(0),
            "eps": eps,
            "HV": HV,
            "V": V,
            "BLOCK_R": block_r,
            "BLOCK_V": cover(V),
        },
    )
