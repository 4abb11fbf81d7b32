"""One benchmarked request as its client saw it: every chunk with its time and its tokens. All metrics follow from it.

Times are seconds on the run's monotonic clock, 0 at the run's beginning.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Kind(enum.Enum):
    """What a chunk of a stream is."""

    ROLE = "role"  # opens a chat, holds no token
    REASONING = "reasoning"
    CONTENT = "content"
    TOOL = "tool"
    FINISH = "finish"  # a finish reason and no token
    USAGE = "usage"
    DONE = "done"

    @property
    def has_tokens(self) -> bool:
        """Whether it counts as output."""
        return self in (Kind.REASONING, Kind.CONTENT, Kind.TOOL)


class Outcome(enum.Enum):
    """How a stream ended; only COMPLETE counts as a success."""

    COMPLETE = "complete"
    IN_BAND_ERROR = "error inside the stream"
    CUT = "cut"  # no finish reason or no [DONE]
    NO_USAGE = "no usage"
    USAGE_DIFFERS = "usage differs from what came"
    HTTP_ERROR = "HTTP error"
    TIMEOUT = "timeout"
    NO_CONNECTION = "no connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One event of a stream. ``at`` is when its bytes arrived, before anything was parsed.

    ``tokens``: how many it holds; ``None`` where the server does not say. ``coalesced``: its bytes came in one read
    with those of an earlier event of the same stream, so ``at`` may be late.
    """

    at: float
    kind: Kind
    tokens: int | None = None
    coalesced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """``scheduled`` is when it should have been sent, ``sent`` when it was, ``closed`` when the stream was over.

    ``drafted`` and ``accepted``: drafts per verify step, where the server reports them per request (vllm#48915).
    """

    id: str
    scheduled: float
    sent: float
    closed: float
    outcome: Outcome
    chunks: tuple[Chunk, ...] = ()
    detail: str = ""
    status: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None  # as the server counted them
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    requested_tokens: int | None = None
    guide: str | None = None  # the name of its schema or grammar; None: free
    text: str = ""
    token_ids: tuple[int, ...] = ()
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    warm_up: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)
