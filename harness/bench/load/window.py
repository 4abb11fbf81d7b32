"""The steady part of a run: after its ramp and before its drain (sglang#30918)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.bench.load.shape import Closed, Shape
from harness.bench.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Seconds on the run's clock."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin

    def holds(self, record: RequestRecord) -> bool:
        """Whether a request lies wholly inside; one that only reaches in was served in part under another load."""
        return self.begin <= record.sent and record.closed <= self.end


def steady(records: Iterable[RequestRecord], shape: Shape) -> Window | None:
    """From the first answer that was over until the last request was sent; ``None`` where nothing lies between.

    Before the first answer the load only grows, and behind the last request it only shrinks. With so many clients, the
    beginning is also not before all of them were in flight at once.
    """
    measured = [record for record in records if not record.warm_up]
    if not measured:
        return None
    begin = min(record.closed for record in measured)
    end = max(record.sent for record in measured)
    if isinstance(shape, Closed):
        order = sorted(record.sent for record in measured)
        if len(order) < shape.concurrency:
            return None
        begin = max(begin, order[shape.concurrency - 1])
    return Window(begin=begin, end=end) if begin < end else None
