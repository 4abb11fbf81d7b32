"""The oracle's hybrid model against transformers, against itself, and on folders that it must read or refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.errors import ModelError, ScenarioError
from harness.models.tiny import ensure
from harness.oracle.foreign import foreign_logits, foreign_replay
from harness.oracle.model import Oracle, State

WORDS = 1000  # ids above are padding of the embedding


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure("peaked", 0)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle.load(folder)


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, WORDS, length).tolist()


def off(seen: np.ndarray, expected: np.ndarray) -> float:
    """Relative RMS of the difference."""
    return float(np.sqrt(np.square(seen - expected).mean() / np.square(expected).mean()))


def assert_same(seen: State, expected: State, tolerance: float) -> None:
    assert seen.conv.shape == expected.conv.shape
    assert seen.recurrent.shape == expected.recurrent.shape
    for layer in range(len(expected.conv)):
        assert off(seen.conv[layer], expected.conv[layer]) <= tolerance
        for head in range(expected.recurrent.shape[1]):
            assert off(seen.recurrent[layer, head], expected.recurrent[layer, head]) <= tolerance


@pytest.mark.parametrize("seed", range(8))
def test_logits_agree_with_transformers(oracle: Oracle, folder: Path, seed: int) -> None:
    tokens = prompt(seed, 64)
    assert off(oracle.fold().extend(tokens).logits, foreign_logits(folder, tokens)) <= 1e-5


@pytest.mark.parametrize("one_by_one", [False, True])
def test_states_agree_with_the_cache_of_transformers(oracle: Oracle, folder: Path, one_by_one: bool) -> None:
    tokens = prompt(8, 70)
    fold = oracle.fold()
    fold.extend(tokens)
    assert_same(fold.state(), foreign_replay(folder, tokens, one_by_one=one_by_one).state, 1e-5)


def test_extending_equals_pushing(oracle: Oracle) -> None:
    tokens = prompt(1, 40)
    replay = oracle.fold().extend(tokens, keep_states_at=range(1, len(tokens) + 1))
    fold = oracle.fold()
    for t, token in enumerate(tokens):
        position = fold.push(token)
        assert off(replay.logits[t], position.logits) < 1e-12
        assert off(replay.hidden[t], position.hidden) < 1e-12
        assert (replay.routing[t] == position.routing).all()
        assert np.allclose(replay.router_gap[t], position.router_gap, rtol=0, atol=1e-12)
        assert_same(replay.states[fold.count], fold.state(), 1e-12)


@pytest.mark.parametrize("cut", [1, 2, 3, 17, 39])
def test_memory_does_not_depend_on_where_a_prompt_is_cut(oracle: Oracle, cut: int) -> None:
    tokens = prompt(2, 40)
    whole, parts = oracle.fold(), oracle.fold()
    expected = whole.extend(tokens, {cut}).states[cut]
    parts.extend(tokens[:cut])
    assert_same(parts.state(), expected, 1e-12)
    parts.extend(tokens[cut:])
    assert_same(parts.state(), whole.state(), 1e-12)
    assert off(parts.push(7).logits, whole.push(7).logits) < 1e-12


def test_a_request_begins_with_an_empty_memory(oracle: Oracle) -> None:
    fold, config = oracle.fold(), oracle.config
    state = fold.state()
    assert fold.count == 0
    assert state.conv.shape == (len(config.linear_layers), config.conv_width - 1, config.conv_channels)
    assert state.recurrent.shape == (3, config.value_heads, config.value_dim, config.key_dim)
    assert not state.conv.any()
    assert not state.recurrent.any()
    assert not fold.extend([5], {0}).states[0].recurrent.any()


def test_convolution_history_moves_by_one_line_per_token(oracle: Oracle) -> None:
    fold = oracle.fold()
    fold.extend(prompt(3, 10))
    before = fold.state().conv
    fold.push(11)
    after = fold.state().conv
    assert (after[:, :-1] == before[:, 1:]).all()
    assert (after[:, -1] != before[:, -1]).any(axis=-1).all()


def test_copies_and_reported_states_stay_as_they_were(oracle: Oracle) -> None:
    fold = oracle.fold()
    fold.extend(prompt(4, 12))
    state, copy = fold.state(), fold.copy()
    expected = fold.push(3)
    fold.push(4)
    assert_same(copy.state(), state, 0)
    state.recurrent[:] = np.nan
    state.conv[:] = np.nan
    assert (copy.push(3).logits == expected.logits).all()
    assert (fold.count, copy.count) == (14, 13)


def test_a_state_that_lags_one_token_shows_in_the_logits(oracle: Oracle) -> None:
    tokens = prompt(5, 32)
    fold = oracle.fold()
    states = fold.extend(tokens, {31, 32}).states
    expected = fold.copy().push(9).logits
    assert (fold.with_state(states[32]).push(9).logits == expected).all()
    lagging = fold.with_state(states[31])
    assert lagging.count == fold.count
    assert off(lagging.push(9).logits, expected) > 1e-3


def test_routing_and_its_gap_agree_with_transformers(oracle: Oracle, folder: Path) -> None:
    tokens = prompt(6, 40)
    replay, router = oracle.fold().extend(tokens), foreign_replay(folder, tokens).router
    ranked, order = np.sort(router)[..., ::-1], np.argsort(-router)
    top_k = oracle.config.top_k
    assert replay.routing.shape == (40, oracle.config.num_layers, top_k)
    clear = np.diff(-ranked)[..., :top_k].min(axis=-1) > 1e-4
    assert clear.mean() > 0.9
    assert (replay.routing[clear] == order[..., :top_k][clear]).all()
    np.testing.assert_allclose(
        replay.router_gap, ranked[..., top_k - 1] - ranked[..., top_k], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("token", [-1, 1024])
def test_tokens_outside_the_vocabulary_are_refused(oracle: Oracle, token: int) -> None:
    fold = oracle.fold()
    with pytest.raises(ScenarioError, match=f"token {token} at index 1"):
        fold.extend([5, token])
    assert fold.count == 0


def test_a_state_is_only_reported_at_counts_that_are_passed(oracle: Oracle) -> None:
    with pytest.raises(ValueError, match="goes from 0 to 2"):
        oracle.fold().extend([5, 6], {3})


def test_shards_and_stacked_experts_are_read_alike(oracle: Oracle, folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    for mlp in [f"model.layers.{i}.mlp" for i in range(4)] + ["mtp.layers.0.mlp"]:
        gate, up, down = (
            torch.stack([tensors.pop(f"{mlp}.experts.{e}.{part}_proj.weight") for e in range(8)])
            for part in ("gate", "up", "down")
        )
        tensors[f"{mlp}.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
        tensors[f"{mlp}.experts.down_proj"] = down
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[::2]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({name: tensors[name] for name in names[1::2]}, tmp_path / "model-00002-of-00002.safetensors")
    shutil.copy(folder / "config.json", tmp_path)
    tokens = prompt(7, 10)
    again = Oracle.load(tmp_path)
    assert (again.fold().extend(tokens).logits == oracle.fold().extend(tokens).logits).all()
    assert again.weights.mtp is not None


def test_a_folder_that_is_no_checkpoint_is_named_in_the_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        Oracle.load(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for change, complaint in [
        ({"model_type": "llama"}, "'llama'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_type"),
        ({"mlp_only_layers": [1]}, "mlp_only_layers"),
        ({}, r"no tensor 'model\.embed_tokens\.weight'"),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=complaint):
            Oracle.load(tmp_path)
    del config["linear_num_key_heads"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="linear_num_key_heads"):
        Oracle.load(tmp_path)
