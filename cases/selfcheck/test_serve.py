"""The server, from outside: the stock `openai` client, real sockets, the real engine.

Every expectation comes from an engine of the same setting that is driven directly, or from another way to ask the same.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field
from serving import LONG, MODEL, Server, serving

from harness.engine.request import EngineRequest
from harness.engine.sampler import SamplingParams
from harness.serve.server import Setting, build
from harness.serve.service import Service

PROMPTS = ("The river", "A window beside the", '{"name": "', "This cold", "The sharp captains", "Write a")


SETTING: dict[str, Any] = {"max_num_batched_tokens": 64, "max_num_seqs": 32}


@pytest.fixture(scope="module")
def server(peaked: Path) -> Iterator[Server]:
    with serving(peaked, **SETTING) as running:
        yield running
        running.wait_until_free()


@pytest.fixture(scope="module")
def direct(peaked: Path) -> Service:
    """The same engine, never started: tests drive it."""
    return build(Setting(folder=peaked, model_name=MODEL, **SETTING))


def tokens_of(direct: Service, prompt: str, max_tokens: int, **sampling: Any) -> list[int]:
    request = EngineRequest(
        id=prompt,
        prompt=direct.texts.encode(prompt),
        max_tokens=max_tokens,
        sampling=SamplingParams(**sampling),
        stop_token_ids=direct.eos_ids,
    )
    direct.engine.add(request)
    while not direct.engine.scheduler.is_idle:
        direct.engine.step()
    return request.tokens[len(request.prompt) :]


def test_answers_are_the_engines_own(server: Server, direct: Service) -> None:
    for prompt in PROMPTS[:3]:
        told = server.complete(prompt, max_tokens=24)
        assert told["token_ids"] == tokens_of(direct, prompt, 24)
        assert told["text"] == direct.texts.decode(told["token_ids"])
        assert told["prompt_token_ids"] == list(direct.texts.encode(prompt))
    drawn = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 7}
    told = server.complete(PROMPTS[0], max_tokens=24, **drawn)
    assert told["token_ids"] == tokens_of(direct, PROMPTS[0], 24, **drawn)


def test_seeds_repeat_and_no_seed_does_not(server: Server) -> None:
    def drawn(**more: Any) -> list[int]:
        ids: list[int] = server.complete("The", max_tokens=10, temperature=1.5, **LONG, **more)["token_ids"]
        return ids

    assert drawn(seed=5) == drawn(seed=5)
    assert drawn(seed=5) != drawn(seed=6)
    assert drawn() != drawn()


SETTINGS: list[dict[str, Any]] = [
    *({"temperature": value} for value in (0, 5e-324, 1e-45, 1e-6, 1e-5, 1e38, 1e39, 1.7e308)),
    *({"top_p": value} for value in (5e-324, 1e-45, 1e-30, 0.9999999999999999, 1)),
    *({"top_k": value} for value in (-1, 0, 1, 2**31)),
    *({"seed": value} for value in (-(2**63), -1, 0, 2**63 - 1)),
    {"temperature": 1.7e308, "top_p": 5e-324, "top_k": 1},
]


@pytest.mark.parametrize("extreme", SETTINGS, ids=str)
def test_extreme_settings_draw_tokens_and_kill_nobody(server: Server, extreme: dict[str, Any]) -> None:
    """A law without mass is an engine that dies, and one request is enough for it."""
    for grammar in ({}, {"structured_outputs": {"regex": "[a-c]{3,9}"}}):
        told = server.complete("x", max_tokens=6, **{"temperature": 1, **extreme}, **grammar)
        assert told["token_ids"]
        assert not grammar or re.fullmatch("[a-c]{1,9}", told["text"])
    assert server.http.get("/health").status_code == 200


def test_prompts_may_be_text_or_tokens_alone_or_in_a_list(server: Server, direct: Service) -> None:
    tokens = list(direct.texts.encode("The river"))
    answers = [
        server.complete(prompt, max_tokens=8)["token_ids"]
        for prompt in ("The river", ["The river"], tokens, [tokens])
    ]
    assert answers == [answers[0]] * 4


def test_a_stream_says_what_a_whole_answer_says(server: Server) -> None:
    client = server.client
    whole = client.completions.create(
        model=MODEL, prompt="The river", max_tokens=40, temperature=0, logprobs=2, extra_body=LONG
    )
    stream = list(
        client.completions.create(
            model=MODEL,
            prompt="The river",
            max_tokens=40,
            temperature=0,
            logprobs=2,
            extra_body=LONG,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    parts = [chunk.choices[0] for chunk in stream if chunk.choices]
    assert "".join(part.text for part in parts) == whole.choices[0].text
    assert [part.finish_reason for part in parts if part.finish_reason] == ["length"]
    assert stream[-1].choices == []
    assert stream[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 40
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    for name in ("tokens", "token_logprobs", "text_offset"):
        streamed = [each for part in parts if part.logprobs for each in getattr(part.logprobs, name)]
        assert (
            streamed == pytest.approx(getattr(logprobs, name), abs=1e-4)
            if name == "token_logprobs"
            else (streamed == getattr(logprobs, name))
        )


def test_chats_stream_too_and_the_template_is_the_models(server: Server, direct: Service) -> None:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    asked: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 20, "temperature": 0}
    client = server.client
    whole = client.chat.completions.create(**asked)
    stream = list(client.chat.completions.create(**asked, stream=True))
    assert stream[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in stream) == whole.choices[0].message.content
    rendered = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = server.post("/tokenize", {"messages": messages}).json()["tokens"]
    assert ids == list(direct.texts.encode(rendered))
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len(ids)
    assert server.complete(ids, max_tokens=20)["text"] == whole.choices[0].message.content


def test_the_asynchronous_client_works(server: Server) -> None:
    async def ask() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=True
            )
            return [chunk.choices[0].finish_reason async for chunk in stream]

    assert asyncio.run(ask())[-1] in ("length", "stop")


class Item(BaseModel):
    """What a guided answer has to be."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["pear", "plum"]
    count: int = Field(ge=0, le=99)


