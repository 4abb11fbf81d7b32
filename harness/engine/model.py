"""The hybrid model's forward pass over one packed step, and its MTP head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from harness.engine.attention_layer import AttentionLayer, rms_norm
from harness.engine.batch import Batch
from harness.engine.linear_layer import LinearLayer
from harness.engine.moe import MoEWeights, moe
from harness.engine.policy import Policy
from harness.models.checkpoint import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One decoder layer: a token mixer, then a mixture of experts, both pre-normed and residual."""

    mixer: LinearLayer | AttentionLayer
    input_norm: torch.Tensor  # [hidden]
    post_norm: torch.Tensor  # [hidden]
    moe: MoEWeights
    config: ModelConfig

    def __call__(self, x: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """x ``[N, hidden]`` -> x ``[N, hidden]`` and the routing ``[N, top_k]``."""
        normed = rms_norm(x, self.input_norm, self.config.rms_eps)
        if isinstance(self.mixer, AttentionLayer):
            x = x + self.mixer(normed, batch.tokens)
        else:
            x = x + self.mixer(normed, batch)
        normed = rms_norm(x, self.post_norm, self.config.rms_eps)
        y, routing = moe(normed, self.moe, self.config, captured=batch.captured is not None)
        return x + y, routing


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """What a forward pass yields for each packed token."""

    hidden: torch.Tensor  # [N, hidden], after the final norm
    routing: torch.Tensor  # [N, layers, top_k]


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridModel:
    """Embedding, blocks, final norm and output head."""

    config: ModelConfig
    embedding: torch.Tensor  # [vocab, hidden]
    blocks: tuple[Block, ...]
    norm: torch.Tensor  # [hidden]
    lm_head: torch.Tensor  # [vocab, hidden]
    policy: Policy

    def forward(self, batch: Batch) -> Forward:
        """Run one step and update every cache."""
        x = F.embedding(self.policy.embedded_ids(batch.tokens.input_ids), self.embedding)
        routing = []
        for block in self.blocks:
            x, chosen = block(x, batch)
            routing.append(chosen)
        return Forward(
            hidden=rms_norm(x, self.norm, self.config.rms_eps), routing=torch.stack(routing, dim=1)
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden ``[R, hidden]`` -> logits ``[R, vocab]``, float32."""
        return F.linear(hidden, self.lm_head).float()

    @property
    def linear_layers(self) -> dict[int, LinearLayer]:
        """The gated-delta-rule layers by their place in the model."""
        mixers = ((i, block.mixer) for i, block in enumerate(self.blocks))
        return {i: mixer for i, mixer in mixers if isinstance(mixer, LinearLayer)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MTPHead:
    """The multi-token-prediction head: a full-attention block that reads a token and the hidden state before it."""

    config: ModelConfig
    norm_embedding: torch.Tensor  # [hidden]
    norm_hidden: torch.Tensor  # [hidden]
    fc: torch.Tensor  # [hidden, 2 * hidden]: the embedding's half first
    block: Block
    norm: torch.Tensor  # [hidden]

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """embedded, hidden ``[N, hidden]`` -> hidden ``[N, hidden]``; writes the head's own KV cache."""
        eps = self.config.rms_eps
        pair = torch.cat(
            [rms_norm(embedded, self.norm_embedding, eps), rms_norm(hidden, self.norm_hidden, eps)], dim=-1
        )
        x, _ = self.block(F.linear(pair, self.fc), batch)
        return rms_norm(x, self.norm, eps)
