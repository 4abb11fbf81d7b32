"""How requests are let go: so many at a time, or each at its moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """``concurrency`` clients, each asking again as soon as it is answered."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"saw concurrency {self.concurrency}, expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """``times[i]`` seconds after the beginning the i-th request is due, whatever became of those before it.

    ``most_in_flight``: what is due beyond that waits, first come first served, and its wait counts from its moment
    (vllm#54101 left it out: 506 ms reported, 1,932 ms real).
    """

    times: Sequence[float]
    most_in_flight: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", tuple(map(float, self.times)))  # an array, as often as not
        if any(b < a for a, b in zip(self.times, self.times[1:], strict=False)):
            raise UsageError("saw arrival times that go back, expected ascending ones")
        if self.most_in_flight is not None and self.most_in_flight < 1:
            raise UsageError(f"saw {self.most_in_flight} requests in flight at most, expected at least 1")


Shape = Closed | Open


def share(shape: Shape, worker: int, workers: int) -> Shape:
    """The part of one of several processes: every ``workers``-th arrival, and its part of the places."""
    if isinstance(shape, Closed):
        return Closed(concurrency=_part(shape.concurrency, worker, workers))
    most = shape.most_in_flight
    return Open(
        times=shape.times[worker::workers],
        most_in_flight=None if most is None else _part(most, worker, workers),
    )


def _part(whole: int, worker: int, workers: int) -> int:
    if whole < workers:
        raise UsageError(
            f"saw {workers} workers for {whole} places, expected at least one place for each",
            hint=f"--workers {whole}",
        )
    return whole // workers + (worker < whole % workers)
