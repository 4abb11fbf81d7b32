"""Mixture of experts with a shared expert, one expert at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from harness.models.checkpoint import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEWeights:
    """Router, experts (gate and up projection stacked), shared expert and its gate."""

    router: torch.Tensor  # [E, hidden]
    gate_up: torch.Tensor  # [E, 2 * I, hidden]
    down: torch.Tensor  # [E, hidden, I]
    shared_gate_up: torch.Tensor  # [2 * J, hidden]
    shared_down: torch.Tensor  # [hidden, J]
    shared_gate: torch.Tensor  # [1, hidden]


def moe(x: torch.Tensor, w: MoEWeights, config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """x ``[N, hidden]`` -> output ``[N, hidden]`` and the chosen experts ``[N, top_k]``, strongest first."""
    probs = F.linear(x, w.router).float().softmax(-1)  # [N, E]
    weight, chosen = probs.topk(config.top_k, dim=-1)
    if config.norm_topk_prob:
        weight = weight / weight.sum(-1, keepdim=True)
    out = torch.sigmoid(F.linear(x, w.shared_gate)) * _mlp(x, w.shared_gate_up, w.shared_down)
    for expert in chosen.unique().tolist():
        token, rank = (chosen == expert).nonzero(as_tuple=True)
        y = _mlp(x[token], w.gate_up[expert], w.down[expert])
        out.index_add_(0, token, (y * weight[token, rank, None]).to(out.dtype))
    return out, chosen


def _mlp(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)
