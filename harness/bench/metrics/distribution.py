"""Many samples as a few figures, by one stated percentile rule, never without their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

RULE = "linear interpolation between the two nearest ranks (numpy's default, as vLLM and SGLang)"
PERCENTILES = (50.0, 90.0, 95.0, 99.0)
ABOVE = 10
"""Samples that have to lie above a percentile before it says something: P99 wants 1,000."""


def percentile(ordered: Sequence[float], q: float) -> float:
    """``q`` (0 to 100) of samples in ascending order, by RULE. P99 of 10, 20 ... 100 is 99.1 (nearest rank: 100).

    Raises:
        ValueError: no samples, or ``q`` outside 0 to 100.
    """
    if not ordered or not 0 <= q <= 100:
        raise ValueError(f"saw {len(ordered)} samples and q={q}, expected at least one and 0 to 100")
    place = q / 100 * (len(ordered) - 1)
    low = int(place)
    share = place - low
    if share == 0:
        return ordered[low]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * share


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """``std`` is that of the samples themselves (divided by n), as vLLM prints it. Units are those of the samples."""

    n: int
    mean: float
    std: float
    low: float
    high: float
    percentiles: Mapping[float, float]

    @property
    def median(self) -> float:
        """The 50th percentile."""
        return self.percentiles[50.0]

    def trusted(self, q: float) -> bool:
        """Whether at least ABOVE samples lie above percentile ``q``."""
        return self.n * (100 - q) / 100 >= ABOVE - 1e-9

    def scaled(self, factor: float) -> Distribution:
        """The same samples in another unit."""
        return Distribution(
            n=self.n,
            mean=self.mean * factor,
            std=self.std * abs(factor),
            low=self.low * factor,
            high=self.high * factor,
            percentiles={q: value * factor for q, value in self.percentiles.items()},
        )


def distribution(samples: Sequence[float], percentiles: Sequence[float] = PERCENTILES) -> Distribution | None:
    """``None`` where there is nothing to describe: no sample is not a sample of 0."""
    if not samples:
        return None
    ordered = sorted(samples)
    mean = sum(ordered) / len(ordered)
    return Distribution(
        n=len(ordered),
        mean=mean,
        std=sqrt(sum((sample - mean) ** 2 for sample in ordered) / len(ordered)),
        low=ordered[0],
        high=ordered[-1],
        percentiles={q: percentile(ordered, q) for q in sorted({50.0, *map(float, percentiles)})},
    )
