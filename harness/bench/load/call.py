"""One request to be sent, as bytes: nothing is encoded while the clock runs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """``body`` is JSON that asks for a stream with usage; ``guide`` names its schema or grammar, ``None``: free.

    ``requested_tokens`` is its ``max_tokens``. ``warm_up``: sent before the run and left out of every figure.
    """

    id: str
    body: bytes
    path: str = COMPLETIONS
    requested_tokens: int | None = None
    guide: str | None = None
    warm_up: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)


def completion(
    id: str,  # noqa: A002  the field's name
    model: str,
    prompt: str | Sequence[int],
    max_tokens: int,
    *,
    guide: str | None = None,
    extra: Mapping[str, str] | None = None,
    **more: Any,
) -> Call:
    """A call of ``/v1/completions``; ``more`` are fields of the body, such as ``seed`` or ``structured_outputs``."""
    told = prompt if isinstance(prompt, str) else list(prompt)
    body = {"model": model, "prompt": told, "max_tokens": max_tokens, **_STREAMED, **more}
    return Call(
        id=id,
        body=msgspec.json.encode(body),
        requested_tokens=max_tokens,
        guide=guide,
        extra=extra or {},
    )


def chat(
    id: str,  # noqa: A002  the field's name
    model: str,
    messages: str | Sequence[Mapping[str, Any]],
    max_tokens: int,
    *,
    guide: str | None = None,
    extra: Mapping[str, str] | None = None,
    **more: Any,
) -> Call:
    """A call of ``/v1/chat/completions``; a string is one message of the user."""
    told = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    body = {"model": model, "messages": told, "max_tokens": max_tokens, **_STREAMED, **more}
    return Call(
        id=id,
        body=msgspec.json.encode(body),
        path=CHAT,
        requested_tokens=max_tokens,
        guide=guide,
        extra=extra or {},
    )


_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


def warm_up_calls(calls: Sequence[Call], count: int, rng: random.Random) -> list[Call]:
    """``count`` calls of the run's own shapes and of other contents, spread over guides, lengths and sizes.

    One repeated prompt warms one shape (vllm#26943, aisimulate#287); the run's own prompts would warm the prefix cache.
    """
    ranked = sorted(calls, key=lambda call: (call.guide or "", call.requested_tokens or 0, len(call.body)))
    count = min(count, len(ranked))
    places = [round(i * (len(ranked) - 1) / max(1, count - 1)) for i in range(count)]
    return [_redrawn(ranked[place], f"warm-up-{i}", rng) for i, place in enumerate(places)]


def _redrawn(call: Call, name: str, rng: random.Random) -> Call:
    """The same tokens or words in another order: equal length, equal shape, no common prefix."""
    body = msgspec.json.decode(call.body)
    if "prompt" in body:
        body["prompt"] = _shuffled(body["prompt"], rng)
    for message in body.get("messages", ()):
        if isinstance(message.get("content"), str):
            message["content"] = _shuffled(message["content"], rng)
    return replace(call, id=name, body=msgspec.json.encode(body), warm_up=True)


def _shuffled(content: Any, rng: random.Random) -> Any:
    parts = content.split(" ") if isinstance(content, str) else list(content)
    rng.shuffle(parts)
    return " ".join(parts) if isinstance(content, str) else parts
