"""One question to a server and its answer, as the client saw it: everything that an audit may look at."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.scenario import Grammar


class Fate(enum.Enum):
    """How an answer ended. All but the first two are the server's doing."""

    COMPLETE = "complete"
    ABORTED = "the client hung up"
    REFUSED = "refused"  # 4xx
    FAILED = "server error"  # 5xx
    BROKEN = "error inside the stream"
    CUT = "cut stream"  # ended without a reason, or against the protocol
    HUNG = "no news"
    UNREACHABLE = "no connection"

    @property
    def is_dead(self) -> bool:
        """The server owed an answer and gave none."""
        return self in (Fate.FAILED, Fate.BROKEN, Fate.CUT, Fate.HUNG, Fate.UNREACHABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A completion to ask for. ``text`` or, where the server takes token ids, ``prompt``.

    ``about`` is the ask that this one repeats or scores. ``logprobs`` and ``prompt_logprobs``: best tokens wanted at
    each place; ``None``: no log-probabilities. ``abort_after``: hang up after so many chunks.
    """

    id: str
    leg: str
    prompt: tuple[int, ...] = ()
    text: str | None = None
    max_tokens: int = 1
    grammar: Grammar | None = None
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()  # texts that end the answer and are no part of it
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    stream: bool = True
    delay: float = 0.0  # seconds behind the beginning of its round
    abort_after: int | None = None
    about: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The law at one place: the token's log-probability, and the best tokens' by their name (an id in prompts)."""

    logprob: float
    best: Mapping[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float | None:
        """Between the best two; ``None`` where fewer are known."""
        values = sorted(self.best.values(), reverse=True)
        return values[0] - values[1] if len(values) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. Times are seconds since the audit began.

    ``prompt_places[i]`` is the law of prompt token ``i + 1``: nothing comes before the first.
    """

    fate: Fate
    detail: str = ""
    status: int | None = None
    sent: float = 0.0
    first: float | None = None
    ended: float = 0.0
    prompt: tuple[int, ...] = ()  # as the server encoded it
    tokens: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()  # tokens per chunk
    places: tuple[Place, ...] = ()
    prompt_places: tuple[Place, ...] = ()
    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None  # as the server counted them
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A question and its answer."""

    ask: Ask
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A server's own counters, labels added up, at a moment; ``health`` is the status of /health."""

    when: str
    at: float
    health: int | None = None
    said: str = ""  # where it is not well
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a server can do, found out by asking it. ``lacks`` says why it cannot, by the name of what is missing."""

    url: str
    model: str
    version: str = ""
    ids: bool = False  # takes prompts of token ids and returns ids
    logprobs: bool = False
    prompt_logprobs: int = 0  # best tokens at each place of a prompt; 0: none
    grammars: str | None = None  # structured_outputs or response_format
    ignore_eos: bool = False
    metrics: bool = False
    health: bool = False
    lacks: Mapping[str, str] = field(default_factory=dict)
