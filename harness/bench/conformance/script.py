"""A script: what a server writes and when, and what a client that measures rightly must report of it."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.bench.load.call import CHAT, COMPLETIONS
from harness.bench.record import Kind, Outcome

STAMP = b'"truth":"----------------"'
"""A place in a payload; the server puts there when it wrote the event, by the clock that all processes share."""


class Ending(enum.Enum):
    """How the server ends."""

    CLEAN = "clean"  # as HTTP says
    ABORT = "abort"  # the connection is reset
    HANG = "hang"  # nothing more, and the connection stays


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """``data`` at ``at`` seconds after the request was read; ``cuts``: offsets at which it is sent in pieces."""

    at: float
    data: bytes
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What is right. ``chunks``: (seconds from the request's arrival, kind, tokens or ``None``) of every event.

    ``ttft``, ``tpot``: seconds, from the chunks that hold tokens and from usage; ``None``: undefined.
    """

    outcome: Outcome
    chunks: tuple[tuple[float, Kind, int | None], ...] = ()
    text: str = ""
    completion_tokens: int | None = None
    finish_reason: str | None = None

    @property
    def ttft(self) -> float | None:
        """To the first chunk with tokens."""
        return next((at for at, kind, _ in self.chunks if kind.has_tokens), None)

    @property
    def tpot(self) -> float | None:
        """(last - first) / (tokens - 1), of a success."""
        came = [at for at, kind, _ in self.chunks if kind.has_tokens]
        n = self.completion_tokens or 0
        return (came[-1] - came[0]) / (n - 1) if self.outcome is Outcome.COMPLETE and n > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """``name`` is the model that a client asks for to get it. ``breaks``: which mistake of which tool it shows."""

    name: str
    breaks: str
    writes: tuple[Write, ...]
    truth: Truth
    path: str = COMPLETIONS
    ending: Ending = Ending.CLEAN
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    is_chunked: bool = True  # else the body ends with the connection


def sse(payload: Mapping[str, Any] | str, *, before: str = "data: ", end: str = "\n") -> bytes:
    """One event. A mapping gets a ``truth`` stamp; letters stay as they are, as vLLM writes them."""
    if isinstance(payload, str):
        return f"{before}{payload}{end}{end}".encode()
    told = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return f"{before}{{{STAMP.decode()},{told[1:]}{end}{end}".encode()


def said(
    text: str | None = None,
    *,
    role: str | None = None,
    reasoning: str | None = None,
    finish: str | None = None,
    ids: Sequence[int] | None = None,
    usage: Mapping[str, Any] | None = None,
    is_chat: bool = False,
) -> dict[str, Any]:
    """A chunk with one choice, of either path."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    if is_chat:
        delta = {"role": role, "content": text, "reasoning": reasoning}
        choice["delta"] = {key: value for key, value in delta.items() if value is not None}
    else:
        choice["text"] = text or ""
    if ids is not None:
        choice["token_ids"] = list(ids)
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    chunk: dict[str, Any] = {
        "id": "scripted",
        "object": kind,
        "created": 0,
        "model": "scripted",
        "choices": [choice],
    }
    return chunk if usage is None else chunk | {"usage": dict(usage)}


def counted(tokens: int, *, prompt: int = 4, cached: int | None = None) -> dict[str, Any]:
    """The ``usage`` of a reply."""
    told: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
    }
    return told if cached is None else told | {"prompt_tokens_details": {"cached_tokens": cached}}


def summed(tokens: int, *, is_chat: bool = False) -> dict[str, Any]:
    """The last event but ``[DONE]``: usage without choices."""
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    return {
        "id": "scripted",
        "object": kind,
        "created": 0,
        "model": "scripted",
        "choices": [],
        "usage": counted(tokens),
    }


def is_for(path: str) -> bool:
    """Whether a path is one of the two that scripts answer."""
    return path.endswith((COMPLETIONS, CHAT))
