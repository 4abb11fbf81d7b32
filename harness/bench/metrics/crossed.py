"""Speculation off and on, free and guided: how much of the speed-up survives the grammar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.bench.metrics.scatter import Signs, around

FREE: Signs = {"free_on": 1, "free_off": -1}
GUIDED: Signs = {"guided_on": 1, "guided_off": -1}
RATIOS: Mapping[str, Signs] = {
    "speedup_free": FREE,
    "speedup_guided": GUIDED,
    "interaction": {**GUIDED, **{name: -sign for name, sign in FREE.items()}},
    "cost_off": {"guided_off": 1, "free_off": -1},
    "cost_on": {"guided_on": 1, "free_on": -1},
}
"""Ratios, and the sign of each cell in their logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """One rate (more is better: output tokens per second) of each of the four cells; ``None``: not measured.

    ``halves``: of ``RATIOS``, half of the interval of its logarithm, ``None`` where there are too few requests for one;
    no mapping where nobody asked.
    """

    free_off: float | None
    free_on: float | None
    guided_off: float | None
    guided_on: float | None
    halves: Mapping[str, float | None] | None = None

    @property
    def speedup_free(self) -> float | None:
        """On against off without a grammar."""
        return _ratio(self.free_on, self.free_off)

    @property
    def speedup_guided(self) -> float | None:
        """On against off with one."""
        return _ratio(self.guided_on, self.guided_off)

    @property
    def cost_off(self) -> float | None:
        """What a grammar leaves of the rate without speculation: guided against free."""
        return _ratio(self.guided_off, self.free_off)

    @property
    def cost_on(self) -> float | None:
        """The same with speculation."""
        return _ratio(self.guided_on, self.free_on)

    @property
    def interaction(self) -> float | None:
        """Speed-up guided over speed-up free: 1 where speculation and grammar leave each other alone."""
        return _ratio(self.speedup_guided, self.speedup_free)

    @property
    def kept(self) -> float | None:
        """Share of the gain that survives the grammar: 1 all of it, 0 none, below 0 a loss.

        ``None`` where speculation is not shown to gain anything without a grammar: then there is nothing to keep.
        """
        free, guided = self.speedup_free, self.speedup_guided
        if free is None or guided is None or free <= 1 or not self.is_shown("speedup_free"):
            return None
        return (guided - 1) / (free - 1)

    def interval(self, name: str) -> tuple[float, float] | None:
        """Of one of ``RATIOS``; ``None``: there is none."""
        ratio, half = getattr(self, name), (self.halves or {}).get(name)
        return None if ratio is None or half is None else around(ratio, half)

    def is_shown(self, name: str) -> bool:
        """Whether 1 lies outside of the interval; true where nobody asked for one."""
        if self.halves is None:
            return True
        found = self.interval(name)
        return found is not None and not found[0] <= 1 <= found[1]


def _ratio(upper: float | None, lower: float | None) -> float | None:
    return None if upper is None or not lower else upper / lower
