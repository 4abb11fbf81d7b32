"""One streamed answer, read chunk by chunk and checked in itself."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
from asks import Ask


@dataclass(slots=True, kw_only=True)
class Answer:
    """What came. ``ended`` is ``whole``, ``aborted`` (we hung up) or ``broken``; ``wrong``: what no stream may do."""

    index: int
    ended: str = "broken"
    prompt: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    usage: int | None = None
    chunks: int = 0
    wrong: list[str] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        """As a line of the results."""
        return {"event": "ended", **asdict(self)}


async def read(client: httpx.AsyncClient, one: Ask) -> Answer:
    """The answer to one request; never raises for what the server does."""
    answer = Answer(index=one.index)
    try:
        async with asyncio.timeout(one.seconds):
            await _read(client, one, answer)
    except TimeoutError:
        answer.ended = "aborted"
    except httpx.HTTPError as error:
        answer.wrong.append(f"{type(error).__name__}: {error}")
    return answer


async def _read(client: httpx.AsyncClient, one: Ask, answer: Answer) -> None:
    ids: set[str] = set()
    async with client.stream("POST", "/v1/completions", json=one.body) as response:
        if response.status_code != 200:
            answer.wrong.append(f"{response.status_code}: {(await response.aread())[:300]!r}")
            return
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                answer.ended = "whole"
                break
            if line:
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    answer.wrong.append(f"error in the stream: {chunk['error']['message']}")
                    return
                ids.add(chunk["id"])
                _take(chunk, answer)
            if one.chunks is not None and answer.chunks >= one.chunks:
                answer.ended = "aborted"
                return
    if answer.ended != "whole":
        answer.wrong.append("the stream ends without [DONE]")
    elif len(ids) != 1:
        answer.wrong.append(f"chunks of {len(ids)} answers in one stream")
    else:
        answer.wrong += _misfits(answer, one.body["max_tokens"])


def _take(chunk: dict[str, Any], answer: Answer) -> None:
    for choice in chunk["choices"]:
        answer.chunks += 1
        answer.prompt = choice.get("prompt_token_ids") or answer.prompt
        answer.tokens += choice["token_ids"]
        answer.text += choice["text"]
        answer.logprobs += choice["logprobs"]["token_logprobs"] if choice["logprobs"] else []
        if answer.finish is not None:
            answer.wrong.append("a chunk follows the end")
        answer.finish = choice["finish_reason"]
    if chunk.get("usage"):
        answer.usage = chunk["usage"]["completion_tokens"]
        if chunk["usage"]["prompt_tokens"] != len(answer.prompt):
            answer.wrong.append(f"usage says {chunk['usage']}, the prompt has {len(answer.prompt)} tokens")


def _misfits(answer: Answer, most: int) -> list[str]:
    """Numbers that must agree in a whole answer."""
    count, wrong = len(answer.tokens), []
    if answer.usage != count or len(answer.logprobs) != count:
        wrong.append(f"{count} tokens, {len(answer.logprobs)} log-probabilities, usage says {answer.usage}")
    if count > most or (answer.finish == "length") != (count == most and answer.finish != "stop"):
        wrong.append(f"{count} of {most} tokens and the end is {answer.finish}")
    return wrong
