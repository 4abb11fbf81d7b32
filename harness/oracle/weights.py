"""A Qwen3-Next checkpoint folder as float64 arrays, read straight from its safetensors files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import ModelError
from harness.oracle.attention import Attention
from harness.oracle.functions import Array
from harness.oracle.gdn import DeltaNet
from harness.oracle.moe import Expert, Experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Sizes of the model, under the names that the rest of the harness uses."""

    vocab_size: int
    hidden_size: int
    eps: float
    linear: tuple[bool, ...]  # per layer: gated delta rule (True) or attention
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    num_experts: int
    top_k: int
    renormalise: bool
    tied: bool

    @property
    def num_layers(self) -> int:
        return len(self.linear)

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Indices of the layers with a recurrent state: row l of a state is layer linear_layers[l]."""
        return tuple(index for index, linear in enumerate(self.linear) if linear)

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A pre-norm residual block: x += mixer(norm(x)), then x += experts(norm(x))."""

    input_norm: Array  # [hidden]
    mixer: DeltaNet | Attention
    post_norm: Array  # [hidden]
    experts: Experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The multi-token-prediction head. Embedding and output matrix are the model's own."""

    embedding_norm: Array  # [hidden]
    hidden_norm: Array  # [hidden]
    fc: Array  # [hidden, 2 * hidden], columns for the embedding first
    layer: Layer
    norm: Array  # [hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A whole checkpoint in float64."""

    config: Config
    embedding: Array  # [vocab, hidden]
    layers: tuple[Layer, ...]
    norm: Array  # [hidden]
    lm_head: Array  # [vocab, hidden]
    mtp: Head | None


