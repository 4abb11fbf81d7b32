"""What an engine needs to know about a Qwen3-Next model, read from its ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ModelError

LINEAR, FULL = "linear_attention", "full_attention"
MODEL_TYPE = "qwen3_next"

BUILD_HINT = """build one: python -c "from harness.models.tiny import ensure; print(ensure('peaked'))\""""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of one Qwen3-Next model; letters as in the field (H, HV, K, V, W, D)."""

    hidden_size: int
    vocab_size: int
    num_layers: int
    layer_types: tuple[str, ...]
    """``linear_attention`` (gated delta rule) or ``full_attention``, one per layer."""
    rms_eps: float
    max_position: int
    eos_ids: tuple[int, ...]
    """All ids that end a generation: ``generation_config.json`` first, then ``config.json``."""

    num_key_heads: int
    """H of the gated delta rule."""
    num_value_heads: int
    """HV of the gated delta rule; value head i reads key head i // (HV / H)."""
    key_head_dim: int
    """K."""
    value_head_dim: int
    """V."""
    conv_width: int
    """W: taps of the causal convolution, this token's included."""

    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    """How many leading values of a head are rotated."""
    rope_theta: float

    num_experts: int
    top_k: int
    norm_topk_prob: bool
    moe_intermediate_size: int
    shared_expert_intermediate_size: int

    num_mtp_layers: int
    """Layers of the multi-token-prediction head that the checkpoint holds; 0 if it was saved without one."""

    @property
    def key_dim(self) -> int:
        """H * K."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        """HV * V."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_dim(self) -> int:
        """D: the channels q, k and v that pass through the convolution."""
        return 2 * self.key_dim + self.value_dim

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Indices of the layers that carry a recurrent state."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == LINEAR)


def read_config(folder: Path, *, num_mtp_layers: int) -> ModelConfig:
    """Reads ``config.json`` (as transformers 4 and 5 write it) and the stop ids of ``generation_config.json``.

    Raises:
        ModelError: the folder or the file is missing, is no JSON, is of another model type, or asks for more than
            is supported here.
    """
    if not folder.is_dir():
        raise ModelError(f"no model folder at {folder}", hint=BUILD_HINT)
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(f"{folder} is not a model folder: it has no config.json", hint=BUILD_HINT)
    raw = read_json(path)
    _check_supported(raw, path)
    generation = folder / "generation_config.json"
    stop = read_json(generation).get("eos_token_id") if generation.is_file() else None
    fields = _Fields(raw, path)
    head_dim, rope = fields.integer("head_dim"), fields.rope()
    num_layers = fields.integer("num_hidden_layers")
    return ModelConfig(
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        num_layers=num_layers,
        layer_types=fields.layer_types(num_layers),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        max_position=fields.integer("max_position_embeddings"),
        eos_ids=_ids(stop, raw.get("eos_token_id")),
        num_key_heads=fields.integer("linear_num_key_heads"),
        num_value_heads=fields.multiple("linear_num_value_heads", of="linear_num_key_heads"),
        key_head_dim=fields.integer("linear_key_head_dim"),
        value_head_dim=fields.integer("linear_value_head_dim"),
        conv_width=fields.integer("linear_conv_kernel_dim"),
        num_attention_heads=fields.multiple("num_attention_heads", of="num_key_value_heads"),
        num_kv_heads=fields.integer("num_key_value_heads"),
        head_dim=head_dim,
        rotary_dim=int(head_dim * rope.number("partial_rotary_factor", 0.25)),
        rope_theta=rope.number("rope_theta", 10_000.0),
        num_experts=fields.integer("num_experts"),
        top_k=fields.integer("num_experts_per_tok"),
        norm_topk_prob=bool(raw.get("norm_topk_prob", True)),
        moe_intermediate_size=fields.integer("moe_intermediate_size"),
        shared_expert_intermediate_size=fields.integer("shared_expert_intermediate_size"),
        num_mtp_layers=num_mtp_layers,
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; anything else is a ModelError that names the place."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(
            f"{path} is not readable as JSON: {error}", hint=f"download {path.name} again"
        ) from None
    if not isinstance(content, dict):
        raise ModelError(
            f"{path} holds a JSON {type(content).__name__}; expected an object",
            hint=f"download {path.name} again",
        )
    return content


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to a JSON object, with errors that say what was seen and where."""

    raw: Mapping[str, Any]
    path: Path

    def integer(self, key: str) -> int:
        value = self.raw.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, "a positive integer")
        return value

    def multiple(self, key: str, *, of: str) -> int:
        value, unit = self.integer(key), self.integer(of)
        if value % unit:
            raise self.wrong(key, f"a multiple of {of}, which is {unit}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.wrong(key, "a positive number")
        return float(value)

    def rope(self) -> _Fields:
        """transformers 5 nests the rotary settings, transformers 4 keeps them at the top."""
        nested = self.raw.get("rope_parameters") or {}
        if not isinstance(nested, Mapping):
            raise self.wrong("rope_parameters", "an object")
        return _Fields({**self.raw, **nested}, self.path)

    def layer_types(self, num_layers: int) -> tuple[str, ...]:
        kinds = self.raw.get("layer_types")
        if kinds is None:
            every = self.raw.get("full_attention_interval", 4)
            return tuple(FULL if (i + 1) % every == 0 else LINEAR for i in range(num_layers))
        if not isinstance(kinds, list) or len(kinds) != num_layers or not {*kinds} <= {LINEAR, FULL}:
            raise self.wrong("layer_types", f"{num_layers} entries, each {LINEAR!r} or {FULL!r}")
        return tuple(kinds)

    def wrong(self, key: str, expected: str) -> ModelError:
        seen = repr(self.raw[key]) if key in self.raw else "nothing"
        return ModelError(
            f"{self.path}: {key} is {seen}; expected {expected}", hint="download config.json again"
        )


def _check_supported(raw: Mapping[str, Any], path: Path) -> None:
    kind = raw.get("model_type")
    if kind != MODEL_TYPE:
        raise ModelError(f"{path}: model_type is {kind!r}; expected {MODEL_TYPE!r}", hint=BUILD_HINT)
    scaling = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    demands = {
        "mlp_only_layers": (raw.get("mlp_only_layers") or [], []),
        "decoder_sparse_step": (raw.get("decoder_sparse_step", 1), 1),
        "hidden_act": (raw.get("hidden_act", "silu"), "silu"),
        "attention_bias": (raw.get("attention_bias", False), False),
        "tie_word_embeddings": (raw.get("tie_word_embeddings", False), False),
        "quantization_config": (raw.get("quantization_config"), None),
        "rope_type": (scaling.get("rope_type", scaling.get("type", "default")), "default"),
    }
    for key, (seen, supported) in demands.items():
        if seen != supported:
            raise ModelError(
                f"{path}: {key} is {seen!r}; only {supported!r} is supported (a mixture of experts in every layer,"
                " no biases, plain rotary embedding, unquantised weights)",
                hint="use a checkpoint like Qwen/Qwen3-Next-80B-A3B-Instruct, or " + BUILD_HINT,
            )


def _ids(*sources: Any) -> tuple[int, ...]:
    """Stop ids of all sources, each one id, a list or None, without repeats and in order."""
    flat = [
        i
        for source in sources
        for i in (source if isinstance(source, list) else [source])
        if isinstance(i, int)
    ]
    return tuple(dict.fromkeys(flat))
