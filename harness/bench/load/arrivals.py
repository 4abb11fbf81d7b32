"""When requests are due: arrays of seconds from the run's beginning, ascending, drawn before anything is sent.

The generator that draws arrivals is the arrivals' own; prompts and sampling have theirs, so that changing the rate
leaves the requests as they were (MLPerf LoadGen keeps three seeds for the same reason).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.errors import UsageError

Times = NDArray[np.float64]  # [n], seconds


def constant(rate: float, n: int) -> Times:
    """``rate`` requests per second, the first at 0."""
    return np.arange(n) / _positive("rate", rate)


def poisson(rate: float, n: int, rng: np.random.Generator) -> Times:
    """Exponential gaps. The last arrival is where the draw puts it: see ``rescaled``."""
    return np.cumsum(rng.exponential(1 / _positive("rate", rate), n))


def gamma(rate: float, burstiness: float, n: int, rng: np.random.Generator) -> Times:
    """Gamma gaps with mean 1/rate and shape ``burstiness``: 1 is Poisson, less is clumps, infinite is constant."""
    _positive("rate", rate), _positive("burstiness", burstiness)
    if math.isinf(burstiness):
        return constant(rate, n)
    return np.cumsum(rng.gamma(burstiness, 1 / (rate * burstiness), n))


def ramp(
    start: float,
    end: float,
    seconds: float,
    n: int,
    *,
    rng: np.random.Generator | None = None,
    is_exponential: bool = False,
) -> Times:
    """The rate goes from ``start`` to ``end`` within ``seconds`` and stays there.

    Arrivals of a unit process, even without ``rng`` and Poisson with it, are carried through the inverse of the
    integrated rate; at no moment does the rate depend on what was drawn before.
    """
    for name, value in (("start rate", start), ("end rate", end), ("ramp time", seconds)):
        _positive(name, value)
    unit = np.arange(n, dtype=np.float64) if rng is None else np.cumsum(rng.exponential(1.0, n))
    if math.isclose(start, end):
        return unit / start
    if is_exponential:
        growth = math.log(end / start) / seconds
        whole = (end - start) / growth  # requests within the ramp
        inside = np.log1p(np.minimum(unit, whole) * growth / start) / growth
    else:
        slope = (end - start) / seconds
        whole = (start + end) / 2 * seconds
        root = np.sqrt(np.maximum(start**2 + 2 * slope * np.minimum(unit, whole), 0.0))
        inside = (root - start) / slope
    return np.asarray(np.where(unit <= whole, inside, seconds + (unit - whole) / end), dtype=np.float64)


def burst(n: int, size: int | None = None, every: float = 0.0) -> Times:
    """``size`` requests in one moment, again after ``every`` seconds; no ``size``: all of them at 0."""
    return np.asarray(np.arange(n) // (size or max(1, n)) * every, dtype=np.float64)


def trace(times: Sequence[float], *, speed: float = 1.0) -> Times:
    """Recorded arrivals, moved to begin at 0 and replayed ``speed`` times as fast.

    Raises:
        UsageError: they are not in order, or not numbers.
    """
    told = np.asarray(times, dtype=np.float64)
    if told.size and not (np.isfinite(told).all() and (np.diff(told) >= 0).all()):
        place = int(np.argmax(np.r_[False, np.diff(told) < 0] | ~np.isfinite(told)))
        raise UsageError(
            f"line {place + 1} of the trace: saw {told[place]}, expected a time not before the one above it",
            hint="sort the trace by time",
        )
    return (told - told[0]) / _positive("speed", speed) if told.size else told


def rescaled(times: Times, rate: float) -> Times:
    """vLLM's habit, for runs that are compared with its own: stretched so that the last arrival is at n/rate.

    The offered load is the same in every run, but the first request is late and it is a Poisson sample no more.
    """
    if not len(times) or times[-1] <= 0:
        return times
    return times * (len(times) / _positive("rate", rate) / times[-1])


def offered_rate(times: Times) -> float | None:
    """Requests per second between the first and the last arrival; ``None`` where that is no time."""
    span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    return (len(times) - 1) / span if span > 0 else None


def _positive(what: str, value: float) -> float:
    if not value > 0:
        raise UsageError(f"saw {what} {value:g}, expected more than 0", hint=f"pass a positive {what}")
    return value
