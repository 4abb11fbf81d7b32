"""Any Qwen3-Next folder runs: other sizes, other layouts, other dtypes than the tiny model's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from harness import Grammar, Request, Scenario, Trace
from harness.check.distance import conv_error, logits_error, recurrent_error
from harness.check.reference import Reference, ReferenceBook, accepted_counts
from harness.engine.config import EngineConfig
from harness.engine.engine import Engine
from harness.engine.grammars import Vocabulary
from harness.engine.guided import Grammars
from harness.engine.kernels import NaiveKernels
from harness.engine.linear_layer import LinearLayer
from harness.engine.loader import Loader
from harness.engine.policy import POLICY
from harness.engine.request import EngineRequest
from harness.errors import ModelError, UsageError
from harness.oracle.foreign import foreign_logits
from harness.oracle.model import Oracle
from harness.targets.embedded import EmbeddedTarget

VOCAB = 1051  # not a multiple of 32: the last word of a mask is not full
FEW = 16
"""Ids that are ever written, by prompts and by models: so prompt lookup finds something."""
FLOAT32 = 1e-5
BFLOAT16 = 0.03

FOLDERS: dict[str, dict[str, Any]] = {
    "HV/H 4, one module per expert, in shards, no head": {"ratio": 4, "shards": True, "head": False},
    "HV/H 4, stacked experts, head": {"ratio": 4, "stacked": True},
    "HV/H 1, one module per expert, in shards, head": {"ratio": 1, "shards": True},
    "HV/H 1, stacked experts, in shards, no head": {
        "ratio": 1,
        "stacked": True,
        "shards": True,
        "head": False,
    },
}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, peaked: Path) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("folder")
            save(made[name], peaked, **FOLDERS[name])
        return made[name]

    return build


def save(
    folder: Path,
    tokenizer: Path,
    *,
    ratio: int,
    stacked: bool = False,
    shards: bool = False,
    head: bool = True,
) -> None:
    """A random model as transformers 5 writes it, in bfloat16, beside the tiny model's tokenizer."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(
        vocab_size=VOCAB,
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=8,  # 6 linear, 2 full
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=2 * ratio,
        linear_key_head_dim=16,
        linear_value_head_dim=24,
        linear_conv_kernel_dim=4,
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=56,
        rope_theta=1e6,
        initializer_range=0.1,
        tie_word_embeddings=False,
        max_position_embeddings=2048,
        eos_token_id=json.loads((tokenizer / "config.json").read_text())["eos_token_id"],
    )
    model = Qwen3NextForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:  # norms and gates are initialised to constants
                weight += 0.2 * torch.randn_like(weight)
        model.model.embed_tokens.weight *= 30  # as in a trained model, no layer drowns the residual stream
        model.lm_head.weight[FEW:] *= 0.1
    size = "1MB" if shards else "1GB"
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=size, save_original_format=not stacked)
    shutil.copy(tokenizer / "tokenizer.json", folder)
    if head:
        add_head(folder)


def add_head(folder: Path) -> None:
    """An MTP head: the layer of a full-attention block under other names, and what is the head's alone."""
    files = sorted(folder.glob("*.safetensors"))
    tensors = {name: tensor for path in files for name, tensor in load_file(path).items()}
    hidden = tensors["model.norm.weight"].shape[0]
    own = {
        name.replace("model.layers.3.", "mtp.layers.0."): tensor.roll(1, 0).contiguous()
        for name, tensor in tensors.items()
        if name.startswith("model.layers.3.")
    }
    own["mtp.fc.weight"] = (0.1 * torch.randn(hidden, 2 * hidden)).bfloat16()
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        own[f"mtp.{name}.weight"] = (0.2 * torch.randn(hidden)).bfloat16()
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        save_file({**tensors, **own}, folder / "model.safetensors")
        return
    save_file(own, folder / "mtp.safetensors")
    content = json.loads(index.read_text())
    content["weight_map"] |= dict.fromkeys(own, "mtp.safetensors")
    index.write_text(json.dumps(content))


def prompt(seed: int, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, FEW, length).tolist())


def scenario(**settings: Any) -> Scenario:
    """Three requests whose prompts come in pieces of at most 16 tokens."""
    requests = (
        Request(id="r0", prompt=prompt(0, 81), max_tokens=12, ignore_eos=True),
        Request(id="r1", prompt=prompt(1, 1), max_tokens=16, ignore_eos=True),
        Request(id="r2", prompt=prompt(2, 60), max_tokens=14, ignore_eos=True),
    )
    return Scenario(
        name="any folder", requests=requests, **{"token_budget": 16, "drafter": "ngram", **settings}
    )


def answers(trace: Trace) -> dict[str, tuple[int, ...]]:
    assert trace.crash is None, trace.crash
    return {name: completion.tokens for name, completion in trace.completions.items()}