def test_guided_answers_are_valid(server: Server) -> None:
    messages: list[Any] = [{"role": "user", "content": "an item"}]
    client = server.client
    for seed in range(2):
        answer = client.chat.completions.parse(
            model=MODEL, messages=messages, response_format=Item, temperature=1, seed=seed
        )
        assert isinstance(answer.choices[0].message.parsed, Item)
    outputs: list[tuple[dict[str, Any], str]] = [
        ({"json": Item.model_json_schema()}, r'\{"name": "(pear|plum)", "count": \d+\}'),
        ({"json": json.dumps(Item.model_json_schema())}, r'\{"name": "(pear|plum)", "count": \d+\}'),
        ({"regex": "[a-c]{3}-[0-9]{2}"}, "[a-c]{3}-[0-9]{2}"),
        ({"choice": ["yes", "no, never"]}, "yes|no, never"),
        ({"grammar": 'root ::= "(" [x-z]+ ")"'}, r"\([x-z]+\)"),
    ]
    for asked, pattern in outputs:
        told = server.complete("x", max_tokens=200, temperature=1, seed=1, structured_outputs=asked)
        assert told["finish_reason"] == "stop", told
        assert re.fullmatch(pattern, told["text"]), told
    begun = server.complete("x", max_tokens=30, response_format={"type": "json_object"})
    assert begun["text"].startswith("{")


TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "store", "parameters": Item.model_json_schema()}},
    {"type": "function", "function": {"name": "fetch", "parameters": {"type": "object"}}},
]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "store"}}])
def test_tools_are_called_with_valid_arguments(server: Server, choice: Any) -> None:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "store one"}],
        "tools": TOOLS[:1],
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 80,
    }
    client = server.client
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == ("tool_calls" if choice == "required" else "stop")
    assert whole.message.tool_calls is not None
    (call,) = whole.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "store"
    Item.model_validate_json(call.function.arguments)
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert {call.index for call in calls} == {0}
    assert [call.function.name for call in calls if call.function and call.function.name] == ["store"]
    arguments = "".join(call.function.arguments or "" for call in calls if call.function)
    assert arguments == call.function.arguments


def test_a_stop_text_ends_the_answer_and_is_no_part_of_it(server: Server) -> None:
    whole = server.complete("The river", max_tokens=60, **LONG)["text"]
    for stop in (whole[7:12], whole[20:21], whole[12:30]):
        told = server.complete("The river", max_tokens=60, stop=["never seen", stop], **LONG)
        assert told["text"] == whole[: whole.find(stop)]
        assert told["finish_reason"] == "stop"
        stream = server.client.completions.create(
            model=MODEL,
            prompt="The river",
            max_tokens=60,
            temperature=0,
            stop=stop,
            extra_body=LONG,
            stream=True,
        )
        assert "".join(chunk.choices[0].text for chunk in stream) == told["text"]


