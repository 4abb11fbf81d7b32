"""A run as statistics see it: what must agree, one number per metric, and whether it may be compared at all."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite

from harness.errors import UsageError


class Direction(enum.Enum):
    """Which way a metric gets better."""

    LOWER = "lower is better"
    HIGHER = "higher is better"

    @property
    def worse(self) -> int:
        """The sign of a log-ratio (candidate over baseline) that means worse."""
        return 1 if self is Direction.LOWER else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A metric of one run. ``value`` is ``None`` where nothing was measured; 0 is a measurement.

    ``quantile`` marks a percentile (0.99), which is gated only where it is known well enough; ``count`` is how many
    samples of this run stand behind the number, ``None`` where nobody counted.
    """

    value: float | None
    unit: str
    direction: Direction
    quantile: float | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if self.value is not None and not isfinite(self.value):
            raise UsageError(
                f"a metric in {self.unit!r}: saw {self.value}, expected a finite number or null",
                hint="a metric that was not measured is null",
            )
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise UsageError(f"a percentile: saw quantile {self.quantile}, expected one between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """Whether a run may be compared: its answers were right, and the server rather than the client was the limit."""

    correct: bool = True
    client_bound: bool = False
    why: str = ""

    @property
    def comparable(self) -> bool:
        """Only such runs are compared, calibrated with or counted as a night."""
        return self.correct and not self.client_bound

    def __str__(self) -> str:
        words = "valid" if self.comparable else "not correct" if not self.correct else "client-bound"
        return f"{words}: {self.why}" if self.why else words


def new_id() -> str:
    """16 hex digits that no other run has."""
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One benchmark run. ``time`` has a time zone; ``commit`` is what was served.

    ``fingerprint``: what must agree before two runs are compared (hardware, model, server flags, data, seeds, client
    version); the commit is not part of it. ``samples``: values per request, by metric, where they are at hand.
    ``series`` keeps nightly runs apart from calibrations and interleaved baselines.
    """

    fingerprint: Mapping[str, str]
    values: Mapping[str, Value]
    time: datetime
    commit: str
    validity: Validity = field(default_factory=Validity)
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    series: str = "nightly"
    id: str = field(default_factory=new_id)

    def __post_init__(self) -> None:
        if self.time.tzinfo is None:
            raise UsageError(f"run {self.id}: its time {self.time} has no time zone, expected one")

    def number(self, metric: str) -> float | None:
        """The value of a metric; ``None`` where it was not measured or the run may not be compared."""
        if not self.validity.comparable or metric not in self.values:
            return None
        return self.values[metric].value
