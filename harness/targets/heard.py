"""What is heard of one answer, chunk by chunk. A server's bytes are not trusted: the client checks no types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from openai.types import Completion

from harness.exchange import Answer, Ask, Fate, Place

CHUNKS_PER_TOKEN, LETTERS_PER_TOKEN = 8, 1000
"""A stream that has more of them than its answer may have tokens does not mean to end ..."""
SPARE = 256
"""... and so many tokens' worth more, for streams that begin or end with empty chunks."""
LARGEST_ID = 2**31


class NonsenseError(ValueError):
    """Something that no such server may say."""


class Heard:
    """What was heard so far of the answer to ``ask``; ``clean`` takes out of a server's words what must not be kept."""

    def __init__(self, ask: Ask, sent: float, clean: Callable[[str], str]) -> None:
        self.sent = sent
        self.ended = sent
        self.first: float | None = None
        self.status: int | None = None
        self.retry_after: float | None = None  # seconds, where the server is too busy
        self.aborted = False
        self.chunks: list[int] = []
        self._most = ask.max_tokens + SPARE
        self._clean = clean
        self._failure: tuple[Fate, str] | None = None
        self._prompt: tuple[int, ...] = ()
        self._tokens: list[int] = []
        self._places: list[Place] = []
        self._prompt_places: tuple[Place, ...] = ()
        self._text: list[str] = []
        self._letters = self._reads = 0
        self._finish_reason: str | None = None
        self._counts: tuple[int | None, int | None] = (None, None)

    @property
    def is_unheard(self) -> bool:
        """The connection failed before anything came over it."""
        return self.first is None and self._failure is not None and self._failure[0] is Fate.UNREACHABLE

    def fails(self, fate: Fate, detail: str) -> None:
        """It ended badly."""
        self._failure = fate, self._clean(detail)

    def reads(self, completion: Any, now: float) -> None:
        """A whole completion or a chunk of one, as the client parsed it. Raises NonsenseError."""
        if not isinstance(completion, Completion):
            raise NonsenseError(f"expected a completion, saw {str(completion)[:200]!r}")
        choices = completion.choices or ()
        if not choices and (error := (completion.model_extra or {}).get("error")):
            raise NonsenseError(f"an error instead of an answer: {error}")
        self._bounded(sum(len(choice.text or "") for choice in choices))
        if completion.usage is not None:
            self._counts = (
                _count(getattr(completion.usage, "prompt_tokens", None), "usage.prompt_tokens"),
                _count(getattr(completion.usage, "completion_tokens", None), "usage.completion_tokens"),
            )
        for choice in choices:
            self._choice(choice, now)

    def _choice(self, choice: Any, now: float) -> None:
        more: Mapping[str, Any] = choice.model_extra or {}
        text = _text(choice.text, "text")
        tokens = _ids(more.get("token_ids"), "token_ids")
        places = None if choice.logprobs is None else places_of(choice.logprobs)
        reason = _text(choice.finish_reason, "finish_reason")
        if tokens or text:
            self.first = now if self.first is None else self.first
            self.chunks.append(len(tokens))
        self._prompt = _ids(more.get("prompt_token_ids"), "prompt_token_ids") or self._prompt
        self._tokens += tokens
        self._places += places or ()
        self._text.append(text)
        self._finish_reason = reason or self._finish_reason
        if laws := more.get("prompt_logprobs"):
            self._prompt_places = prompt_places(self._prompt, laws)

    def _bounded(self, letters: int) -> None:
        """Not every server ends by itself."""
        self._reads += 1
        self._letters += letters
        if self._reads > CHUNKS_PER_TOKEN * self._most or self._letters > LETTERS_PER_TOKEN * self._most:
            raise NonsenseError(f"it does not end: {self._reads} chunks and {self._letters} letters so far")

    def answer(self) -> Answer:
        """All of it."""
        return Answer(
            fate=self._fate,
            detail=self._detail,
            status=self.status,
            sent=self.sent,
            first=self.first,
            ended=self.ended,
            prompt=self._prompt,
            tokens=tuple(self._tokens),
            chunks=tuple(self.chunks),
            places=tuple(self._places),
            prompt_places=self._prompt_places,
            text="".join(self._text),
            finish_reason=self._finish_reason,
            prompt_tokens=self._counts[0],
            completion_tokens=self._counts[1],
        )

    @property
    def _fate(self) -> Fate:
        if self._failure is not None:
            return self._failure[0]
        if self.aborted:
            return Fate.ABORTED
        return Fate.CUT if self._finish_reason is None else Fate.COMPLETE

    @property
    def _detail(self) -> str:
        if self._failure is not None:
            return self._failure[1]
        return "it ended without a finish_reason" if self._fate is Fate.CUT else ""


def places_of(logprobs: Any) -> list[Place]:
    """The ``logprobs`` of a completion's choice; what is null is NaN. Raises NonsenseError."""
    if not hasattr(logprobs, "token_logprobs"):
        raise _wrong(logprobs, "logprobs", "an object with token_logprobs")
    chosen = _list(logprobs.token_logprobs, "logprobs.token_logprobs")
    bests = _list(getattr(logprobs, "top_logprobs", None), "logprobs.top_logprobs") or [None] * len(chosen)
    if len(bests) != len(chosen):
        raise NonsenseError(f"logprobs: {len(chosen)} token_logprobs, {len(bests)} top_logprobs")
    return [
        Place(
            logprob=float("nan") if value is None else _number(value, "logprobs.token_logprobs"),
            best={
                name: _number(known, "logprobs.top_logprobs")
                for name, known in _object(top, "logprobs.top_logprobs").items()
            },
        )
        for value, top in zip(chosen, bests, strict=True)
    ]


def prompt_places(prompt: tuple[int, ...], laws: Any) -> tuple[Place, ...]:
    """vLLM's ``prompt_logprobs``: for each token of a prompt but the first, laws by token id.

    Raises NonsenseError.
    """
    known = _list(laws, "prompt_logprobs")
    if len(known) != len(prompt):
        raise NonsenseError(f"prompt_logprobs: {len(known)} laws for {len(prompt)} tokens")
    return tuple(_law(str(token), law) for token, law in zip(prompt[1:], known[1:], strict=True))


def _law(token: str, law: Any) -> Place:
    what = "prompt_logprobs"
    best = {
        name: _number(_object(entry, what).get("logprob"), what) for name, entry in _object(law, what).items()
    }
    if token not in best or not all(name.isdecimal() for name in best):
        raise NonsenseError(f"{what}: saw laws of {', '.join(best)[:80]!r}, expected ids, with {token}")
    return Place(logprob=best[token], best=best)


def _number(value: Any, what: str) -> float:
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise _wrong(value, what, "a number")


def _count(value: Any, what: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise _wrong(value, what, "a count")


def _text(value: Any, what: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise _wrong(value, what, "a text")


def _ids(value: Any, what: str) -> tuple[int, ...]:
    ids = _list(value, what)
    for one in ids:
        if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < LARGEST_ID:
            raise _wrong(one, what, "token ids")
    return tuple(ids)


def _list(value: Any, what: str) -> list[Any]:
    if value is None or isinstance(value, list):
        return value or []
    raise _wrong(value, what, "a list")


def _object(value: Any, what: str) -> dict[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise _wrong(value, what, "an object")


def _wrong(value: Any, what: str, expected: str) -> NonsenseError:
    return NonsenseError(f"{what}: saw {repr(value)[:80]}, expected {expected}")