def test_logprobs_are_those_of_the_engines_logits(server: Server, direct: Service) -> None:
    request = EngineRequest(id="l", prompt=direct.texts.encode("The river"), max_tokens=12)
    direct.engine.add(request)
    expected: list[float] = []
    while not direct.engine.scheduler.is_idle:
        for row in ((step := direct.engine.step()) and step.rows) or ():
            if row.logits is not None:
                laws = row.logits.log_softmax(-1)
                expected += [float(laws[i, token]) for i, token in enumerate(row.committed)]
    told = server.complete("The river", max_tokens=12, logprobs=20, **LONG)["logprobs"]
    assert told["token_logprobs"] == pytest.approx(expected, abs=1e-3)
    assert [max(best.values()) for best in told["top_logprobs"]] == told["token_logprobs"]
    assert server.complete("The river", max_tokens=1, logprobs=0)["logprobs"]["top_logprobs"][0].keys() == {
        told["tokens"][0]
    }


def test_a_prompts_logprobs_are_those_of_the_answer_it_was(server: Server) -> None:
    """Fed back as a prompt, an answer has the log-probabilities that it had when it was made; a prompt longer than a
    step's budget comes in pieces, and nothing is missing between them."""
    told = server.complete("The river", max_tokens=150, logprobs=1, **LONG)
    tokens = told["prompt_token_ids"] + told["token_ids"]
    scored = server.complete(tokens, max_tokens=0, echo=True, logprobs=1, prompt_logprobs=0)
    assert scored["token_ids"] == []
    logprobs = scored["logprobs"]["token_logprobs"]
    assert logprobs[0] is None
    assert len(logprobs) == len(tokens)
    assert logprobs[-150:] == pytest.approx(told["logprobs"]["token_logprobs"], abs=1e-3)
    places = zip(scored["prompt_logprobs"][1:], tokens[1:], strict=True)
    listed = [place[str(token)]["logprob"] for place, token in places]
    assert listed == logprobs[1:]


def test_an_echo_comes_before_the_answer(server: Server) -> None:
    alone = server.complete("The river", max_tokens=5, **LONG)
    echoed = server.complete("The river", max_tokens=5, echo=True, **LONG)
    assert echoed["text"] == "The river" + alone["text"]
    assert echoed["token_ids"] == alone["token_ids"]


def test_who_leaves_takes_his_request_along(server: Server) -> None:
    body = {"model": MODEL, "prompt": "The", "max_tokens": 1000, **LONG}
    stream = server.client.completions.create(
        model=MODEL, prompt="The", max_tokens=1000, extra_body=LONG, stream=True
    )
    next(iter(stream))
    assert len(server.service.engine.scheduler.running) == 1
    stream.close()
    server.wait_until_free()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=0.3)
    server.wait_until_free()


def test_a_crowd_of_streams_gets_the_answers_of_each_alone(server: Server) -> None:
    asked = [
        {
            "prompt": PROMPTS[i % 6],
            "max_tokens": 4 + i // 3,
            "temperature": (i % 3) / 2,
            "seed": i,
            "extra_body": LONG,
        }
        for i in range(30)
    ]
    asked[::4] = [
        {**one, "extra_body": {"structured_outputs": {"json": Item.model_json_schema()}}}
        for one in asked[::4]
    ]

    async def text(client: openai.AsyncOpenAI, one: dict[str, Any]) -> str:
        stream = await client.completions.create(model=MODEL, stream=True, **one)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def crowd() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(text(client, one) for one in asked))

    client = server.client
    alone = [client.completions.create(model=MODEL, **one).choices[0].text for one in asked]
    assert asyncio.run(crowd()) == alone


def test_metrics_add_up(server: Server) -> None:
    def metric(name: str) -> float:
        text = server.http.get("/metrics").text
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"vllm:{name}{{")
        )

    names = (
        "prompt_tokens_total",
        "generation_tokens_total",
        "request_success_total",
        "time_to_first_token_seconds_count",
        "e2e_request_latency_seconds_count",
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total",
    )
    before = {name: metric(name) for name in names}
    told = server.complete("The river", max_tokens=30, **LONG)
    grown = {name: metric(name) - before[name] for name in names}
    assert grown["prompt_tokens_total"] == len(told["prompt_token_ids"])
    assert grown["generation_tokens_total"] == 30
    assert [grown[name] for name in names[2:5]] == [1, 1, 1]
    drafts, proposed, accepted, by_place = (grown[name] for name in names[5:])
    assert (
        drafts + accepted == 29
    )  # every verify row gives one token more than it accepts; the first is the prompt's
    assert 0 < accepted == by_place <= proposed <= 3 * drafts
    assert metric("num_requests_running") == 0


def test_models_and_tokens(server: Server) -> None:
    (model,) = server.client.models.list()
    assert model.id == MODEL
    told = server.post("/tokenize", {"prompt": "The river é", "return_token_strs": True}).json()
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert server.post("/detokenize", {"tokens": told["tokens"]}).json() == {"prompt": "The river é"}
    assert server.http.get("/health").status_code == 200
    assert "/v1/chat/completions" in server.http.get("/openapi.json").json()["paths"]
