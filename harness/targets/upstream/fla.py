"""flash-linear-attention's gated delta rule behind our ``Kernels`` contract: its recurrent kernel and its chunk kernel.

fla-core has no verify form: it knows neither slots nor accepted counts. So a verify step runs its recurrent kernel
token by token and the slots are ours; prompts run its chunk kernel whole, or the recurrent one where the chunk kernel
refuses float32.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.engine.kernels.decisions import CORRECT, KernelDecisions
from harness.engine.kernels.naive import NaiveKernels
from harness.engine.kernels.rows import Rows
from harness.targets.upstream.loading import with_release

OPS = "fla.ops.gated_delta_rule"
REAL = (
    OPS,
    "fla.ops.common",
    "fla.ops.utils",
    "fla.ops.backends",
    "fla.modules.l2norm",
    "fla.utils",
    "fla.backends",
)
"""Modules of the release that its gated delta rule needs."""


class FlaKernels(NaiveKernels):
    """The recurrences of the release of fla-core whose sources lie under ``root``."""

    def __init__(self, root: Path) -> None:
        with_release(root, "fla", REAL)
        ops = importlib.import_module(OPS)
        self._recurrent = ops.fused_recurrent_gated_delta_rule
        self._chunk = ops.chunk_gated_delta_rule

    def gdn_verify(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """See ``Kernels.gdn_verify``; one launch for the j-th tokens of all rows that have one."""
        rows = Rows.live(query_start_loc, state_indices[:, 0] == 0, len(v))
        out = torch.zeros_like(v)
        if not rows.longest:
            return out
        table = state_indices[rows.index].long()  # [R, k + 1]
        column = num_accepted_tokens[rows.index].long() - 1
        h = state[table.gather(1, column[:, None]).squeeze(1)]  # [R, HV, V, K]
        for j in range(rows.longest):
            t = rows.tokens(j)
            bounds = torch.arange(len(t) + 1, device=q.device)
            out[t], h = self._call(self._recurrent, (q[t], k[t], v[t], g[t], beta[t]), h[: len(t)], bounds)
            state[table[: len(t), j]] = h.to(state.dtype)
        return out

    def gdn_prefill(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        has_initial_state: Tensor,
    ) -> Tensor:
        """See ``Kernels.gdn_prefill``."""
        slots = state_indices.long()
        h = torch.where(
            has_initial_state.bool()[:, None, None, None], state[slots], torch.zeros_like(state[slots])
        )
        kernel = self._recurrent if q.dtype == torch.float32 else self._chunk
        out, h = self._call(kernel, (q, k, v, g, beta), h, query_start_loc.long())
        state[slots] = h.to(state.dtype)
        return out

    @staticmethod
    def _call(kernel: Any, tokens: tuple[Tensor, ...], h: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
        """One launch over packed rows: outputs and final states ``[V, K]``; theirs keep them as ``[K, V]``."""
        q, k, v, g, beta = (x[None].contiguous() for x in tokens)
        out, final = kernel(
            q=q,
            k=k,
            v=v,
            g=g,
            beta=beta,
            initial_state=h.transpose(2, 3).contiguous(),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            cu_seqlens=bounds,
        )
        return out[0], final.transpose(2, 3)
