"""How many requests were under way, exactly: a sweep over their beginnings and ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.bench.metrics.span import Span, complete, measured, span_of
from harness.bench.record import RequestRecord


def levels(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, int]]:
    """(instant, how many are under way from then on), in order of time. An end at the instant of a beginning is first:
    requests back to back are never two at once."""
    changes: dict[float, int] = {}
    for begin, end in intervals:
        if end > begin:
            changes[begin] = changes.get(begin, 0) + 1
            changes[end] = changes.get(end, 0) - 1
    level, steps = 0, []
    for at in sorted(changes):
        level += changes[at]
        steps.append((at, level))
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """``mean`` is the time average over the span, ``little`` throughput times mean time in the system.

    They are equal where every request began and ended within the span (Little's law): ``gap`` is their relative
    difference, and says that requests were under way at the edges, or that some failed.
    """

    peak: int
    mean: float
    little: float | None
    gap: float | None


def concurrency(records: Sequence[RequestRecord], span: Span | None = None) -> Concurrency | None:
    """Of all measured requests, those that failed included: they took their place. ``None`` where no time passed."""
    within = span or span_of(records)
    if within is None or within.seconds <= 0:
        return None
    kept = measured(records)
    steps = levels((max(record.sent, within.begin), min(record.closed, within.end)) for record in kept)
    area = sum(level * (after - at) for (at, level), (after, _) in pairwise(steps))
    mean = area / within.seconds
    done = [record for record in complete(records) if within.begin <= record.closed <= within.end]
    little = sum(record.closed - record.sent for record in done) / within.seconds if done else None
    return Concurrency(
        peak=max((level for _, level in steps), default=0),
        mean=mean,
        little=little,
        gap=None if little is None or mean == 0 else (little - mean) / mean,
    )
