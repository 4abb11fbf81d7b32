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
        q = q.to(dtype) * inverse_norm(q.to(dtype)) * q.shape[-1] ** -0.5
        self.q = q.repeat_interleave(group, 1)  # [N, HV, K]
        self.r = inverse_norm(k.to(dtype)).repeat_interleave(group, 1)  # [N, HV, 1]
        self.k = k.to(dtype).repeat_interleave(group, 1) * self.r  # [N, HV, K]
        self.v = v.to(dtype)  # [N, HV, V]
        self.decay = g.to(dtype).exp()  # [N, HV]
        self.beta = beta.to(dtype)  # [N, HV]

    def step(self, h: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Advance ``h [r, HV, V, K]`` in place by one token ``t [r]`` per row.

        Returns its outputs ``o`` and what it wrote along its key as given, not normalised: both [r, HV, V].
        """
        k = self.k[t]
        h *= self.decay[t][:, :, None, None]
        u = self.beta[t][:, :, None] * (self.v[t] - (h @ k[..., None])[..., 0])  # [r, HV, V]
        h.addcmul_(u[..., None], k[:, :, None, :])
        return (h @ self.q[t][..., None])[..., 0], u * self.r[t]


def inverse_norm(x: Tensor) -> Tensor:
    """One over the l2 norm of ``x [..., n]``, [..., 1]."""
    return (x.square().sum(-1, keepdim=True) + L2_EPS).rsqrt()
