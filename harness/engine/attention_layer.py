"""Full attention with an output gate, partial rotary embedding and a paged KV cache (Qwen3-Next's fourth layer)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from harness.engine.packed import PackedTokens
from harness.engine.policy import Policy
from harness.models.checkpoint import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Weights of one layer; ``q_proj`` yields, per head, the query and then its gate."""

    q_proj: torch.Tensor  # [heads * 2 * head_dim, hidden]
    k_proj: torch.Tensor  # [kv_heads * head_dim, hidden]
    v_proj: torch.Tensor  # [kv_heads * head_dim, hidden]
    o_proj: torch.Tensor  # [hidden, heads * head_dim]
    q_norm: torch.Tensor  # [head_dim], zero-centred
    k_norm: torch.Tensor  # [head_dim], zero-centred


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """Keys and values by place: block * block_size + offset."""

    keys: torch.Tensor  # [places, kv_heads, head_dim]
    values: torch.Tensor  # [places, kv_heads, head_dim]
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """One layer, its cache, and the decisions it runs with."""

    config: ModelConfig
    weights: AttentionWeights
    cache: KVCache
    policy: Policy

    def __call__(self, x: torch.Tensor, tokens: PackedTokens) -> torch.Tensor:
        """x ``[N, hidden]`` -> ``[N, hidden]``; writes the tokens' keys and values first."""
        c, w = self.config, self.weights
        query, gate = F.linear(x, w.q_proj).view(-1, c.num_attention_heads, 2 * c.head_dim).chunk(2, dim=-1)
        keys = F.linear(x, w.k_proj).view(-1, c.num_kv_heads, c.head_dim)
        values = F.linear(x, w.v_proj).view(-1, c.num_kv_heads, c.head_dim)
        query = self._rotate(rms_norm(query, w.q_norm, c.rms_eps), tokens.positions)
        keys = self._rotate(rms_norm(keys, w.k_norm, c.rms_eps), tokens.positions)
        self.cache.keys[tokens.kv_places] = keys
        self.cache.values[tokens.kv_places] = values
        attended = self._attend(query, tokens)
        return F.linear((attended * torch.sigmoid(gate)).flatten(1), w.o_proj)

    def _attend(self, query: torch.Tensor, tokens: PackedTokens) -> torch.Tensor:
        """Each row against its own blocks; rows padded to the longest. ``[N, heads, head_dim]``.

        No shape depends on what is in a tensor, so a graph can be captured of it.
        """
        if not tokens.longest:
            return torch.zeros_like(query)
        bounds, size, device = tokens.query_start_loc.long(), self.cache.block_size, query.device
        lengths = bounds.diff()  # [B]
        column = torch.arange(tokens.longest, device=device)
        # Behind a row's end stand queries of others; nobody asks for what they find.
        padded = query[(bounds[:-1, None] + column).clamp(max=len(query) - 1)]  # [B, Q, heads, head_dim]
        blocks = tokens.block_table[:, : -(-tokens.context // size)]
        places = (blocks[:, :, None] * size + torch.arange(size, device=device)).flatten(1)
        places = places[:, : tokens.context]  # [B, T]
        position = tokens.context_lens[:, None] + column  # [B, Q]
        positions = torch.arange(tokens.context, device=device)
        visible = self.policy.visible(positions, position, lengths)  # [B, Q, T]
        # What lies behind a row's tokens is another request's past, and 0 * NaN is NaN.
        behind = positions >= (tokens.context_lens + lengths)[:, None]
        keys, values = (
            kept[places].masked_fill(behind[:, :, None, None], 0)
            for kept in (self.cache.keys, self.cache.values)
        )
        out = F.scaled_dot_product_attention(
            padded.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=visible[:, None],
            scale=self.config.head_dim**-0.5,
            enable_gqa=True,
        ).transpose(1, 2)
        place = torch.arange(len(query), device=device)
        row = torch.searchsorted(bounds[1:], place, right=True).clamp(max=len(lengths) - 1)  # [N]
        mine = out[row, (place - bounds[row]).clamp(max=tokens.longest - 1)]
        return mine.masked_fill((place >= bounds[-1])[:, None, None], 0)  # padded tokens belong to no row

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate-half RoPE on the first ``rotary_dim`` of each head; x ``[N, heads, head_dim]``."""
        half = self.config.rotary_dim // 2
        exponent = torch.arange(half, dtype=torch.float64, device=x.device) / half
        angle = (
            positions[:, None] * self.config.rope_theta**-exponent
        )  # [N, rotary_dim / 2]; float32 drifts with N
        cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Zero-centred RMS norm over the last dimension: x / rms * (1 + weight), in float32."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed * (1 + weight.float())).to(x.dtype)
