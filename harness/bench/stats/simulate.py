"""Nights whose truth is known: runs with a stated noise model, for measuring what the gate's answers are worth.

One run: ``requests`` requests in a closed loop of ``concurrency``, each with log-normal TTFT and TPOT. Three things
move a whole run: the night (shared by all its runs), a linear drift over the night, and the run-to-run effect. TTFT
and TPOT share half of each effect's variance, since a slow machine is slow at both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import sqrt

import numpy as np

from harness.bench.stats.compare import Measure
from harness.bench.stats.estimate import Array
from harness.bench.stats.run import Direction, Run, Value

FINGERPRINT = {"hardware": "simulated", "model": "simulated"}
START = datetime(2026, 1, 1, 2, tzinfo=UTC)
STALL = float(np.log(1.3))
LONG = 30  # runs that a night's drift is spread over
TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviations of logarithms, except ``drift``: the whole change over a night's 30 runs, either way.

    ``stalls``: the share of runs that something else on the host slows down by 30 %.
    """

    run: float = 0.02
    night: float = 0.01
    drift: float = 0.02
    request: float = 0.5
    stalls: float = 0.0
    requests: int = 500
    concurrency: int = 10


class Night:
    """A night's runs, one after the other; ``tpot`` and ``ttft`` factors make a run slower than the truth."""

    def __init__(self, number: int, noise: Noise, rng: np.random.Generator) -> None:
        self._noise, self._rng = noise, rng
        self._time = START + timedelta(days=number)
        self._night = _shared(noise.night, rng)
        self._drift = float(rng.uniform(-noise.drift, noise.drift))
        self._made = 0

    def run(self, *, tpot: float = 1.0, ttft: float = 1.0, commit: str = "0" * 8) -> Run:
        """One more run of this night."""
        noise = self._noise
        stall = STALL * (self._rng.random() < noise.stalls)
        effect = np.exp(
            self._night + _shared(noise.run, self._rng) + self._drift * self._made / LONG + stall
        )  # [TTFT, TPOT]
        spread = np.exp(self._rng.normal(0.0, noise.request, (2, noise.requests)))
        first = 80.0 * ttft * effect[0] * spread[0]  # ms
        token = 10.0 * tpot * effect[1] * spread[1]  # ms
        self._made += 1
        return Run(
            fingerprint=FINGERPRINT,
            values=_values(first, token, noise.concurrency),
            time=self._time + timedelta(minutes=5 * self._made),
            commit=commit,
        )

    def measure(self, *, tpot: float = 1.0, ttft: float = 1.0) -> Measure:
        """A callback for the gate: pairs of an unchanged baseline and a candidate slower by the factors."""

        def pair(baseline_first: bool) -> tuple[Run, Run]:
            if baseline_first:
                left = self.run()
                return left, self.run(tpot=tpot, ttft=ttft)
            right = self.run(tpot=tpot, ttft=ttft)
            return self.run(), right

        return pair


def past_nights(
    count: int, noise: Noise, rng: np.random.Generator, factors: Sequence[float] = ()
) -> list[Run]:
    """One run from each of ``count`` nights, numbered from 0; ``factors`` slow down the TPOT of each."""
    return [
        Night(at, noise, rng).run(tpot=factors[at] if factors else 1.0, commit=f"{at:08x}")
        for at in range(count)
    ]


def _shared(sd: float, rng: np.random.Generator) -> Array:
    """Effects on TTFT and TPOT with this standard deviation each and a correlation of 1/2; ``[2]``."""
    common, apart = rng.normal(), rng.normal(size=2)
    effects: Array = sd * sqrt(0.5) * (common + apart)
    return effects


def _values(first: Array, token: Array, concurrency: int) -> dict[str, Value]:
    whole = first + (TOKENS - 1) * token
    seconds = float(whole.sum()) / concurrency / 1000

    def latency(value: float, quantile: float | None = None) -> Value:
        return Value(
            value=float(value), unit="ms", direction=Direction.LOWER, quantile=quantile, count=len(first)
        )

    return {
        "ttft_median": latency(np.median(first), 0.5),
        "ttft_p99": latency(np.quantile(first, 0.99), 0.99),
        "tpot_mean": latency(token.mean()),
        "tpot_p99": latency(np.quantile(token, 0.99), 0.99),
        "e2el_mean": latency(whole.mean()),
        "output_throughput": Value(
            value=len(first) * TOKENS / seconds, unit="tok/s", direction=Direction.HIGHER, count=len(first)
        ),
    }
