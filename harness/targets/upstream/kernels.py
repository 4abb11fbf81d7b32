"""A release's kernels behind our ``Kernels`` contract: the convolution update and the verify recurrence are theirs.

Prompts, gating and the gated norm stay ours (the naive twins): they are not what is tested here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from harness.engine.config import NULL_SLOT
from harness.engine.kernels.decisions import CORRECT, KernelDecisions
from harness.engine.kernels.naive import NaiveKernels
from harness.targets.upstream.einops_twin import rearrange
from harness.targets.upstream.layouts import CONV, Layout


class VllmKernels(NaiveKernels):
    """The kernels of one release of vLLM. ``conv`` and ``recurrence`` say which of the two are theirs."""

    def __init__(self, layout: Layout, *, conv: bool = True, recurrence: bool = True) -> None:
        ops = importlib.import_module(layout.ops)
        self._layout = layout
        self._conv = importlib.import_module(CONV).causal_conv1d_update if conv else None
        name = "fused_recurrent_gated_delta_rule" if layout.gating == "outside" else FUSED
        self._recurrence = getattr(ops, name) if recurrence else None

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
        """See ``Kernels.conv_update``; theirs writes its output over x and wants the line as ``[P, D, C]``."""
        if self._conv is None:
            return super().conv_update(
                x,
                conv_state,
                weight,
                bias,
                query_start_loc=query_start_loc,
                state_indices=state_indices,
                num_accepted_tokens=num_accepted_tokens,
                decisions=decisions,
            )
        line = conv_state.transpose(1, 2)
        rows: dict[str, Any] = {
            "conv_state_indices": padded(state_indices, self._layout.padding),
            "num_accepted_tokens": num_accepted_tokens,
        }
        if self._layout.rows == "rectangle":  # what its model does around the call, typed again
            y = rearrange(x.view(len(query_start_loc) - 1, -1, x.shape[-1]), "b l d -> b d l")
            y = self._conv(y.contiguous(), line, weight, bias, "silu", **rows)
            return rearrange(y, "b d l -> (b l) d")
        longest = conv_state.shape[1] - weight.shape[1] + 2  # k + 1, as its model passes it
        rows |= {"query_start_loc": query_start_loc, "max_query_len": longest}
        out: Tensor = self._conv(x.clone(), line, weight, bias, "silu", **rows)
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
        """See ``Kernels.gdn_verify``; a fused kernel gets the raw gates that lead to ``g`` and ``beta``."""
        if self._recurrence is None:
            return super().gdn_verify(
                q,
                k,
                v,
                g,
                beta,
                state,
                query_start_loc=query_start_loc,
                state_indices=state_indices,
                num_accepted_tokens=num_accepted_tokens,
                decisions=decisions,
            )
        gates = {"g": g[None], "beta": beta[None]} if self._layout.gating == "outside" else raw_gates(g, beta)
        with as_laid_out(state, self._layout) as pool:
            out, _ = self._recurrence(
                q=q[None].contiguous(),
                k=k[None].contiguous(),
                v=v[None].contiguous(),
                **gates,
                initial_state=pool,
                inplace_final_state=True,
                cu_seqlens=query_start_loc,
                ssm_state_indices=padded(state_indices, self._layout.padding),
                num_accepted_tokens=num_accepted_tokens,
                use_qk_l2norm_in_kernel=True,
            )
        result: Tensor = out[0]
        return result


FUSED = "fused_sigmoid_gating_delta_rule_update"


def padded(indices: Tensor, padding: int) -> Tensor:
    """Slot ids with the release's own id of a padded row."""
    return indices if padding == NULL_SLOT else torch.where(indices == NULL_SLOT, padding, indices)


def raw_gates(g: Tensor, beta: Tensor) -> dict[str, Tensor]:
    """``a`` and ``b`` that gate to ``g`` and ``beta`` with A_log = dt_bias = 0: softplus and sigmoid undone."""
    zeros = g.new_zeros(g.shape[-1])
    decay = -g
    a = torch.where(decay > 20, decay, decay.double().expm1().log().to(g.dtype))
    return {"A_log": zeros, "dt_bias": zeros, "a": a, "b": beta.double().logit().to(beta.dtype)}


@contextmanager
def as_laid_out(state: Tensor, layout: Layout) -> Iterator[Tensor]:
    """Our pool ``[P, HV, V, K]`` as the release lays it out; what it writes, anywhere, is in ours afterwards."""
    pool = state if layout.state == "VK" else state.transpose(2, 3)
    if pool.is_contiguous():
        yield pool
        return
    theirs = pool.contiguous()
    yield theirs
    pool.copy_(theirs)
