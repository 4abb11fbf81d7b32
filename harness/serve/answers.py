"""How answers are written down: completions and chats, whole and as the chunks of a stream."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from harness import __version__
from harness.serve.logprobs import TokenLogprob
from harness.serve.text import Texts
from harness.serve.tools import Call, CallReader

Json = dict[str, Any]
LEAST = -9999.0
"""Stands for the logarithm of nothing, which JSON has no number for (as in vLLM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of an answer. ``logprobs`` is empty where none were asked for, and has ``None`` for the first token of an
    echoed prompt."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob | None, ...] = ()
    finish_reason: str | None = None
    echoed: int = 0  # how many of the tokens are the prompt's


def join(pieces: Sequence[Piece]) -> Piece:
    """A whole answer from its parts."""
    return Piece(
        text="".join(piece.text for piece in pieces),
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        logprobs=tuple(logprob for piece in pieces for logprob in piece.logprobs),
        finish_reason=pieces[-1].finish_reason,
        echoed=sum(piece.echoed for piece in pieces),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What is known when the first piece comes: the prompt, and its log-probabilities where they were asked for."""

    prompt: tuple[int, ...]
    prompt_logprobs: Sequence[TokenLogprob | None]


class Answer(ABC):
    """One answer. Its pieces come in order, or joined."""

    prefix: ClassVar[str]
    whole_name: ClassVar[str]
    chunk_name: ClassVar[str]

    def __init__(self, texts: Texts, model: str, *, returns_ids: bool, returns_prompt_logprobs: bool) -> None:
        self.texts = texts
        self.returns_ids = returns_ids
        self._returns_prompt_logprobs = returns_prompt_logprobs
        self._head: Json = {
            "id": f"{self.prefix}-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"specharness-{__version__}",
        }

    @abstractmethod
    def whole(self, piece: Piece, head: Head, usage: Json) -> Json:
        """The answer to a request that does not stream."""

    @abstractmethod
    def chunks(self, piece: Piece, head: Head | None) -> Iterator[Json]:
        """A piece as chunks of a stream; ``head`` comes with the first piece."""

    def usage_chunk(self, usage: Json) -> Json:
        """The last chunk, if the request asked for it."""
        return self.envelope(self.chunk_name, [], usage)

    def envelope(self, name: str, choices: list[Json], usage: Json | None = None) -> Json:
        """What every answer and every chunk has around its choices."""
        return {**self._head, "object": name, "choices": choices, "usage": usage}

    def prompt_fields(self, head: Head) -> Json:
        """``prompt_token_ids`` and ``prompt_logprobs`` as vLLM writes them, where they were asked for."""
        fields: Json = {}
        if self.returns_ids:
            fields["prompt_token_ids"] = head.prompt
        if self._returns_prompt_logprobs:
            fields["prompt_logprobs"] = [
                None if place is None else self._by_token(place) for place in head.prompt_logprobs
            ]
        return fields

    def _by_token(self, place: TokenLogprob) -> Json:
        ranks = {token: rank for rank, (token, _) in enumerate(place.best, start=1)} | {
            place.token: place.rank
        }
        return {
            str(token): {
                "logprob": finite(value),
                "rank": ranks[token],
                "decoded_token": self.texts.name(token),
            }
            for token, value in place.with_best.items()
        }


class CompletionAnswer(Answer):
    """``text_completion``."""

    prefix = "cmpl"
    whole_name = chunk_name = "text_completion"
    _offset = 0  # characters in front of the next piece, by the names of its tokens

    def whole(self, piece: Piece, head: Head, usage: Json) -> Json:
        """One choice with everything."""
        return self.envelope(self.whole_name, [self._choice(piece, head)], usage)

    def chunks(self, piece: Piece, head: Head | None) -> Iterator[Json]:
        """One chunk for one piece."""
        yield self.envelope(self.chunk_name, [self._choice(piece, head)])

    def _choice(self, piece: Piece, head: Head | None) -> Json:
        choice: Json = {
            "index": 0,
            "text": piece.text,
            "logprobs": self._logprobs(piece) if piece.logprobs else None,
            "finish_reason": piece.finish_reason,
        }
        if self.returns_ids:
            choice["token_ids"] = piece.tokens[piece.echoed :]
        return choice | (self.prompt_fields(head) if head is not None else {})

    def _logprobs(self, piece: Piece) -> Json:
        names = [self.texts.name(token) for token in piece.tokens]
        offsets = []
        for name in names:
            offsets.append(self._offset)
            self._offset += len(name)
        return {
            "text_offset": offsets,
            "tokens": names,
            "token_logprobs": [None if place is None else finite(place.logprob) for place in piece.logprobs],
            "top_logprobs": [None if place is None else self._best(place) for place in piece.logprobs],
        }

    def _best(self, place: TokenLogprob) -> dict[str, float]:
        return {self.texts.name(token): finite(value) for token, value in place.with_best.items()}


class ChatAnswer(Answer):
    """``chat.completion``. ``named``: the text is the arguments of this function; ``calls``: calls may stand in it."""

    prefix = "chatcmpl"
    whole_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def __init__(
        self,
        texts: Texts,
        model: str,
        *,
        returns_ids: bool,
        returns_prompt_logprobs: bool,
        named: str | None = None,
        calls: bool = False,
    ) -> None:
        super().__init__(
            texts, model, returns_ids=returns_ids, returns_prompt_logprobs=returns_prompt_logprobs
        )
        self._named = None if named is None else Call(name=named, arguments="")
        self._reader = CallReader() if calls else None
        self._num_calls = 0
        self._has_text = False

    def whole(self, piece: Piece, head: Head, usage: Json) -> Json:
        """One message; its content is null where it is a call and nothing else."""
        text, calls = self._read(piece)
        message: Json = {"role": "assistant", "content": text or (None if calls else "")}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, **self._rest(piece)}
        return self.envelope(self.whole_name, [choice], usage) | self.prompt_fields(head)

    def chunks(self, piece: Piece, head: Head | None) -> Iterator[Json]:
        """The role first, then one chunk for one piece."""
        if head is not None:
            # a message that is a call and nothing else has no content, not an empty one
            content = None if self._may_call else ""
            choice = {"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": None}
            yield self.envelope(self.chunk_name, [choice]) | self.prompt_fields(head)
        text, calls = self._read(piece, first=head is not None)
        self._has_text |= bool(text)
        ends_in_nothing = piece.finish_reason is not None and not self._has_text and self._num_calls == 0
        delta: Json = {"content": text} if text or ends_in_nothing or not self._may_call else {}
        if calls:
            delta["tool_calls"] = [
                {"index": self._num_calls - len(calls) + i, **call} for i, call in enumerate(calls)
            ]
        yield self.envelope(self.chunk_name, [{"index": 0, "delta": delta, **self._rest(piece)}])

    @property
    def _may_call(self) -> bool:
        return self._named is not None or self._reader is not None

    def _read(self, piece: Piece, *, first: bool = True) -> tuple[str, list[Json]]:
        """Text and calls of a piece; of a named call, only the first piece says which."""
        if self._named is not None:
            self._num_calls = 1
            if first:
                return "", [_function(self._named, piece.text)]
            return "", [{"function": {"arguments": piece.text}}]
        if self._reader is None:
            return piece.text, []
        text, calls = self._reader.feed(piece.text, last=piece.finish_reason is not None)
        self._num_calls += len(calls)
        return text, [_function(call, call.arguments) for call in calls]

    def _rest(self, piece: Piece) -> Json:
        """Behind message or delta. A named call ends as any answer does, others end in ``tool_calls`` (OpenAI)."""
        called = self._reader is not None and self._num_calls > 0
        ends_in_call = called and piece.finish_reason == "stop"
        rest: Json = {
            "logprobs": {"content": [self._place(p) for p in piece.logprobs if p]}
            if piece.logprobs
            else None,
            "finish_reason": "tool_calls" if ends_in_call else piece.finish_reason,
        }
        return rest | ({"token_ids": piece.tokens} if self.returns_ids else {})

    def _place(self, place: TokenLogprob) -> Json:
        best = [self._token(token, value) for token, value in place.best]
        return {**self._token(place.token, place.logprob), "top_logprobs": best}

    def _token(self, token: int, logprob: float) -> Json:
        text = self.texts.bytes_of(token)
        return {"token": self.texts.name(token), "logprob": finite(logprob), "bytes": list(text)}


def finite(logprob: float) -> float:
    """A number that JSON has; NaN and the logarithm of nothing are the least one."""
    return logprob if logprob > LEAST else LEAST


def _function(call: Call, arguments: str) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
