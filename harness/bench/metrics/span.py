"""Which requests of a run are measured, and over how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bench.record import Outcome, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of the run's clock, in seconds."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin

    def holds(self, at: float) -> bool:
        """Whether an instant lies in it: the beginning does, the end does not."""
        return self.begin <= at < self.end


def measured(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Everything but the warm-up."""
    return [record for record in records if not record.warm_up]


def complete(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The measured requests that succeeded: latencies are theirs alone."""
    return [record for record in measured(records) if record.outcome is Outcome.COMPLETE]


def span_of(records: Sequence[RequestRecord]) -> Span | None:
    """From the first scheduled (or sent) measured request to the end of the last stream, ramp and drain included."""
    kept = measured(records)
    if not kept:
        return None
    return Span(
        begin=min(min(record.scheduled, record.sent) for record in kept),
        end=max(record.closed for record in kept),
    )


def per_second(amount: float | None, span: Span | None) -> float | None:
    """A rate; ``None`` where nothing is known of the amount, or no time has passed."""
    if amount is None or span is None or span.seconds <= 0:
        return None
    return amount / span.seconds
