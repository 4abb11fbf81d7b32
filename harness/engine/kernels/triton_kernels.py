"""The contract of ``base.py`` on Triton. Allocates the outputs and runs the launches; nothing waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from . import chunk, conv, conv_prefill, decode, gating, gdn, norm, replay
from .decisions import CORRECT, KernelDecisions
from .journal import Journal
from .launch import Launch, interpreting

__all__ = ["TritonKernels", "interpreting"]


@dataclass(frozen=True, slots=True)
class TritonKernels:
    """``Kernels`` on a CUDA device, or anywhere under Triton's interpreter. Trusts the indices it is given.

    ``run`` is what happens to each launch; who wants to see launches rather than results collects them.
    """

    run: Callable[[Launch], None] = field(default=Launch.run, kw_only=True)

    def conv_update(
        self,
        x: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """See ``Kernels.conv_update``."""
        out = _zeros(x)
        self.run(
            conv.update_launch(
                x,
                out,
                conv_state,
                weight,
                bias,
                query_start_loc=query_start_loc,
                state_indices=state_indices,
                num_accepted_tokens=num_accepted_tokens,
                decisions=decisions,
            )
        )
        return out

    def conv_prefill(
        self,
        x: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        has_initial_state: Tensor,
    ) -> Tensor:
        """See ``Kernels.conv_prefill``."""
        out = _zeros(x)
        for launch in conv_prefill.prefill_launches(
            x,
            out,
            conv_state,
            weight,
            bias,
            query_start_loc=query_start_loc,
            state_indices=state_indices,
            has_initial_state=has_initial_state,
        ):
            self.run(launch)
        return out

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
        """See ``Kernels.gdn_verify``."""
        out = _zeros(v)
        self.run(
            gdn.verify_launch(
                q,
                k,
                v,
                g,
                beta,
                out,
                state,
                query_start_loc=query_start_loc,
                state_indices=state_indices,
                num_accepted_tokens=num_accepted_tokens,
                decisions=decisions,
            )
        )
        return out

    def gdn_replay(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        journal: Journal,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        turns: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """See ``Kernels.gdn_replay``."""
        out = _zeros(v)
        self.run(
            replay.replay_launch(
                q,
                k,
                v,
                g,
                beta,
                out,
                state,
                journal,
                query_start_loc=query_start_loc,
                state_indices=state_indices,
                num_accepted_tokens=num_accepted_tokens,
                turns=turns,
                decisions=decisions,
            )
        )
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
        out = _zeros(v)
        for launch in chunk.prefill_launches(
            q,
            k,
            v,
            g,
            beta,
            out,
            state,
            query_start_loc=query_start_loc,
            state_indices=state_indices,
            has_initial_state=has_initial_state,
        ):
            self.run(launch)
        return out

    def gating(self, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
        """See ``Kernels.gating``."""
        g = torch.empty(a.shape, dtype=torch.float32, device=a.device)
        beta = torch.empty_like(g)
        self.run(gating.gating_launch(a, b, A_log, dt_bias, g, beta))
        return g, beta

    def gated_norm(self, x: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See ``Kernels.gated_norm``."""
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self.run(norm.gated_norm_launch(x, z, weight, out, eps))
        return out

    def decode(
        self,
        x: Tensor,
        a: Tensor,
        b: Tensor,
        z: Tensor,
        conv_state: Tensor,
        conv_weight: Tensor,
        conv_bias: Tensor | None,
        A_log: Tensor,
        dt_bias: Tensor,
        state: Tensor,
        norm_weight: Tensor,
        eps: float,
        *,
        state_indices: Tensor,
    ) -> Tensor:
        """See ``Kernels.decode``."""
        out = torch.zeros(len(x), *state.shape[1:3], dtype=x.dtype, device=x.device)
        arrivals = torch.zeros(len(x), state.shape[1], dtype=torch.int32, device=x.device)
        self.run(
            decode.decode_launch(
                x,
                a,
                b,
                z,
                conv_state,
                conv_weight,
                conv_bias,
                A_log,
                dt_bias,
                state,
                norm_weight,
                eps,
                torch.empty(out.shape, dtype=torch.float32, device=x.device),
                out,
                arrivals,
                state_indices=state_indices,
            )
        )
        return out


def _zeros(like: Tensor) -> Tensor:
    """A contiguous tensor of zeros: tokens that belong to no live row keep them."""
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
