"""A checkpoint folder is read as it was published, or refused with one error that says what is wrong with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.errors import ModelError
from harness.models.checkpoint import Checkpoint, ModelConfig
from harness.models.config import FULL, LINEAR

Edit = Callable[[Path], None]
WEIGHTS = "model.safetensors"
GATE = "model.layers.1.mlp.gate.weight"


@pytest.fixture
def folder(peaked: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(peaked, tmp_path / "model"))


def configure(**changes: Any) -> Edit:
    """Changes config.json; ``None`` removes a key."""

    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | changes
        kept = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))

    return edit


def rewrite(change: Callable[[dict[str, torch.Tensor]], None]) -> Edit:
    """Changes the tensors of the one weight file."""

    def edit(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return edit


def write(name: str, text: str) -> Edit:
    return lambda folder: void((folder / name).write_text(text))


def void(_: object) -> None:
    return None


def truncate(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def shard(folder: Path) -> None:
    """Two weight files and an index, as large checkpoints come."""
    tensors = load_file(folder / WEIGHTS)
    halves = {f"model-0000{n}-of-00002.safetensors": sorted(tensors)[n - 1 :: 2] for n in (1, 2)}
    for name, members in halves.items():
        save_file({member: tensors[member] for member in members}, folder / name)
    weight_map = {member: name for name, members in halves.items() for member in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / WEIGHTS).unlink()


def stack(tensors: dict[str, torch.Tensor]) -> None:
    """Experts as transformers 5 holds them: gate and up in one tensor, all experts in one."""
    for prefix in [*(f"model.layers.{i}.mlp.experts." for i in range(4)), "mtp.layers.0.mlp.experts."]:
        parts = {
            part: torch.stack([tensors.pop(f"{prefix}{i}.{part}_proj.weight") for i in range(8)])
            for part in ("gate", "up", "down")
        }
        tensors[prefix + "gate_up_proj"] = torch.cat([parts["gate"], parts["up"]], dim=1)
        tensors[prefix + "down_proj"] = parts["down"]


def test_the_configuration_says_what_an_engine_needs(peaked: Path) -> None:
    assert Checkpoint.open(peaked).config == ModelConfig(
        hidden_size=128,
        vocab_size=1024,
        num_layers=4,
        layer_types=(LINEAR, LINEAR, LINEAR, FULL),
        rms_eps=1e-6,
        max_position=4096,
        eos_ids=(999, 997),
        num_key_heads=2,
        num_value_heads=4,
        key_head_dim=64,
        value_head_dim=64,
        conv_width=4,
        num_attention_heads=4,
        num_kv_heads=2,
        head_dim=64,
        rotary_dim=16,
        rope_theta=10_000.0,
        num_experts=8,
        top_k=2,
        norm_topk_prob=True,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_mtp_layers=1,
    )


def test_derived_sizes_follow_from_the_heads(peaked: Path) -> None:
    config = Checkpoint.open(peaked).config
    assert (config.key_dim, config.value_dim, config.conv_dim, config.linear_layers) == (
        128,
        256,
        512,
        (0, 1, 2),
    )


def test_tensors_keep_their_type_and_arrays_their_values(peaked: Path) -> None:
    checkpoint = Checkpoint.open(peaked)
    assert checkpoint.tensor("lm_head.weight").dtype == torch.bfloat16
    for gate in ("A_log", "dt_bias"):
        assert checkpoint.tensor("model.layers.0.linear_attn." + gate).dtype == torch.float32
    assert torch.equal(torch.tensor(checkpoint.array(GATE)).bfloat16(), checkpoint.tensor(GATE))


def test_an_unknown_tensor_is_named(peaked: Path) -> None:
    with pytest.raises(ModelError, match=r"no tensor 'lm_head\.bias'"):
        Checkpoint.open(peaked).tensor("lm_head.bias")


@pytest.mark.parametrize("layer", ["model.layers.2.mlp.", "mtp.layers.0.mlp."])
def test_stacked_and_single_experts_read_alike(folder: Path, layer: str) -> None:
    single = Checkpoint.open(folder)
    up = single.tensor(layer + "experts.5.up_proj.weight")
    before = single.experts(layer)
    rewrite(stack)(folder)
    after = Checkpoint.open(folder).experts(layer)
    assert before.gate_up.shape == (8, 128, 128)
    assert before.down.shape == (8, 128, 64)
    assert torch.equal(before.gate_up[5, 64:], up)
    assert torch.equal(before.gate_up, after.gate_up)
    assert torch.equal(before.down, after.down)


def test_what_transformers_saves_is_read_back(folder: Path, tmp_path: Path) -> None:
    """transformers drops the MTP head and writes its rotary settings in another place."""
    from transformers import Qwen3NextForCausalLM

    configure(rope_theta=5e5, partial_rotary_factor=0.5)(folder)
    Qwen3NextForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(tmp_path / "saved")
    ours, theirs = Checkpoint.open(folder), Checkpoint.open(tmp_path / "saved")
    assert replace(theirs.config, num_mtp_layers=1) == ours.config
    assert (theirs.config.num_mtp_layers, theirs.config.rotary_dim, theirs.config.rope_theta) == (0, 32, 5e5)
    assert torch.equal(
        theirs.experts("model.layers.3.mlp.").gate_up, ours.experts("model.layers.3.mlp.").gate_up
    )


def test_a_sharded_checkpoint_reads_like_a_single_file(folder: Path, peaked: Path) -> None:
    shard(folder)
    sharded, single = Checkpoint.open(folder), Checkpoint.open(peaked)
    assert sharded.names == single.names
    assert all(torch.equal(sharded.tensor(name), single.tensor(name)) for name in single.names)


def test_layer_types_follow_from_the_interval_where_they_are_not_listed(folder: Path) -> None:
    configure(layer_types=None)(folder)
    assert Checkpoint.open(folder).config.layer_types == (LINEAR, LINEAR, LINEAR, FULL)


BAD_FOLDERS: dict[str, tuple[Edit, str]] = {
    "no folder": (lambda folder: shutil.rmtree(folder), "no model folder at"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "config is no JSON": (write("config.json", '{"model_type": '), "config.json is not readable as JSON"),
    "config is a list": (write("config.json", "[]"), "config.json holds a JSON list"),
    "other family": (configure(model_type="llama"), "model_type is 'llama'; expected 'qwen3_next'"),
    "size missing": (
        configure(linear_num_key_heads=None),
        "linear_num_key_heads is nothing; expected a positive",
    ),
    "size is text": (configure(hidden_size="128"), "hidden_size is '128'; expected a positive integer"),
    "eps is zero": (configure(rms_norm_eps=0), "rms_norm_eps is 0; expected a positive number"),
    "heads do not divide": (
        configure(linear_num_value_heads=3),
        "linear_num_value_heads is 3; expected a multiple",
    ),
    "layer list too short": (configure(layer_types=[LINEAR]), "layer_types .* expected 4 entries"),
    "dense layers": (configure(mlp_only_layers=[0]), r"mlp_only_layers is \[0\]"),
    "sparse step": (configure(decoder_sparse_step=2), "decoder_sparse_step is 2"),
    "tied embeddings": (configure(tie_word_embeddings=True), "tie_word_embeddings is True"),
    "long-context rope": (configure(rope_scaling={"type": "yarn", "factor": 4.0}), "rope_type is 'yarn'"),
    "quantised": (configure(quantization_config={"quant_method": "fp8"}), "quantization_config is"),
    "no weights": (
        lambda folder: (folder / WEIGHTS).unlink(),
        "lacks 1 of 1 weight files, first model.safetensors",
    ),
    "weights cut short": (truncate, "not a complete safetensors file"),
    "weights are text": (write(WEIGHTS, "version https://git-lfs"), "not a complete safetensors file"),
    "tensor missing": (rewrite(lambda tensors: void(tensors.pop(GATE))), f"tensor '{GATE}' .* is missing"),
    "half an MTP head": (
        rewrite(lambda tensors: void(tensors.pop("mtp.fc.weight"))),
        "'mtp.fc.weight' .* is missing",
    ),
    "wrong shape": (
        configure(num_experts_per_tok=2, num_experts=4),
        r"shape \[8, 128\]; config.json makes it \[4, 128\]",
    ),
    "whole numbers": (
        rewrite(lambda tensors: tensors.update({GATE: torch.zeros(8, 128, dtype=torch.int8)})),
        "is I8; expected one of BF16",
    ),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_a_bad_folder_gives_one_error_that_says_where_and_what_next(folder: Path, case: str) -> None:
    damage, message = BAD_FOLDERS[case]
    damage(folder)
    with pytest.raises(ModelError, match=message) as caught:
        Checkpoint.open(folder)
    assert str(folder) in str(caught.value)
    assert caught.value.hint
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: next(folder.glob("*-00002-*")).unlink(),
            "lacks 1 of 2 weight files, first model-00002-of",
        ),
        (write("model.safetensors.index.json", "{}"), "has no weight_map"),
        (write("model.safetensors.index.json", '{"weight_map": {"a": "../b.safetensors"}}'), "lacks 1 of 1"),
    ],
    ids=["shard missing", "index empty", "index names nothing here"],
)
def test_a_bad_set_of_shards_gives_one_error(folder: Path, damage: Edit, message: str) -> None:
    shard(folder)
    damage(folder)
    with pytest.raises(ModelError, match=message) as caught:
        Checkpoint.open(folder)
    assert caught.value.hint
