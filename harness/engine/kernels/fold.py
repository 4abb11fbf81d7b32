"""The gated delta rule of the naive twin, one token at a time.

Source: Yang et al. 2024, "Gated Delta Networks", arXiv 2412.06464, eq. 10.
"""

from __future__ import annotations

import torch
from torch import Tensor

L2_EPS = 1e-6


class Fold:
    """The recurrence itself: ``S <- exp(g) S + beta (v - exp(g) S k) k^T`` and ``o = S q``, state first axis V."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, pool: torch.dtype) -> None:
        dtype = torch.promote_types(pool, torch.float32)
        group = v.shape[1] // k.shape[1]
        self.q = (unit(q.to(dtype)) * q.shape[-1] ** -0.5).repeat_interleave(group, 1)  # [N, HV, K]
        self.k = unit(k.to(dtype)).repeat_interleave(group, 1)  # [N, HV, K]
        self.v = v.to(dtype)  # [N, HV, V]
        self.decay = g.to(dtype).exp()  # [N, HV]
        self.beta = beta.to(dtype)  # [N, HV]

    def step(self, h: Tensor, t: Tensor) -> Tensor:
        """Advance ``h [r, HV, V, K]`` in place by one token ``t [r]`` per row; return its outputs [r, HV, V]."""
        k = self.k[t]
        h *= self.decay[t][:, :, None, None]
        u = self.beta[t][:, :, None] * (self.v[t] - (h @ k[..., None])[..., 0])  # [r, HV, V]
        h.addcmul_(u[..., None], k[:, :, None, :])
        o: Tensor = (h @ self.q[t][..., None])[..., 0]
        return o


def unit(x: Tensor) -> Tensor:
    """``x`` divided by the l2 norm of its last dimension."""
    return x * (x.square().sum(-1, keepdim=True) + L2_EPS).rsqrt()
