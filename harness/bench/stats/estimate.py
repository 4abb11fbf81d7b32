"""The ratio of two groups of runs with its interval and p-values: Welch's t on logarithms."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """``shift``: log of candidate over baseline, signed so that positive is worse; ``low`` and ``high`` its interval.

    ``p_worse`` and ``p_better`` are one-sided. ``linear``: the values held a zero, which has no logarithm, and
    ``shift`` is the difference of the means over the baseline's mean instead.
    """

    shift: float
    low: float
    high: float
    p_worse: float
    p_better: float
    se: float
    df: float
    linear: bool = False

    @property
    def half_width(self) -> float:
        """Half of the interval, in the unit of ``shift``."""
        return (self.high - self.low) / 2

    @property
    def change(self) -> tuple[float, float, float]:
        """How much worse as a share (0.1: 10 %): estimate, low, high."""
        return (self.as_share(self.shift), self.as_share(self.low), self.as_share(self.high))

    def as_share(self, shift: float) -> float:
        """A shift as the share by which the candidate is worse."""
        return shift if self.linear else exp(shift) - 1


def ratio(
    baseline: Array,
    candidate: Array,
    *,
    worse: int,
    confidence: float,
    floor: float = 0.0,
    trim: float = 0.0,
) -> Estimate | None:
    """Candidate against baseline, each ``[runs]``, two runs at least; ``None`` where no ratio exists (baseline 0).

    Welch (1947) on logarithms of run-level values; with ``trim``, Yuen (1974). ``floor``: the standard deviation that
    one run is known to have at least (from ``calibrate``), so that a few runs which agree by accident prove nothing.
    """
    scaled = _scaled(baseline, candidate)
    if scaled is None:
        return None
    left, right = (centre(part, trim) for part in scaled[:2])
    parts = [max(side.sd, floor) ** 2 / side.runs for side in (left, right)]
    se = sqrt(sum(parts))
    df = (
        se**4 / sum(p**2 / (side.kept - 1) for p, side in zip(parts, (left, right), strict=True))
        if se
        else 1.0
    )
    return student(worse * (right.mean - left.mean), se, df, confidence, scaled[2])


def prediction(
    nights: Array, tonight: Array, *, worse: int, confidence: float, floor: float = 0.0, trim: float = 0.0
) -> Estimate | None:
    """Tonight's runs against ``[nights]``, one value each: where the next night must lie if nothing changed.

    Several runs of tonight are one observation (their geometric mean): they share what the night does to all of them.
    """
    scaled = _scaled(nights, tonight)
    if scaled is None:
        return None
    past = centre(scaled[0], trim)
    se = max(past.sd, floor) * sqrt(1 + 1 / past.runs)
    return student(worse * (float(scaled[1].mean()) - past.mean), se, past.kept - 1, confidence, scaled[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Centre:
    """The middle of some runs: ``sd / sqrt(runs)`` is the standard error of ``mean``, which rests on ``kept`` runs."""

    mean: float
    sd: float
    runs: int
    kept: int


def centre(values: Array, trim: float = 0.0) -> Centre:
    """The mean without the lowest and the highest ``trim`` of the values (whole runs), with its error (Yuen 1974).

    The error comes from the values after those left out were moved to the outermost that stayed (winsorized).
    """
    runs, cut = len(values), int(trim * len(values))
    ordered = np.sort(values)
    inner = ordered[cut : runs - cut]
    kept = len(inner)
    moved = ordered.clip(inner[0], inner[-1])
    squares = float(((moved - moved.mean()) ** 2).sum())
    return Centre(
        mean=float(inner.mean()), sd=sqrt(squares * runs / (kept * (kept - 1))), runs=runs, kept=kept
    )


def student(shift: float, se: float, df: float, confidence: float, linear: bool = False) -> Estimate:
    """The interval and p-values of a shift with a t-distributed error; without any error they are exact."""
    if not se:
        p = (0.5, 0.5) if shift == 0 else (0.0, 1.0) if shift > 0 else (1.0, 0.0)
        return Estimate(
            shift=shift, low=shift, high=shift, p_worse=p[0], p_better=p[1], se=0.0, df=df, linear=linear
        )
    t = shift / se
    reach = float(special.stdtrit(df, 0.5 + confidence / 2)) * se
    return Estimate(
        shift=shift,
        low=shift - reach,
        high=shift + reach,
        p_worse=float(special.stdtr(df, -t)),
        p_better=float(special.stdtr(df, t)),
        se=se,
        df=df,
        linear=linear,
    )


def holm(p_values: list[float]) -> list[float]:
    """Adjusted p-values after Holm (1979), in the same order; valid however the metrics depend on each other."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, p_values[at] * (len(p_values) - rank)))
        adjusted[at] = highest
    return adjusted


def shift_of(share: float, linear: bool = False) -> float:
    """A share (0.05: 5 % worse) in the unit of ``Estimate.shift``."""
    return share if linear else log(1 + share)


def _scaled(left: Array, right: Array) -> tuple[Array, Array, bool] | None:
    if min(left.min(), right.min()) > 0:
        return np.log(left), np.log(right), False
    middle = float(left.mean())
    return (left / middle, right / middle, True) if middle > 0 else None
