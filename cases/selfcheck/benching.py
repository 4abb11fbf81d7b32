"""Records of requests written down in milliseconds, for the tests of metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.bench.record import Chunk, Kind, Outcome, RequestRecord

KINDS = {
    "role": Kind.ROLE,
    "think": Kind.REASONING,
    "say": Kind.CONTENT,
    "tool": Kind.TOOL,
    "finish": Kind.FINISH,
    "usage": Kind.USAGE,
    "done": Kind.DONE,
}


def chunk(at: float, what: str = "say", tokens: int | None = None, *, coalesced: bool = False) -> Chunk:
    """A chunk that came at ``at`` milliseconds."""
    return Chunk(at=at / 1000, kind=KINDS[what], tokens=tokens, coalesced=coalesced)


def stream(*chunks: Chunk, usage: int | None = None, **more: Any) -> RequestRecord:
    """A request sent at 0 that ended with its last chunk; times in ``more`` are seconds."""
    fields: dict[str, Any] = {
        "id": "r0",
        "scheduled": 0.0,
        "sent": 0.0,
        "closed": chunks[-1].at if chunks else 0.0,
        "outcome": Outcome.COMPLETE,
        "chunks": chunks,
        "completion_tokens": usage,
        "prompt_tokens": 10,
    }
    return RequestRecord(**(fields | more))


def said(times: Sequence[float], counts: Sequence[int] | None = None, **more: Any) -> RequestRecord:
    """Content chunks at these milliseconds; one token each, or ``counts``."""
    held = counts or [1] * len(times)
    chunks = [chunk(at, tokens=count) for at, count in zip(times, held, strict=True)]
    return stream(*chunks, **({"usage": sum(held)} | more))


def shifted(record: RequestRecord, by: float) -> RequestRecord:
    """The same ``by`` seconds later."""
    return replace(
        record,
        scheduled=record.scheduled + by,
        sent=record.sent + by,
        closed=record.closed + by,
        chunks=tuple(replace(one, at=one.at + by) for one in record.chunks),
    )


def scaled(record: RequestRecord, factor: float) -> RequestRecord:
    """The same on a clock that runs ``factor`` times as long."""
    return replace(
        record,
        scheduled=record.scheduled * factor,
        sent=record.sent * factor,
        closed=record.closed * factor,
        chunks=tuple(replace(one, at=one.at * factor) for one in record.chunks),
    )
