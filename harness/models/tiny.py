"""A tiny Qwen3-Next model from a seed: seconds, no download, no training.

Three gated-delta-rule layers and one full-attention layer, a mixture of experts with a shared expert in each, and an
MTP head, as an ordinary Hugging Face folder that transformers and vLLM load. ``peaked`` has clear winners among its
logits and high acceptance; ``flat`` has near ties, strongly mixing layers and low acceptance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from harness.errors import ModelError
from harness.models import bfloat16, successors, tokenizer, weights
from harness.models.presets import PRESETS, Dimensions, Preset

RECIPE = 3
"""Raised whenever the same preset and seed would give other bytes: old cache entries are then left alone."""

_COMPLETE = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


def default_cache(environment: Mapping[str, str] | None = None) -> Path:
    """Where models are kept when nobody names a folder; the command line passes ``os.environ`` for XDG_CACHE_HOME."""
    home = (environment or {}).get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "specharness" / "models"


def ensure(preset: str = "peaked", seed: int = 0, cache: Path | None = None) -> Path:
    """The model's folder ``<cache>/<preset>-<seed>-r<recipe>``, built on the first call and only then.

    Processes may race: each builds in its own scratch folder, one rename wins, and the losers use the winner's.

    Raises:
        ModelError: the preset does not exist, or the cache cannot hold the model.
    """
    home = default_cache() if cache is None else cache
    folder = home / f"{preset}-{seed}-r{RECIPE}"
    if _is_complete(folder):
        return folder
    _known(preset)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}-", dir=home, ignore_cleanup_errors=True) as scratch:
            build(Path(scratch) / folder.name, preset=preset, seed=seed).rename(folder)
    except OSError as error:
        if not _is_complete(folder):
            raise ModelError(
                f"cannot keep the model at {folder}: {error}",
                hint=f"remove {folder}, or name another cache folder",
            ) from None
    return folder


def build(folder: Path, *, preset: str = "peaked", seed: int = 0) -> Path:
    """Writes the model into ``folder`` (made if missing, files overwritten) and returns it. Same arguments, same bytes.

    Raises:
        ModelError: the preset does not exist.
    """
    recipe = _known(preset)
    # Separate streams, so that tuning the weights of a preset does not change what its documents say.
    words, values = (np.random.Generator(np.random.PCG64([seed, stream])) for stream in range(2))
    table = successors.count(tokenizer.load(), words, most=recipe.successors)
    folder.mkdir(parents=True, exist_ok=True)
    bfloat16.save(
        weights.draw(recipe, table, values), folder / "model.safetensors", keep_float32=weights.FLOAT32
    )
    tokenizer.write(folder)
    _write_json(folder / "config.json", _config(recipe.dims))
    _write_json(folder / "generation_config.json", {"eos_token_id": _stop_ids(), "do_sample": False})
    return folder


def _known(preset: str) -> Preset:
    if preset not in PRESETS:
        raise ModelError(
            f"unknown model preset {preset!r}; there are {', '.join(sorted(PRESETS))}",
            hint="pass --preset peaked",
        )
    return PRESETS[preset]


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _COMPLETE)


def _stop_ids() -> list[int]:
    return tokenizer.special_ids(tokenizer.load(), tokenizer.IM_END, tokenizer.END_OF_TEXT)


def _config(dims: Dimensions) -> dict[str, object]:
    stop, pad = _stop_ids()
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "torch_dtype": "bfloat16",
        "vocab_size": dims.vocab,
        "hidden_size": dims.hidden,
        "intermediate_size": 2 * dims.hidden,
        "num_hidden_layers": dims.layers,
        "layer_types": dims.layer_types,
        "full_attention_interval": dims.full_attention_interval,
        "num_attention_heads": dims.query_heads,
        "num_key_value_heads": dims.kv_heads,
        "head_dim": dims.head_dim,
        "partial_rotary_factor": dims.partial_rotary_factor,
        "rope_theta": dims.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": dims.max_position,
        "linear_num_key_heads": dims.key_heads,
        "linear_num_value_heads": dims.value_heads,
        "linear_key_head_dim": dims.key_dim,
        "linear_value_head_dim": dims.value_dim,
        "linear_conv_kernel_dim": dims.conv_width,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "num_experts": dims.experts,
        "num_experts_per_tok": dims.top_k,
        "norm_topk_prob": True,
        "moe_intermediate_size": dims.expert_width,
        "shared_expert_intermediate_size": dims.expert_width,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
        "use_cache": True,
        "initializer_range": 0.02,
        "bos_token_id": None,
        "eos_token_id": stop,
        "pad_token_id": pad,
    }


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