def read_config(folder: Path) -> Config:
    """Raises ModelError if the folder holds no Qwen3-Next, or one with settings that were never published."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"no config.json in {folder}", hint="give the folder of a Qwen3-Next checkpoint")
    raw: dict[str, Any] = json.loads(path.read_text())
    if raw.get("model_type") != "qwen3_next":
        raise ModelError(f"{path}: model_type is {raw.get('model_type')!r}, expected 'qwen3_next'")
    rope = {"rope_type": "default", "partial_rotary_factor": 0.25} | raw | (raw.get("rope_parameters") or {})
    strange = {
        "rope_type": rope["rope_type"] != "default" or bool(raw.get("rope_scaling")),
        "mlp_only_layers": bool(raw.get("mlp_only_layers")),
        "decoder_sparse_step": raw.get("decoder_sparse_step", 1) != 1,
        "attention_bias": bool(raw.get("attention_bias")),
        "hidden_act": raw.get("hidden_act", "silu") != "silu",
    }
    if any(strange.values()):
        names = ", ".join(name for name, odd in strange.items() if odd)
        raise ModelError(f"{path}: the oracle knows only the published settings of {names}")
    try:
        interval = raw.get("full_attention_interval", 4)
        layers = range(raw["num_hidden_layers"])
        types = raw.get("layer_types") or [
            "full_attention" if (index + 1) % interval == 0 else "linear_attention" for index in layers
        ]
        return Config(
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            eps=raw.get("rms_norm_eps", 1e-6),
            linear=tuple(kind == "linear_attention" for kind in types),
            key_heads=raw["linear_num_key_heads"],
            value_heads=raw["linear_num_value_heads"],
            key_dim=raw["linear_key_head_dim"],
            value_dim=raw["linear_value_head_dim"],
            conv_width=raw.get("linear_conv_kernel_dim", 4),
            head_dim=raw["head_dim"],
            rotary_dim=int(raw["head_dim"] * rope["partial_rotary_factor"]),
            rope_theta=rope["rope_theta"],
            num_experts=raw["num_experts"],
            top_k=raw["num_experts_per_tok"],
            renormalise=raw.get("norm_topk_prob", True),
            tied=raw.get("tie_word_embeddings", False),
        )
    except KeyError as missing:
        raise ModelError(f"{path} says nothing about {missing}") from None


class Tensors:
    """The tensors of every safetensors file of a folder, by name, as float64."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._folder = folder
        self._get: dict[str, Callable[[str], Any]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            file = safe_open(path, framework="pt")
            self._get |= dict.fromkeys(file.keys(), file.get_tensor)

    def __contains__(self, name: str) -> bool:
        return name in self._get

    def __call__(self, name: str) -> Array:
        if name not in self._get:
            raise ModelError(f"{self._folder}: no tensor {name!r} among its {len(self._get)}")
        array: Array = self._get[name](name).double().numpy()
        return array

    def norm(self, name: str) -> Array:
        """A zero-centred norm weight, with its 1 added."""
        return 1.0 + self(f"{name}.weight")


def read_delta_net(read: Tensors, name: str, config: Config) -> DeltaNet:
    """Undoes the checkpoint's interleave: per key head, in_proj_qkvz stacks [q K | k K | v r V | z r V] and
    in_proj_ba [b r | a r], with r = HV / H."""
    ratio = config.value_heads // config.key_heads
    wide, narrow = config.key_dim, ratio * config.value_dim
    qkvz = read(f"{name}.in_proj_qkvz.weight").reshape(config.key_heads, 2 * (wide + narrow), -1)
    q, k, v, z = np.split(qkvz, [wide, 2 * wide, 2 * wide + narrow], axis=1)  # each [H, rows, hidden]
    b, a = np.split(read(f"{name}.in_proj_ba.weight").reshape(config.key_heads, 2 * ratio, -1), 2, axis=1)

    def stack(*parts: Array) -> Array:
        return np.concatenate([part.reshape(-1, config.hidden_size) for part in parts])

    return DeltaNet(
        qkv=stack(q, k, v),
        z=stack(z),
        a=stack(a),
        b=stack(b),
        taps=read(f"{name}.conv1d.weight").reshape(config.conv_channels, config.conv_width),
        A_log=read(f"{name}.A_log"),
        dt_bias=read(f"{name}.dt_bias"),
        norm=read(f"{name}.norm.weight"),
        out=read(f"{name}.out_proj.weight"),
        key_heads=config.key_heads,
        eps=config.eps,
    )


def read_attention(read: Tensors, name: str, config: Config) -> Attention:
    """One full-attention layer."""
    return Attention(
        query=read(f"{name}.q_proj.weight"),
        key=read(f"{name}.k_proj.weight"),
        value=read(f"{name}.v_proj.weight"),
        out=read(f"{name}.o_proj.weight"),
        query_norm=read.norm(f"{name}.q_norm"),
        key_norm=read.norm(f"{name}.k_norm"),
        rotary_dim=config.rotary_dim,
        rope_theta=config.rope_theta,
        eps=config.eps,
    )


def read_experts(read: Tensors, name: str, config: Config) -> Experts:
    """Reads both published layouts: one module per expert, or all experts stacked in two tensors."""

    def single(module: str) -> Expert:
        gate, up, down = (read(f"{module}.{part}_proj.weight") for part in ("gate", "up", "down"))
        return Expert(gate=gate, up=up, down=down)

    if f"{name}.experts.gate_up_proj" in read:
        gate, up = np.split(read(f"{name}.experts.gate_up_proj"), 2, axis=1)  # each [E, width, hidden]
        stacked = zip(gate, up, read(f"{name}.experts.down_proj"), strict=True)
        routed = tuple(Expert(gate=g, up=u, down=d) for g, u, d in stacked)
    else:
        routed = tuple(single(f"{name}.experts.{e}") for e in range(config.num_experts))
    return Experts(
        router=read(f"{name}.gate.weight"),
        routed=routed,
        shared=single(f"{name}.shared_expert"),
        shared_gate=read(f"{name}.shared_expert_gate.weight"),
        top_k=config.top_k,
        renormalise=config.renormalise,
    )


def read_layer(read: Tensors, name: str, config: Config, *, linear: bool) -> Layer:
    """One decoder layer: mixer, experts and norms."""
    mixer = (
        read_delta_net(read, f"{name}.linear_attn", config)
        if linear
        else read_attention(read, f"{name}.self_attn", config)
    )
    return Layer(
        input_norm=read.norm(f"{name}.input_layernorm"),
        mixer=mixer,
        post_norm=read.norm(f"{name}.post_attention_layernorm"),
        experts=read_experts(read, f"{name}.mlp", config),
    )


def read_head(read: Tensors, config: Config) -> Head:
    """The MTP head."""
    return Head(
        embedding_norm=read.norm("mtp.pre_fc_norm_embedding"),
        hidden_norm=read.norm("mtp.pre_fc_norm_hidden"),
        fc=read("mtp.fc.weight"),
        layer=read_layer(read, "mtp.layers.0", config, linear=False),
        norm=read.norm("mtp.norm"),
    )


def read_weights(folder: Path) -> Weights:
    """Raises ModelError, naming file or tensor, if the folder is missing, incomplete or of another family."""
    config = read_config(folder)
    read = Tensors(folder)
    return Weights(
        config=config,
        embedding=read("model.embed_tokens.weight"),
        layers=tuple(
            read_layer(read, f"model.layers.{index}", config, linear=linear)
            for index, linear in enumerate(config.linear)
        ),
        norm=read.norm("model.norm"),
        lm_head=read("model.embed_tokens.weight" if config.tied else "lm_head.weight"),
        mtp=read_head(read, config) if "mtp.fc.weight" in read else None,
    )
