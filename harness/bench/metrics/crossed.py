"""Speculation off and on, free and guided: how much of the speed-up survives the grammar."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossed:
    """One rate (more is better: output tokens per second) of each of the four cells; ``None``: not measured."""

    free_off: float | None
    free_on: float | None
    guided_off: float | None
    guided_on: float | None

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

        ``None`` where speculation gains nothing without a grammar: then there is nothing to keep.
        """
        free, guided = self.speedup_free, self.speedup_guided
        if free is None or guided is None or free <= 1:
            return None
        return (guided - 1) / (free - 1)


def _ratio(upper: float | None, lower: float | None) -> float | None:
    return None if upper is None or not lower else upper / lower
