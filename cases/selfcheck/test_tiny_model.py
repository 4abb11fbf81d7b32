"""The tiny model is what other tests take it for: same bytes anywhere, memory that matters, a drafter that listens."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xgrammar
from torch.nn.functional import softplus

from harness.errors import ModelError
from harness.models import tokenizer as shipped
from harness.models.checkpoint import Checkpoint
from harness.models.tiny import build, default_cache, ensure

PINNED = {
    "peaked": "90433434f8aebf81026f5c508b6cc91dc6db65416f1671725daf86f142e31ee8",
    "flat": "8fb321d40af5d5e725b14f5014b98d28582f94dfd137bad23479e419fb1e3773",
}
PROMPTS = (
    "The green garden follows the",
    "Write a short story about the river.",
    "Every small window opens",
    "Hello, how are you today?",
    "What is the color of the sky",
    "List three facts about the moon",
    "1 2 3 4",
    "Once upon a time there was a",
)
WORD = {"type": "string", "maxLength": 12}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"name": WORD, "age": {"type": "integer"}, "city": WORD},
    {"sentiment": {"enum": ["positive", "negative", "neutral"]}, "score": {"type": "integer"}},
    {"tags": {"type": "array", "items": WORD, "minItems": 2, "maxItems": 3}, "ok": {"type": "boolean"}},
    {"title": WORD, "price": {"type": "number"}, "available": {"type": "boolean"}, "color": WORD},
)
TOKENS = 48
QUESTION = "<|im_start|>user\nReturn a JSON object for the city<|im_end|>\n<|im_start|>assistant\n"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A greedy generation: all tokens, how many of them are prompt, and what the model thought at each."""

    tokens: list[int]
    prompt: int
    hidden: torch.Tensor  # [len(tokens), hidden], after the final norm
    gaps: list[float]  # between the best and the second-best logit, one per generated token

    @property
    def said(self) -> list[int]:
        return self.tokens[self.prompt :]


class Model:
    """The folder as transformers runs it, in float32, with an MTP head put together from transformers' own layers."""

    def __init__(self, folder: Path) -> None:
        from transformers import Qwen3NextForCausalLM
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen

        self.target, self.loading = Qwen3NextForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
        self.checkpoint = Checkpoint.open(folder)
        self.vocabulary = shipped.load()
        config = self.target.config
        self._layer = qwen.Qwen3NextDecoderLayer(config, config.layer_types.index("full_attention"))
        prefix = "mtp.layers.0."
        gate_up, down = self.checkpoint.experts(prefix + "mlp.")
        weights = {"mlp.experts.gate_up_proj": gate_up, "mlp.experts.down_proj": down}
        for name in self.checkpoint.names:
            if name.startswith(prefix) and ".experts." not in name:
                weights[name.removeprefix(prefix)] = self.checkpoint.tensor(name)
        self._layer.load_state_dict(weights)

    def step(self, tokens: list[int], cache: Any = None) -> tuple[torch.Tensor, Any]:
        """Hidden states [len(tokens), hidden] of new tokens, and the cache that now includes them."""
        with torch.no_grad():
            output = self.target.model(torch.tensor([tokens]), past_key_values=cache, use_cache=True)
        return output.last_hidden_state[0], output.past_key_values

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.target.lm_head(hidden)[..., : shipped.SIZE]

    def answer(
        self, text: str, *, tokens: int = TOKENS, matcher: xgrammar.GrammarMatcher | None = None
    ) -> Answer:
        """Greedy, until the end of turn or so many tokens; a matcher masks the logits."""
        ids = self.vocabulary.encode(text).ids
        said: list[int] = []
        gaps = []
        hidden, cache = self.step(ids)
        seen = [hidden]
        while len(said) < tokens and (not said or said[-1] not in self.checkpoint.config.eos_ids):
            logits = self.logits(hidden[-1:])
            if matcher is not None:
                mask = xgrammar.allocate_token_bitmask(1, shipped.SIZE)
                matcher.fill_next_token_bitmask(mask)
                xgrammar.apply_token_bitmask_inplace(logits, mask)
            best = logits[0].topk(2)
            said.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
            if matcher is not None:
                assert matcher.accept_token(said[-1])
            hidden, cache = self.step(said[-1:], cache)
            seen.append(hidden)
        return Answer(tokens=ids + said, prompt=len(ids), hidden=torch.cat(seen), gaps=gaps)

    @torch.no_grad()
    def drafts(self, answer: Answer, *, deaf: bool = False) -> list[int]:
        """The first draft for every generated token but the first one; ``deaf`` takes the hidden state away."""
        norm = self._norm
        embedded = norm(
            "mtp.pre_fc_norm_embedding", self.target.model.embed_tokens(torch.tensor(answer.tokens[1:-1]))
        )
        heard = norm("mtp.pre_fc_norm_hidden", answer.hidden[: len(embedded)]) * (not deaf)
        x = torch.cat([embedded, heard], dim=-1) @ self.checkpoint.tensor("mtp.fc.weight").float().T
        positions = torch.arange(len(x))[None]
        causal = torch.full((len(x), len(x)), -math.inf).triu(1)[None, None]
        x = self._layer(x[None], self.target.model.rotary_emb(x, positions), attention_mask=causal)[0]
        drafted = self.logits(norm("mtp.norm", x)).argmax(-1).tolist()
        return drafted[answer.prompt - 1 :]

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.checkpoint.config.rms_eps)
        return unit * (1 + self.checkpoint.tensor(name + ".weight").float())


