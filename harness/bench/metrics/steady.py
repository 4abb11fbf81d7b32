"""The stretch of a run in which the load was what it was meant to be: without ramp and without drain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bench.metrics.concurrency import levels
from harness.bench.metrics.span import Span, complete, measured, per_second, span_of
from harness.bench.metrics.tokens import chunk_tokens, output_chunks
from harness.bench.record import RequestRecord

LEVEL = 0.9
"""Of the highest concurrency: what counts as loaded."""
SHORTEST = 0.2
"""Of the run: a shorter stretch is no steady state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """``sent`` requests were sent within ``span``; the output rate is of tokens that came within it."""

    span: Span
    sent: int
    share: float
    request: float | None
    output: float | None


def steady_span(records: Sequence[RequestRecord]) -> Span | None:
    """From the first to the last instant at which LEVEL of the highest concurrency was under way."""
    whole = span_of(records)
    steps = levels((record.sent, record.closed) for record in measured(records))
    if whole is None or not steps:
        return None
    wanted = LEVEL * max(level for _, level in steps)
    loaded = [(at, steps[place + 1][0]) for place, (at, level) in enumerate(steps[:-1]) if level >= wanted]
    if not loaded:
        return None
    found = Span(begin=loaded[0][0], end=loaded[-1][1])
    return found if found.seconds >= SHORTEST * whole.seconds else None


def within(records: Sequence[RequestRecord], span: Span) -> list[RequestRecord]:
    """The requests sent in ``span``. Chosen by their beginning: choosing by the end would leave out the slow ones."""
    return [record for record in measured(records) if span.holds(record.sent)]


def steady(records: Sequence[RequestRecord]) -> Steady | None:
    """``None`` where the run had no steady state worth the name, or nothing in it succeeded."""
    span, whole = steady_span(records), span_of(records)
    if span is None or whole is None:
        return None
    kept = complete(records)
    if not kept:
        return None
    return Steady(
        span=span,
        sent=len(within(records, span)),
        share=span.seconds / whole.seconds,
        request=per_second(sum(span.holds(record.closed) for record in kept), span),
        output=per_second(_tokens(kept, span), span),
    )


def _tokens(records: Sequence[RequestRecord], span: Span) -> int | None:
    total = 0
    for record in records:
        counts = chunk_tokens(record)
        if counts is None:
            return None
        pairs = zip(output_chunks(record), counts, strict=True)
        total += sum(count for chunk, count in pairs if span.holds(chunk.at))
    return total
