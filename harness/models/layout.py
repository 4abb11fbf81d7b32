"""Which tensors a Qwen3-Next checkpoint must hold, and their shapes (upstream names, as published on Hugging Face)."""

from __future__ import annotations

from collections.abc import Container

from harness.models.config import LINEAR, ModelConfig

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: ModelConfig, present: Container[str]) -> Shapes:
    """Shape by tensor name. Experts may be stacked or one by one, per layer: ``present`` decides which is asked for."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocab, hidden),
        "lm_head.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    for index, kind in enumerate(config.layer_types):
        prefix = f"model.layers.{index}."
        mixer = _linear_attention(config, prefix) if kind == LINEAR else _attention(config, prefix)
        shapes |= _norms(config, prefix) | mixer | _experts(config, prefix, present)
    if config.num_mtp_layers:
        shapes |= {
            "mtp.fc.weight": (hidden, 2 * hidden),
            "mtp.norm.weight": (hidden,),
            "mtp.pre_fc_norm_embedding.weight": (hidden,),
            "mtp.pre_fc_norm_hidden.weight": (hidden,),
        }
    for index in range(config.num_mtp_layers):
        prefix = f"mtp.layers.{index}."
        shapes |= _norms(config, prefix) | _attention(config, prefix) | _experts(config, prefix, present)
    return shapes


def stacked_names(prefix: str) -> tuple[str, str]:
    """Names of the stacked expert tensors under ``...mlp.``: gate and up together, and down."""
    return prefix + "experts.gate_up_proj", prefix + "experts.down_proj"


def single_names(prefix: str, expert: int) -> tuple[str, str, str]:
    """Names of one expert's gate, up and down projections under ``...mlp.``."""
    gate, up, down = (f"{prefix}experts.{expert}.{part}_proj.weight" for part in ("gate", "up", "down"))
    return gate, up, down


def _norms(config: ModelConfig, prefix: str) -> Shapes:
    return {
        prefix + f"{name}_layernorm.weight": (config.hidden_size,) for name in ("input", "post_attention")
    }


def _linear_attention(config: ModelConfig, prefix: str) -> Shapes:
    heads, hidden = config.num_value_heads, config.hidden_size
    shapes: Shapes = {
        "in_proj_qkvz.weight": (2 * config.key_dim + 2 * config.value_dim, hidden),
        "in_proj_ba.weight": (2 * heads, hidden),
        "conv1d.weight": (config.conv_dim, 1, config.conv_width),
        "A_log": (heads,),
        "dt_bias": (heads,),
        "norm.weight": (config.value_head_dim,),
        "out_proj.weight": (hidden, config.value_dim),
    }
    return {f"{prefix}linear_attn.{name}": shape for name, shape in shapes.items()}


def _attention(config: ModelConfig, prefix: str) -> Shapes:
    hidden, query = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    shapes: Shapes = {
        "q_proj.weight": (2 * query, hidden),
        "k_proj.weight": (keys, hidden),
        "v_proj.weight": (keys, hidden),
        "o_proj.weight": (hidden, query),
        "q_norm.weight": (config.head_dim,),
        "k_norm.weight": (config.head_dim,),
    }
    return {f"{prefix}self_attn.{name}": shape for name, shape in shapes.items()}


def _experts(config: ModelConfig, layer: str, present: Container[str]) -> Shapes:
    prefix, hidden = layer + "mlp.", config.hidden_size
    inner, shared = config.moe_intermediate_size, config.shared_expert_intermediate_size
    shapes: Shapes = {
        prefix + "gate.weight": (config.num_experts, hidden),
        prefix + "shared_expert_gate.weight": (1, hidden),
        prefix + "shared_expert.gate_proj.weight": (shared, hidden),
        prefix + "shared_expert.up_proj.weight": (shared, hidden),
        prefix + "shared_expert.down_proj.weight": (hidden, shared),
    }
    gate_up, down = stacked_names(prefix)
    if gate_up in present:
        return shapes | {
            gate_up: (config.num_experts, 2 * inner, hidden),
            down: (config.num_experts, hidden, inner),
        }
    for expert in range(config.num_experts):
        names = single_names(prefix, expert)
        shapes |= dict(zip(names, ((inner, hidden), (inner, hidden), (hidden, inner)), strict=True))
    return shapes