def largest_errors(oracle: Oracle, scenario: Scenario, trace: Trace) -> dict[str, float]:
    """Relative RMS against the oracle: the worst layer, head and position of the whole run."""
    reference = Reference(ReferenceBook(oracle), scenario, trace)
    worst = {"conv": 0.0, "recurrent": 0.0, "logits": 0.0}
    for row in (row for step in trace.steps for row in step.rows):
        assert row.state is not None
        replay, counts = reference.replay(row.request), accepted_counts(row)
        expected = replay.states[row.state.tokens_included]
        worst["conv"] = max(worst["conv"], conv_error(row.state.conv, expected.conv).max())
        worst["recurrent"] = max(
            worst["recurrent"], recurrent_error(row.state.recurrent, expected.recurrent).max()
        )
        if row.logits is not None and counts:
            logits = replay.logits[[count - 1 for count in counts]]
            worst["logits"] = max(worst["logits"], logits_error(row.logits[: len(counts)], logits).max())
    return worst


@pytest.mark.parametrize("name", FOLDERS)
class TestEveryFolder:
    def test_states_and_logits_agree_with_the_oracle(self, build: Callable[[str], Path], name: str) -> None:
        folder = build(name)
        work = scenario(drafter="mtp" if FOLDERS[name].get("head", True) else "ngram")
        trace = EmbeddedTarget(loader=Loader(folder), policy=POLICY).run(work)
        assert any(row.kept for step in trace.steps for row in step.rows), "nothing was drafted"
        assert {len(tokens) for tokens in answers(trace).values()} == {12, 14, 16}
        errors = largest_errors(Oracle.load(folder), work, trace)
        print("relative RMS", errors)
        assert max(errors.values()) <= FLOAT32, errors

    def test_greedy_tokens_are_those_of_transformers(self, build: Callable[[str], Path], name: str) -> None:
        folder = build(name)
        work = scenario()
        trace = EmbeddedTarget(loader=Loader(folder), policy=POLICY).run(work)
        clear = 0
        for request in work.requests:
            tokens = answers(trace)[request.id]
            logits = foreign_logits(folder, [*request.prompt, *tokens])[len(request.prompt) - 1 : -1]
            for token, row in zip(tokens, logits, strict=True):
                second, first = np.sort(row)[-2:]
                if first - second > 1e-4 * np.abs(row).max():
                    clear += 1
                    assert token == row.argmax()
        assert clear >= 40


def test_both_layouts_of_experts_are_really_there(build: Callable[[str], Path]) -> None:
    stacked = Loader(build("HV/H 4, stacked experts, head")).checkpoint.names
    single = Loader(build("HV/H 4, one module per expert, in shards, no head")).checkpoint.names
    assert "model.layers.0.mlp.experts.gate_up_proj" in stacked
    assert "model.layers.0.mlp.experts.0.gate_proj.weight" in single
    assert len(list(build("HV/H 1, stacked experts, in shards, no head").glob("*.safetensors"))) > 2


def test_masks_reach_every_column_of_an_odd_vocabulary(build: Callable[[str], Path]) -> None:
    folder = build("HV/H 4, stacked experts, head")
    guided = Request(
        id="r0", prompt=prompt(3, 5), max_tokens=12, grammar=Grammar(kind="regex", text="[a-f]{10}")
    )
    trace = EmbeddedTarget(loader=Loader(folder), policy=POLICY).run(Scenario(name="odd", requests=(guided,)))
    tokens = answers(trace)["r0"]
    assert max(tokens[:-1]) < 1024  # padded ids of the output head stand for no text
    assert trace.completions["r0"].finish_reason == "stop"
    assert tokens[-1] in Loader(folder).config.eos_ids


class TestWithoutAHead:
    @pytest.fixture
    def target(self, build: Callable[[str], Path]) -> EmbeddedTarget:
        folder = build("HV/H 4, one module per expert, in shards, no head")
        return EmbeddedTarget(loader=Loader(folder), policy=POLICY)

    def test_asking_the_mtp_drafter_is_an_error_that_names_what_would_work(
        self, target: EmbeddedTarget
    ) -> None:
        with pytest.raises(ModelError, match=r"no mtp\.\* tensors") as caught:
            target.run(scenario(drafter="mtp", k=3))
        assert "ngram" in str(caught.value)
        assert "k=0" in str(caught.value)

    def test_prompt_lookup_drafts_and_changes_no_token(self, target: EmbeddedTarget) -> None:
        drafted = target.run(scenario(drafter="ngram", k=3))
        assert sum(len(row.kept) for step in drafted.steps for row in step.rows) > 0
        assert answers(drafted) == answers(target.run(scenario(drafter="ngram", k=0)))

    def test_without_speculation_the_drafter_does_not_matter(self, target: EmbeddedTarget) -> None:
        assert len(answers(target.run(scenario(drafter="mtp", k=0)))) == 3


