"""The clock of a run: monotonic, the same in every process of a machine, and 0 at the run's beginning."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Clock:
    """``origin`` is a reading of ``time.monotonic``; workers of one run share it."""

    origin: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.origin

    def at(self, monotonic: float) -> float:
        """A reading of ``time.monotonic`` on this clock."""
        return monotonic - self.origin
