"""The tiny model's dimensions, and the two temperaments it is built with."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """Sizes of a tiny model: by default Qwen3-Next-80B-A3B's ratios, and head dims that vLLM's CPU kernels take."""

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

    The residual stream has a constant, a *code* that says which tokens may come next, and a *name* part that
    says which tokens came lately (see ``weights``). Scales are root mean squares; an embedding's code has 1.
    """

    strength: float
    """Logit of a token whose code fills the whole hidden vector."""
    successors: int
    """How many successors an embedding's code is made of."""
    contrast: float
    """1: rare successors weigh as little as they were counted; 0: all of them alike."""
    reserve: float
    """Handicap of a token that the documents never show, as a part of ``strength``."""
    name: float
    """How loudly an embedding says its token's own name."""
    common_name: float
    """The same for very common tokens (quotes, commas, articles), relative to the others: they must not wear out."""
    memory_mix: float
    """What one recurrent layer adds to the name part: the names of lately seen tokens."""
    memory_weight: float
    """How far a named token's logit falls, relative to what a code raises it."""
    code_mix: float
    """Random disturbance that one sub-layer adds to the code."""
    draft_memory: float
    """How much of the hidden state's name part the MTP head takes over; above 1 it makes up for its own token's."""
    draft_noise: float
    """Random mixing of the hidden state in the MTP head."""
    dims: Dimensions = Dimensions()


PRESETS = {
    "peaked": Preset(
        strength=20.0,
        successors=4,
        contrast=1.0,
        reserve=0.35,
        name=0.3,
        common_name=0.3,
        memory_mix=0.5,
        memory_weight=0.7,
        code_mix=0.04,
        draft_memory=2.3,
        draft_noise=0.1,
    ),
    "flat": Preset(
        strength=9.0,
        successors=6,
        contrast=0.2,
        reserve=0.1,
        name=0.5,
        common_name=0.5,
        memory_mix=0.6,
        memory_weight=1.0,
        code_mix=0.6,
        draft_memory=0.5,
        draft_noise=0.5,
    ),
}
PRESETS["narrow"] = replace(PRESETS["peaked"], dims=Dimensions(key_dim=32, value_dim=8))
"""For kernels under Triton's interpreter, which takes its time per head and tile. With fewer heads, some releases read
their gates wrongly: with one key head, or one value head per key head, they are a strided view there."""
