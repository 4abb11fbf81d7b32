"""Mixture of experts with a shared expert: every expert for a few tokens, each expert's own tokens otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from harness.models.checkpoint import ModelConfig

FEW = 1024
"""Pairs of a token and an expert: up to so many, computing all of them is faster than finding the ones that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEWeights:
    """Router, experts (gate and up projection stacked), shared expert and its gate."""

    router: torch.Tensor  # [E, hidden]
    gate_up: torch.Tensor  # [E, 2 * I, hidden]
    down: torch.Tensor  # [E, hidden, I]
    shared_gate_up: torch.Tensor  # [2 * J, hidden]
    shared_down: torch.Tensor  # [hidden, J]
    shared_gate: torch.Tensor  # [1, hidden]


def moe(
    x: torch.Tensor, w: MoEWeights, config: ModelConfig, *, captured: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """x ``[N, hidden]`` -> output ``[N, hidden]`` and the chosen experts ``[N, top_k]``, strongest first.

    ``captured``: no shape may depend on what was chosen.
    """
    probs = F.linear(x, w.router).float().softmax(-1)  # [N, E]
    weight, chosen = probs.topk(config.top_k, dim=-1)
    if config.norm_topk_prob:
        weight = weight / weight.sum(-1, keepdim=True)
    out = torch.sigmoid(F.linear(x, w.shared_gate)) * _mlp(x, w.shared_gate_up, w.shared_down)
    if captured or len(x) * len(w.router) <= FEW:
        return out + _all_experts(x, w, weight, chosen).to(out.dtype), chosen
    for expert in chosen.unique().tolist():
        token, rank = (chosen == expert).nonzero(as_tuple=True)
        y = _mlp(x[token], w.gate_up[expert], w.down[expert])
        out.index_add_(0, token, (y * weight[token, rank, None]).to(out.dtype))
    return out, chosen


def _all_experts(x: torch.Tensor, w: MoEWeights, weight: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """x ``[N, hidden]``; weight, chosen ``[N, top_k]``. What each token gets from its own experts, ``[N, hidden]``."""
    gate, up = F.linear(x, w.gate_up.flatten(0, 1)).view(len(x), len(w.router), -1).chunk(2, dim=-1)
    y = torch.bmm((F.silu(gate) * up).transpose(0, 1), w.down.transpose(1, 2))  # [E, N, hidden]
    mine = y[chosen, torch.arange(len(x), device=x.device)[:, None]]  # [N, top_k, hidden]
    return (mine * weight[:, :, None]).sum(dim=1)


def _mlp(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)