@pytest.fixture(scope="module")
def model(peaked: Path) -> Model:
    return Model(peaked)


@pytest.fixture(scope="module")
def answers(model: Model) -> list[Answer]:
    return [model.answer(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def grammars() -> list[xgrammar.CompiledGrammar]:
    ids = shipped.load().get_vocab()
    info = xgrammar.TokenizerInfo(
        sorted(ids, key=ids.__getitem__),
        xgrammar.VocabType.BYTE_LEVEL,
        vocab_size=shipped.SIZE,
        stop_token_ids=[ids[shipped.IM_END]],
        add_prefix_space=False,
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    return [
        compiler.compile_json_schema(
            json.dumps({"type": "object", "properties": properties, "required": [*properties]}),
            any_whitespace=False,
        )
        for properties in SCHEMAS
    ]


@pytest.fixture(scope="module")
def guided(model: Model, grammars: list[xgrammar.CompiledGrammar]) -> list[Answer]:
    return [
        model.answer(
            QUESTION, tokens=80, matcher=xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=False)
        )
        for grammar in grammars
    ]


def digest(folder: Path) -> str:
    """Over the tensors' values in the order of their names, so that the file's layout does not matter."""
    checkpoint = Checkpoint.open(folder)
    total = hashlib.sha256()
    for name in checkpoint.names:
        total.update(name.encode() + checkpoint.array(name).astype("<f4").tobytes())
    return total.hexdigest()


def hits(model: Model, answer: Answer) -> list[bool]:
    return [draft == token for draft, token in zip(model.drafts(answer), answer.said[1:], strict=True)]


@pytest.mark.parametrize("preset", PINNED)
def test_a_seed_gives_the_same_bytes_anywhere(models: Path, preset: str) -> None:
    assert digest(ensure(preset, 0, models)) == PINNED[preset]


def test_another_seed_gives_another_model(tmp_path: Path) -> None:
    assert digest(build(tmp_path, seed=1)) not in PINNED.values()


def test_every_value_is_exact_in_bfloat16(peaked: Path) -> None:
    checkpoint = Checkpoint.open(peaked)
    for name in checkpoint.names:
        value = checkpoint.tensor(name).float()
        assert torch.equal(value.bfloat16().float(), value), name
        assert value.isfinite().all(), name


def test_transformers_finds_every_weight_and_ignores_only_the_mtp_head(model: Model) -> None:
    assert not model.loading["missing_keys"]
    assert not model.loading["mismatched_keys"]
    assert all(name.startswith("mtp.") for name in model.loading["unexpected_keys"])


def test_chat_template_and_stop_tokens_reach_transformers(peaked: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(peaked)
    message = [{"role": "user", "content": "Return a JSON object for the city"}]
    ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids == shipped.load().encode(QUESTION).ids
    assert tokenizer.eos_token_id == Checkpoint.open(peaked).config.eos_ids[0]


def test_every_recurrent_layer_forgets_within_4_tokens_within_48_and_not_within_256(model: Model) -> None:
    config = model.checkpoint.config
    gates: dict[int, list[torch.Tensor]] = {index: [] for index in config.linear_layers}

    def recorder(index: int) -> Callable[..., None]:
        return lambda _module, _inputs, output: gates[index].append(output[0])

    layers = {index: model.target.model.layers[index].linear_attn for index in gates}
    hooks = [layer.in_proj_ba.register_forward_hook(recorder(index)) for index, layer in layers.items()]
    for prompt in PROMPTS:
        model.answer(prompt, tokens=16)
    for hook in hooks:
        hook.remove()
    for index, layer in layers.items():
        # Rows are grouped per key head: b of its value heads, then a of its value heads.
        a = torch.cat(gates[index]).unflatten(-1, (config.num_key_heads, 2, -1))[:, :, 1].flatten(1)
        rate = layer.A_log.detach().exp() * softplus(a + layer.dt_bias.detach())
        half_lives = (math.log(2) / rate).median(dim=0).values
        assert half_lives.min() <= 4
        assert ((half_lives >= 20) & (half_lives <= 48)).any()
        assert half_lives.max() >= 256


def test_winners_are_far_above_float32_noise(answers: list[Answer]) -> None:
    gaps = np.concatenate([answer.gaps for answer in answers])
    assert np.quantile(gaps, 0.01) > 1e-3
    assert np.median(gaps) > 1.0


def test_free_text_is_varied_and_rarely_stops(answers: list[Answer]) -> None:
    assert sum(len(answer.said) < TOKENS for answer in answers) <= 2
    assert np.median([len(set(answer.said)) for answer in answers]) >= 20


def test_guided_answers_end_by_themselves_and_parse(model: Model, guided: list[Answer]) -> None:
    for answer, properties in zip(guided, SCHEMAS, strict=True):
        assert answer.said[-1] in model.checkpoint.config.eos_ids
        assert {*json.loads(model.vocabulary.decode(answer.said))} == {*properties}


def test_most_first_drafts_are_accepted_in_free_text(model: Model, answers: list[Answer]) -> None:
    assert np.mean([hit for answer in answers for hit in hits(model, answer)]) >= 0.6


def test_two_of_five_first_drafts_are_accepted_under_a_grammar(model: Model, guided: list[Answer]) -> None:
    assert np.mean([hit for answer in guided for hit in hits(model, answer)]) >= 0.4


def test_the_drafter_listens_to_the_hidden_state(model: Model, answers: list[Answer]) -> None:
    changed = [
        heard != deaf
        for answer in answers
        for heard, deaf in zip(model.drafts(answer), model.drafts(answer, deaf=True), strict=True)
    ]
    assert np.mean(changed) >= 0.2


def test_a_recurrent_state_that_lags_two_tokens_changes_tokens(model: Model, answers: list[Answer]) -> None:
    """One roll-back too far at a random-looking place, then 60 tokens as if nothing had happened."""
    changes = [list(lagging(model, answer.tokens[: answer.prompt + 20])) for answer in answers]
    assert sum(any(changed) for changed in changes) >= len(changes) / 2
    assert 0.01 <= np.mean(changes) <= 0.15


def lagging(model: Model, tokens: list[int], *, lag: int = 2, steps: int = 60) -> Iterator[bool]:
    """Whether each next token would be another one if the recurrent states missed the last ``lag`` tokens."""
    _, cache = model.step(tokens[:-lag])
    states = [copy.deepcopy(getattr(layer, "recurrent_states", None)) for layer in cache.layers]
    hidden, cache = model.step(tokens[-lag:], cache)
    suspect = copy.deepcopy(cache)
    for layer, state in zip(suspect.layers, states, strict=True):
        if state is not None:
            layer.recurrent_states[0].copy_(state[0])
    token = int(model.logits(hidden[-1]).argmax())
    for _ in range(steps):
        hidden, cache = model.step([token], cache)
        stale, suspect = model.step([token], suspect)
        token = int(model.logits(hidden[-1]).argmax())
        yield token != int(model.logits(stale[-1]).argmax())


def test_the_flat_model_is_hard_to_draft_for(flat: Path) -> None:
    model = Model(flat)
    answers = [model.answer(prompt, tokens=24) for prompt in PROMPTS[:4]]
    assert np.mean([hit for answer in answers for hit in hits(model, answer)]) <= 0.4
    assert np.median(np.concatenate([answer.gaps for answer in answers])) < 0.6


def test_racing_builders_share_one_model(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        folders = [*pool.map(lambda _: ensure("peaked", 0, tmp_path), range(3))]
    assert [*tmp_path.iterdir()] == [folders[0]] == [*{*folders}]
    assert digest(folders[0]) == PINNED["peaked"]


def test_a_kept_model_is_not_built_again(tmp_path: Path) -> None:
    weights = ensure("peaked", 0, tmp_path) / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert ensure("peaked", 0, tmp_path) / "model.safetensors" == weights
    assert weights.stat().st_mtime_ns == before


def test_an_unknown_preset_is_named_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'steep'.*flat, narrow, peaked"):
        ensure("steep", 0, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_damaged_cache_entry_is_reported_with_what_to_remove(tmp_path: Path) -> None:
    (ensure("peaked", 0, tmp_path) / "config.json").unlink()
    with pytest.raises(ModelError, match="remove"):
        ensure("peaked", 0, tmp_path)


def test_a_cache_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ModelError, match="cannot keep the model at"):
        ensure("peaked", 0, tmp_path / "cache")


def test_the_cache_is_where_the_environment_says() -> None:
    assert default_cache({"XDG_CACHE_HOME": "elsewhere"}) == Path("elsewhere/specharness/models")
    assert default_cache() == Path.home() / ".cache" / "specharness" / "models"


def test_every_byte_and_every_digit_is_a_token() -> None:
    tokenizer = shipped.load()
    text = "".join(chr(code) for code in range(1, 0x250)) + "\N{SNOWMAN}" * 2 + " 1234567890"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert [tokenizer.decode([i]) for i in ids[-10:]] == list("1234567890")


def test_the_shipped_tokenizer_is_the_one_that_training_makes() -> None:
    assert json.loads(shipped.train().to_str()) == json.loads(shipped.load().to_str())
