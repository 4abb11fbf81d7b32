"""Answers of a crowd, asked for again with nobody else there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from asks import Ask, ask
from server import Server
from streams import Answer, read

TIE = 10
"""A gap below this many times the noise is a near tie."""


@dataclass(slots=True, kw_only=True)
class Comparison:
    """``noise``: the largest difference between log-probabilities of the same token in crowd and solo."""

    compared: int = 0
    equal: int = 0
    noise: float = 0.0
    ties: list[dict[str, Any]] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        """For the last line."""
        return {
            "compared": self.compared,
            "equal": self.equal,
            "near_ties": self.ties,
            "differ": self.compared - self.equal - len(self.ties),
            "noise": float(f"{self.noise:.2g}"),
        }


async def compare(
    server: Server, seed: int, sample: Sequence[Answer], every: Sequence[Answer], say: Callable[[str], None]
) -> Comparison:
    """``sample`` against solo answers, and the text of ``every`` stream against its tokens."""
    done, differ = Comparison(), []
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        for i, crowd in enumerate(every):
            if i % 50 == 0:
                say(f"texts against tokens: {i} of {len(every)}")
            if (fault := await _misread(client, crowd)) is not None:
                done.faults.append((f"stream {crowd.index}", fault))
        for crowd in sample:
            say(f"solo answers: {done.compared} of {len(sample)}")
            one = dataclasses.replace(ask(seed, crowd.index, server.model), chunks=None, seconds=None)
            alone = await read(client, one)
            done.compared += 1
            same = _first_difference(crowd.tokens, alone.tokens)
            pairs = zip(crowd.logprobs[:same], alone.logprobs[:same], strict=False)
            done.noise = max([done.noise, *(abs(a - b) for a, b in pairs)])
            if same is None and crowd.text == alone.text and crowd.finish == alone.finish:
                done.equal += 1
            else:
                differ.append((one, crowd, alone, same))
        for one, crowd, alone, place in differ:
            await _judge(client, one, crowd, alone, place, done)
    return done


async def _misread(client: httpx.AsyncClient, answer: Answer) -> str | None:
    """What is wrong with the text of a stream; one that was cut may lack the rest of a character."""
    asked = await client.post("/detokenize", json={"tokens": answer.tokens})
    text = asked.json()["prompt"]
    if text == answer.text or (
        answer.ended != "whole" and text.rstrip("\ufffd") == answer.text.rstrip("\ufffd")
    ):
        return None
    return f"the text is {answer.text[-80:]!r}, its tokens say {text[-80:]!r}"


def _first_difference(a: list[int], b: list[int]) -> int | None:
    if a == b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


async def _judge(
    client: httpx.AsyncClient, one: Ask, crowd: Answer, alone: Answer, place: int | None, done: Comparison
) -> None:
    """A greedy answer may choose the other of two tokens that are as good; a drawn one, and anything else, may not."""
    name = f"stream {one.index}"
    if place is None or place >= min(len(crowd.tokens), len(alone.tokens)) or one.body["temperature"] != 0:
        done.faults.append(
            (name, f"differs from its solo answer at token {place}: {crowd.tokens} against {alone.tokens}")
        )
        return
    asked = {
        **one.body,
        "stream": False,
        "logprobs": 20,
        "prompt": [*alone.prompt, *alone.tokens[:place]],
        "max_tokens": 1,
    }
    asked = {
        key: value for key, value in asked.items() if key not in ("stream_options", "structured_outputs")
    }
    answer = (await client.post("/v1/completions", json=asked)).json()["choices"][0]
    best = sorted(answer["logprobs"]["top_logprobs"][0].values(), reverse=True)
    gap = best[0] - best[1]
    where = {"stream": one.index, "token": place, "gap": float(f"{gap:.2g}")}
    if gap <= TIE * done.noise:
        done.ties.append(where)
    else:
        done.faults.append((name, f"differs from its solo answer: {where}, the noise is {done.noise:.2g}"))
