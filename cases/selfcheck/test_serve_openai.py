"""Every endpoint and option with the stock `openai` client: sync, async, streams, its helpers, its exceptions.

What answers mean is tested in ``test_serve.py``; here the client must understand all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai.lib.streaming.chat import ContentDoneEvent, FunctionToolCallArgumentsDoneEvent
from pydantic import BaseModel
from serving import LONG, MODEL, Server, serving

from harness.serve.limits import Limits

HI: list[Any] = [{"role": "user", "content": "hi"}]


class Fruit(BaseModel):
    """A structured answer."""

    name: Literal["pear", "plum"]
    count: int
    ripe: bool | None = None


class Basket(BaseModel):
    """One in another, with a list."""

    fruits: list[Fruit]
    owner: Literal["ann", "bob"]


@pytest.fixture(scope="module")
def server(peaked: Path) -> Iterator[Server]:
    with serving(peaked, max_num_seqs=32, max_num_batched_tokens=64) as running:
        yield running
        running.wait_until_free()


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return server.client


def test_models_are_listed_and_one_is_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="other"):
        client.models.retrieve("other")


COMPLETION_OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.2, "top_p": 0.7, "seed": 3},
    {"max_tokens": 3, "stop": "zzz"},
    {"stop": ["zzz", "yyy"]},
    {"logprobs": 3},
    {"echo": True, "logprobs": 1},
    {"n": 1, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0, "user": "me"},
    {"extra_body": {"top_k": 5, "ignore_eos": True, "stop_token_ids": [3]}},
    {"extra_body": {"prompt_logprobs": 1, "return_token_ids": True}},
    {"extra_body": {"structured_outputs": {"regex": "[a-c]+"}}},
    {"extra_body": {"structured_outputs": {"choice": ["a", "b"]}}},
    {"extra_body": {"structured_outputs": {"grammar": 'root ::= "x"+'}}},
    {"extra_body": {"structured_outputs": {"json": Fruit.model_json_schema()}}},
    {"extra_body": {"response_format": {"type": "json_object"}}},
]
CHAT_OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.2, "top_p": 0.7, "seed": 3},
    {"max_completion_tokens": 3},
    {"stop": ["zzz"]},
    {"logprobs": True, "top_logprobs": 3},
    {"logprobs": True},
    {"n": 1, "presence_penalty": 0, "frequency_penalty": 0, "user": "me", "parallel_tool_calls": True},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": Fruit.model_json_schema()}}},
    {"extra_body": {"top_k": 5, "ignore_eos": True, "prompt_logprobs": 0, "return_token_ids": True}},
    {"extra_body": {"structured_outputs": {"regex": "[a-c]+"}}},
]  # fmt: skip


def _plain(value: Any) -> Any:
    """Without what differs between two equal answers, and with log-probabilities as near as steps allow."""
    if isinstance(value, float):
        return pytest.approx(value, abs=1e-3)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("options", COMPLETION_OPTIONS, ids=str)
def test_completions_whole_streamed_and_asynchronous_are_one(server: Server, options: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "The river", "max_tokens": 12, "seed": 1, **options}
    whole = server.client.completions.create(**asked)
    parts = list(
        server.client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(part.choices[0].text for part in parts[:-1]) == whole.choices[0].text
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert parts[-1].usage == whole.usage
    assert len({part.id for part in parts}) == 1

    async def again() -> tuple[Any, str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            told = await client.completions.create(**asked)
            stream = await client.completions.create(**asked, stream=True)
            return told, "".join([part.choices[0].text async for part in stream])

    told, text = asyncio.run(again())
    assert told.choices[0].model_dump() == _plain(whole.choices[0].model_dump())
    assert text == whole.choices[0].text


@pytest.mark.parametrize("options", CHAT_OPTIONS, ids=str)
def test_chats_whole_streamed_and_asynchronous_are_one(server: Server, options: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": HI, "max_tokens": 12, "seed": 1, **options}
    whole = server.client.chat.completions.create(**asked)
    parts = list(
        server.client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(part.choices[0].delta.content or "" for part in parts[:-1])
    assert text == whole.choices[0].message.content
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert parts[-1].usage == whole.usage
    if whole.choices[0].logprobs is not None and whole.choices[0].logprobs.content is not None:
        streamed = [
            each.model_dump()
            for part in parts[:-1]
            if part.choices[0].logprobs
            for each in part.choices[0].logprobs.content or ()
        ]
        assert streamed == [_plain(each.model_dump()) for each in whole.choices[0].logprobs.content]

    async def again() -> tuple[Any, str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            told = await client.chat.completions.create(**asked)
            stream = await client.chat.completions.create(**asked, stream=True)
            return told, "".join([part.choices[0].delta.content or "" async for part in stream])

    told, again_text = asyncio.run(again())
    assert told.choices[0].model_dump() == _plain(whole.choices[0].model_dump())
    assert again_text == text


@pytest.mark.parametrize("wanted", [Fruit, Basket])
def test_pydantic_models_come_back_parsed(client: openai.OpenAI, wanted: type[BaseModel]) -> None:
    told = client.chat.completions.parse(
        model=MODEL, messages=HI, response_format=wanted, temperature=1, seed=2
    )
    assert isinstance(told.choices[0].message.parsed, wanted)
    asked: dict[str, Any] = {"model": MODEL, "messages": HI, "response_format": wanted}
    with client.chat.completions.stream(**asked, temperature=1, seed=2) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == told.choices[0].message.parsed
    (done,) = [event for event in events if isinstance(event, ContentDoneEvent)]
    assert done.parsed == told.choices[0].message.parsed

    async def again() -> Any:
        async with (
            openai.AsyncOpenAI(base_url=client.base_url, api_key="none") as other,
            other.chat.completions.stream(**asked, temperature=1, seed=2) as stream,
        ):
            return (await stream.get_final_completion()).choices[0].message.parsed

    assert asyncio.run(again()) == told.choices[0].message.parsed


def test_a_parsed_answer_that_was_cut_is_told_as_such(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=MODEL, messages=HI, response_format=Basket, max_tokens=3)


TOOLS: list[Any] = [openai.pydantic_function_tool(Fruit, name="store"), openai.pydantic_function_tool(Basket)]


@pytest.mark.parametrize(
    "choice", ["none", "auto", "required", {"type": "function", "function": {"name": "store"}}], ids=str
)
def test_every_choice_of_tools_parses_and_streams(client: openai.OpenAI, choice: Any) -> None:
    asked: dict[str, Any] = {
        "model": MODEL, "messages": HI, "tools": TOOLS, "tool_choice": choice, "temperature": 0, "max_tokens": 300,
    }  # fmt: skip
    if choice in ("none", "auto"):
        asked["stop"] = [
            " "
        ]  # the tiny model never ends by itself, and the client refuses to parse what was cut
    whole = client.chat.completions.parse(**asked).choices[0]
    calls = whole.message.tool_calls or []
    assert bool(calls) or choice in ("none", "auto")
    for call in calls:
        assert isinstance(call.function.parsed_arguments, Fruit | Basket)
    with client.chat.completions.stream(**asked) as stream:
        done = [event for event in stream if isinstance(event, FunctionToolCallArgumentsDoneEvent)]
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == whole.finish_reason
    assert final.message.content == whole.message.content
    streamed = final.message.tool_calls or []
    assert [(c.function.name, c.function.arguments) for c in streamed] == [
        (c.function.name, c.function.arguments) for c in calls
    ]
    assert [event.arguments for event in done] == [call.function.arguments for call in calls]
    assert all(call.id and call.type == "function" for call in streamed)


def test_a_conversation_with_a_tool_goes_on(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "tools": TOOLS, "temperature": 0, "max_tokens": 300}
    first = client.chat.completions.create(messages=HI, tool_choice="required", **asked).choices[0].message
    assert first.tool_calls is not None
    answer: Any = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "done"}
    history: list[Any] = [*HI, first, answer]
    second = client.chat.completions.create(messages=history, tool_choice="none", **asked).choices[0]
    assert second.message.content is not None
    assert second.message.tool_calls is None


def test_raw_responses_and_the_streaming_body_are_read(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(model=MODEL, prompt="x", max_tokens=2)
    assert raw.status_code == 200
    assert raw.parse().choices[0].finish_reason
    with client.completions.with_streaming_response.create(
        model=MODEL, prompt="x", max_tokens=2, stream=True
    ) as body:
        assert list(body.iter_lines())[-2:-1] == ["data: [DONE]"]


def test_exceptions_are_the_clients_own(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as wrong:
        client.completions.create(model=MODEL, prompt="x", temperature=-1)
    assert wrong.value.param == "temperature"
    assert wrong.value.type == "BadRequestError"
    with pytest.raises(openai.BadRequestError, match="does not compile"):
        client.completions.create(model=MODEL, prompt="x", extra_body={"structured_outputs": {"regex": "("}})
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=HI)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="x")
    with pytest.raises(openai.APIStatusError) as large:
        client.completions.create(model=MODEL, prompt="x" * 2**21)
    assert large.value.status_code == 413


def test_a_wrong_key_and_a_full_server_have_exceptions_too(peaked: Path) -> None:
    with serving(peaked, api_key="secret", max_num_seqs=1, limits=Limits(max_open=1)) as server:
        with pytest.raises(openai.AuthenticationError, match="key"):
            server.client.completions.create(model=MODEL, prompt="x")
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)
        asked: dict[str, Any] = {"model": MODEL, "prompt": "x", "max_tokens": 200, "extra_body": LONG}
        stream = client.completions.create(**asked, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError):
            client.completions.create(**asked)
        patient = client.with_options(max_retries=8)  # the client's own retries outlive the other's request
        assert patient.completions.create(model=MODEL, prompt="x", max_tokens=1).choices
        server.wait_until_free()


def test_a_dead_engine_is_an_internal_server_error(peaked: Path) -> None:
    with serving(peaked, policy="placeholder-embedded", regime="placeholder", max_num_seqs=4) as server:
        guided: dict[str, Any] = {"structured_outputs": {"regex": "[0-9]{3}-[a-z]{20}-[0-9]{20}"}}
        with pytest.raises(openai.InternalServerError, match="EngineDeadError"):
            server.client.completions.create(model=MODEL, prompt="x", max_tokens=60, extra_body=guided)


def test_a_client_that_times_out_leaves_nothing_behind(server: Server, client: openai.OpenAI) -> None:
    hurried = client.with_options(timeout=0.2)
    with pytest.raises(openai.APITimeoutError):
        hurried.completions.create(model=MODEL, prompt="The", max_tokens=1000, extra_body=LONG)
    server.wait_until_free()
    with pytest.raises(openai.APIConnectionError):
        openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0).models.list()


@pytest.mark.parametrize("regime", ["trim", "placeholder"])
def test_streams_that_are_left_free_their_memory(peaked: Path, regime: str) -> None:
    """In the middle of a stream, before its first piece, and while a whole answer is being made."""
    with serving(peaked, regime=regime, max_num_seqs=4) as server:
        asked: dict[str, Any] = {"model": MODEL, "prompt": "The", "max_tokens": 900, "extra_body": LONG}
        before = server.complete("The river", max_tokens=20, **LONG)["token_ids"]
        for pieces in (1, 3, 10):
            stream = server.client.completions.create(**asked, stream=True)
            for _ in range(pieces):
                next(iter(stream))
            stream.close()
        server.wait_until_free()

        async def leave(after: float, streams: bool) -> None:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
                work = asyncio.ensure_future(client.completions.create(**asked, stream=streams))
                await asyncio.sleep(after)
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

        async def crowd() -> None:
            await asyncio.gather(*(leave(0.02 * i, i % 2 == 0) for i in range(10)))

        asyncio.run(crowd())
        server.wait_until_free()
        assert server.complete("The river", max_tokens=20, **LONG)["token_ids"] == before
