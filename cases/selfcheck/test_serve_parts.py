"""Parts of the server that sockets would only blur: text that comes in pieces, calls inside it, log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import LONG, MODEL, Server, serving

from harness.engine.grammars import Vocabulary
from harness.serve.logprobs import logprobs_of
from harness.serve.text import AnswerText, Texts
from harness.serve.tools import CALL_BEGIN, CALL_END, CallReader


@pytest.fixture(scope="module")
def texts(peaked: Path) -> Texts:
    return Texts(peaked, Vocabulary.load(peaked))


def spoken(texts: Texts, steps: list[tuple[int, ...]], stops: list[str], reason: str) -> list[str]:
    answer = AnswerText(texts, stops)
    return [answer.feed(step, None) for step in steps[:-1]] + [answer.feed(steps[-1], reason)]


def test_characters_come_whole_though_their_bytes_come_one_by_one(texts: Texts) -> None:
    tokens = texts.encode("né ⟨x⟩")
    said = spoken(texts, [(token,) for token in tokens], [], "length")
    assert "".join(said) == "né ⟨x⟩" == texts.decode(tokens)
    assert "�" not in "".join(said)
    cut_short = spoken(texts, [(token,) for token in texts.encode("é")[:1]], [], "length")
    assert cut_short == ["�"]


def test_what_may_be_a_stop_is_held_back_and_a_late_stop_is_not_hidden(texts: Texts) -> None:
    steps = [(token,) for token in texts.encode("abc123xyz")]
    end = next(
        i for i in range(len(steps)) if "123" in texts.decode(t for step in steps[: i + 1] for t in step)
    )
    said = spoken(texts, steps[: end + 1], ["123", "?"], "stop")
    assert "".join(said) == "abc"
    assert all("1" not in each for each in said)
    late = spoken(
        texts, steps, ["123", "?"], "stop"
    )  # the engine went on: whoever reads the answer must see it
    assert "".join(late) == "abc123xyz"
    (run,) = spoken(texts, [texts.encode("abc123xyz")], ["123"], "stop")  # late inside an accepted run
    assert run == "abc123xyz"
    assert "".join(spoken(texts, steps[: end + 1], ["123"], "length")).startswith("abc123")


def test_special_tokens_have_names_and_no_text(texts: Texts) -> None:
    (end,) = texts.encode("<|im_end|>")
    assert texts.name(end) == "<|im_end|>"
    assert texts.decode([end]) == ""


CALLED = CALL_BEGIN.format(name="f") + '{"a": "</tool_call>}"}' + CALL_END


def test_calls_are_read_however_the_text_is_cut() -> None:
    text = "so: " + CALLED + " and <tool" + CALLED + "<tool_call>\nnone" + CALL_END + "<tool_call> left"
    for cuts in combinations(range(0, len(text), 7), 2):
        reader = CallReader()
        parts = [
            reader.feed(text[a:b], last=False) for a, b in zip((0, *cuts), (*cuts, len(text)), strict=True)
        ]
        parts.append(reader.feed("", last=True))
        said = "".join(part for part, _ in parts)
        assert said == "so:  and <tool<tool_call>\nnone" + CALL_END + "<tool_call> left"
        calls = [call for _, each in parts for call in each]
        assert [(call.name, call.arguments) for call in calls] == [("f", '{"a": "</tool_call>}"}')] * 2
        assert calls[0].id != calls[1].id


def test_logprobs_have_ranks_and_the_best_beside_them() -> None:
    laws = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25]])
    first, second = logprobs_of(laws.log() + 7, [2, 0], 2)
    assert (first.token, first.rank) == (2, 2)
    assert first.logprob == pytest.approx(float(laws[0, 2].log()), abs=1e-6)
    assert [token for token, _ in first.best] == [1, 2]
    assert (second.token, second.rank) == (0, 1)
    (alone,) = logprobs_of(laws.log(), [2], 0)
    assert alone.best == ()
    assert alone.with_best == {2: alone.logprob}


@pytest.fixture(scope="module")
def server(peaked: Path) -> Iterator[Server]:
    with serving(peaked, max_num_batched_tokens=16, max_num_seqs=2, prefix_caching=True) as running:
        yield running


def test_a_prompt_is_scored_once_though_it_is_fed_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice preempted, in its prompt and in its answer; and the prefix cache would have had most of it."""
    asked: dict[str, Any] = {"max_tokens": 12, "logprobs": 0, "prompt_logprobs": 1, **LONG}
    alone = server.complete("The river " * 20, **asked)
    scheduler = server.service.engine.scheduler
    plan = scheduler.plan

    def preempting() -> list[Any]:
        for request in list(scheduler.running):
            in_prompt = request.epoch == 0 and 0 < request.num_computed < len(request.prompt)
            if in_prompt or (request.epoch == 1 and request.num_generated > 4):
                scheduler.preempt(request)
        return plan()

    monkeypatch.setattr(scheduler, "plan", preempting)
    again = server.complete("The river " * 20, **asked)
    assert server.service.engine.counters["preemptions"] == 2
    assert again["token_ids"] == alone["token_ids"]
    places = zip(again["prompt_logprobs"], alone["prompt_logprobs"], strict=True)
    for ours, theirs in list(places)[1:]:
        assert ours.keys() == theirs.keys()
        for token, place in ours.items():
            assert place["logprob"] == pytest.approx(theirs[token]["logprob"], abs=1e-3)
    assert len(again["prompt_logprobs"]) == len(again["prompt_token_ids"])


def test_prompts_are_scored_in_company_as_alone(server: Server) -> None:
    bodies = [
        {
            "model": MODEL,
            "prompt": [*range(40 + i, 60 + 3 * i)],
            "max_tokens": 4,
            "prompt_logprobs": 0,
            "temperature": 0,
        }
        for i in range(4)
    ]

    def scored(body: dict[str, Any]) -> list[Any]:
        places = server.post("/v1/completions", body).json()["choices"][0]["prompt_logprobs"]
        return [place["logprob"] for each in places[1:] for place in each.values()]

    alone = [scored(body) for body in bodies]
    with ThreadPoolExecutor(max_workers=4) as company:
        for ours, theirs in zip(company.map(scored, bodies), alone, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-3)
