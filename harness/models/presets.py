"""The tiny model's dimensions, and the two temperaments it is built with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Sizes every preset shares: the ratios of Qwen3-Next-80B-A3B, and head dims that vLLM's CPU kernels take."""

    hidden: int = 128
    vocab: int = 1024
    layers: int = 4
    full_attention_interval: int = 4
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 64
    value_dim: int = 64
    conv_width: int = 4
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rope_theta: float = 10_000.0
    partial_rotary_factor: float = 0.25
    experts: int = 8
    top_k: int = 2
    expert_width: int = 64
    max_position: int = 4096

    @property
    def layer_types(self) -> list[str]:
        return [
            "linear_attention" if (i + 1) % self.full_attention_interval else "full_attention"
            for i in range(self.layers)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """How strongly the next token follows from the last one, and how strongly memory disturbs that.

    The residual stream has three parts (see ``weights``): a constant, the *code* that names likely successors, and the
    *topic* that only layers write. All scales are root mean squares against an embedding of about 1.
    """

    strength: float
    """Logit of a successor whose code fills the whole hidden vector."""
    preference: tuple[float, ...]
    """Weight of a token's first, second, ... successor."""
    identity: float
    """Part of an embedding that no successor explains: keeps tokens with equal successors apart inside the layers."""
    code_mix: float
    """What one sub-layer adds to the code part."""
    topic_mix: float
    """What one recurrent layer adds to the topic part."""
    topic_weight: float
    """How far the topic part sways the logits."""
    draft_topic: float
    """How much of the hidden state's topic the MTP head passes on."""
    draft_noise: float
    """Random mixing of the hidden state in the MTP head."""


PRESETS = {
    "peaked": Preset(
        strength=18.0,
        preference=(1.0, 0.86, 0.74, 0.64, 0.56, 0.5),
        identity=0.4,
        code_mix=0.1,
        topic_mix=0.5,
        topic_weight=1.0,
        draft_topic=1.0,
        draft_noise=0.1,
    ),
    "flat": Preset(
        strength=9.0,
        preference=(1.0, 0.97, 0.94, 0.91, 0.88, 0.85),
        identity=1.0,
        code_mix=0.6,
        topic_mix=0.6,
        topic_weight=1.0,
        draft_topic=0.5,
        draft_noise=0.5,
    ),
}
