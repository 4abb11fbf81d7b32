"""The fields of a streamed answer that a benchmark reads: completions and chat, vLLM's and SGLang's additions."""

from __future__ import annotations

from typing import Any

import msgspec

LONGEST_DETAIL = 600
ABORTED = frozenset({"abort", "error"})
"""Finish reasons of an engine that gave up: no answer, however tidily its stream ends."""


class Delta(msgspec.Struct, gc=False):
    """The new part of a chat message; ``reasoning_content`` is the older name of ``reasoning``."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None


class Logprobs(msgspec.Struct, gc=False):
    """Only their number is read: ``tokens`` in completions, ``content`` in chat."""

    tokens: list[Any] | None = None
    content: list[Any] | None = None

    @property
    def count(self) -> int | None:
        """Tokens that have log-probabilities."""
        told = self.content if self.tokens is None else self.tokens
        return None if told is None else len(told)


class Choice(msgspec.Struct, gc=False):
    """``text`` in completions, ``delta`` in chat."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None


class PromptDetails(msgspec.Struct, gc=False):
    """What of the prompt was computed before."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """The server's own count."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Steps(msgspec.Struct, gc=False):
    """vLLM's acceptance of one request, step by step (vllm#48915, ``--per-request-spec-decode-metrics detailed``)."""

    per_step_drafted: list[int] = []
    per_step_accepted: list[int] = []


class Metrics(msgspec.Struct, gc=False):
    """vLLM's measurements of one request."""

    speculative_decoding: Steps | None = None


class Packet(msgspec.Struct, gc=False):
    """One event's payload. What it is called and by which model is not read: it is the same in every chunk."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    metrics: Metrics | None = None
    error: Any = None


class Failure(msgspec.Struct, gc=False):
    """A payload that may be an error: ``error``, or ``object == "error"`` with a message beside it."""

    error: Any = None
    object: Any = None
    message: Any = None


DECODER = msgspec.json.Decoder(Packet)
_FAILURE = msgspec.json.Decoder(Failure)


def error_in(payload: bytes, *, is_named: bool = False) -> str | None:
    """The words of an error; ``None``: it is none. ``is_named``: its event was called error, whatever it holds."""
    said = payload[:LONGEST_DETAIL].decode(errors="replace")
    try:
        told = _FAILURE.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return said if is_named else None
    if not is_named and told.error is None and told.object != "error":
        return None
    words = told.message if told.error is None else told.error
    if isinstance(words, dict):
        words = words.get("message") or words
    return str(words)[:LONGEST_DETAIL] if words else said