def test_an_unknown_drafter_is_an_error_that_names_the_others(peaked: Path) -> None:
    with pytest.raises(UsageError, match="saw drafter 'medusa', expected one of mtp, ngram"):
        engine(Loader(peaked), EngineConfig(drafter="medusa"))


def test_a_head_of_two_layers_is_refused(build: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(build("HV/H 4, stacked experts, head"), tmp_path / "two")
    tensors = load_file(folder / "model.safetensors")
    second = {
        name.replace("mtp.layers.0.", "mtp.layers.1."): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith("mtp.layers.0.")
    }
    save_file({**tensors, **second}, folder / "model.safetensors")
    with pytest.raises(ModelError, match="2 layers"):
        engine(Loader(folder), EngineConfig())


@pytest.mark.parametrize("length", [0, 16, 40])
def test_a_prompt_that_leaves_no_room_is_refused_when_it_is_added(peaked: Path, length: int) -> None:
    running = engine(Loader(peaked), EngineConfig(max_model_len=16))
    with pytest.raises(UsageError, match=f"saw a prompt of {length} tokens, expected 1 to 15"):
        running.add(EngineRequest(id="r0", prompt=prompt(0, length), max_tokens=4))
    assert running.scheduler.is_idle


def engine(loader: Loader, config: EngineConfig) -> Engine:
    parts = (config, POLICY, NaiveKernels())
    return Engine(loader.model(*parts), loader.head(*parts), Grammars(loader.vocabulary), config, POLICY)


class TestBfloat16:
    CONFIG = EngineConfig(k=3, token_budget=16, dtype=torch.bfloat16, drafter="mtp")

    @pytest.fixture(
        params=["HV/H 4, stacked experts, head", "HV/H 1, one module per expert, in shards, head"]
    )
    def folder(self, request: pytest.FixtureRequest, build: Callable[[str], Path]) -> Path:
        return build(request.param)

    def test_weights_and_caches_are_bfloat16_and_gates_and_states_are_not(self, folder: Path) -> None:
        model = engine(Loader(folder), self.CONFIG).model
        assert model.embedding.dtype == model.lm_head.dtype == torch.bfloat16
        for layer in model.linear_layers.values():
            assert layer.weights.in_proj_qkv.dtype == layer.cache.conv.dtype == torch.bfloat16
            assert layer.weights.A_log.dtype == layer.weights.dt_bias.dtype == torch.float32
            assert layer.cache.recurrent.dtype == torch.float32

    def test_logits_and_states_are_within_its_noise(self, folder: Path) -> None:
        running = engine(Loader(folder), self.CONFIG)
        requests = [
            EngineRequest(id=r.id, prompt=r.prompt, max_tokens=r.max_tokens) for r in scenario().requests
        ]
        for request in requests:
            running.add(request)
        oracle = Oracle.load(folder)
        errors: dict[str, list[float]] = {"conv": [], "recurrent": [], "logits": []}
        while step := running.step():
            for row in step.rows:
                live, tokens = running.observed(row.request), row.request.tokens[: row.request.num_computed]
                fold = oracle.fold()
                replay, state = fold.extend(tokens), fold.state()
                errors["conv"] += conv_error(live.conv.float().numpy(), state.conv).tolist()
                errors["recurrent"] += (
                    recurrent_error(live.recurrent.numpy(), state.recurrent).ravel().tolist()
                )
                if row.logits is not None:
                    last = row.logits[max(len(row.committed), 1) - 1].numpy()
                    errors["logits"].append(float(logits_error(last[None], replay.logits[-1:])[0]))
        medians = {name: float(np.median(values)) for name, values in errors.items()}
        print("median relative RMS in bfloat16", medians)
        assert all(request.num_generated == request.max_tokens for request in requests)
        assert min(medians.values()) > 1e-4, "this was not computed in bfloat16"
        assert max(medians.values()) < BFLOAT16, medians

    def test_one_loader_serves_engines_of_both_dtypes(self, folder: Path) -> None:
        loader = Loader(folder)
        narrow = engine(loader, self.CONFIG).model
        wide = engine(loader, replace(self.CONFIG, dtype=torch.float32)).model
        assert (narrow.embedding.dtype, wide.embedding.dtype) == (torch.bfloat16, torch.float32)
        assert narrow.blocks[0].moe.gate_up.dtype == torch.bfloat16
        assert wide.blocks[0].moe.gate_up.dtype == torch.float32
        assert isinstance(wide.blocks[0].mixer, LinearLayer)


def test_tied_embeddings_are_refused_by_name(build: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(build("HV/H 4, stacked experts, head"), tmp_path / "tied")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(ModelError, match="tie_word_embeddings"):
        Loader(folder)


def test_the_vocabulary_is_as_wide_as_the_logits(build: Callable[[str], Path]) -> None:
    vocabulary = Vocabulary.load(build("HV/H 4, stacked experts, head"))
    assert (vocabulary.size, vocabulary.words) == (VOCAB, 33)
