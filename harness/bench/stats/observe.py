"""Two groups of runs, metric by metric: what was measured, the estimate, and why there may be none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.bench.stats.calibrate import Calibration
from harness.bench.stats.design import Design
from harness.bench.stats.estimate import Array, Estimate
from harness.bench.stats.run import Direction, Run, Value

Estimator = Callable[[Array, Array, int, float], Estimate | None]
"""(baseline ``[runs]``, candidate ``[runs]``, the sign of worse, the noise floor) -> estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """``baseline`` and ``candidate``: medians of the run-level values, ``None`` where nothing was measured.

    ``missing`` says why there is no estimate. ``thin`` says why a percentile rests on too few samples to be gated.
    """

    metric: str
    unit: str
    direction: Direction
    quantile: float | None
    baseline: float | None
    candidate: float | None
    estimate: Estimate | None
    missing: str = ""
    thin: str = ""

    @property
    def tail(self) -> bool:
        """A percentile above the median: gated only where it is known well enough."""
        return self.quantile is not None and self.quantile > 0.5


def observe(
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    design: Design,
    calibration: Calibration | None,
    estimator: Estimator,
    fewest: tuple[int, int] = (2, 2),
) -> tuple[Observation, ...]:
    """Every metric that a run has and every gated one, in that order; the runs are comparable and of one setting.

    A metric that is null in any run is not compared: leaving those runs out would choose runs by their results.
    ``fewest``: runs that either side needs.
    """
    names = dict.fromkeys(
        [*design.effects, *(name for run in [*baseline, *candidate] for name in run.values)]
    )
    return tuple(
        _observe(name, baseline, candidate, design, calibration, estimator, fewest) for name in names
    )


def _observe(
    name: str,
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    design: Design,
    calibration: Calibration | None,
    estimator: Estimator,
    fewest: tuple[int, int],
) -> Observation:
    left, right = ([run.values.get(name) for run in runs] for runs in (baseline, candidate))
    known = [value for value in [*left, *right] if value is not None]
    kinds = {(value.unit, value.direction, value.quantile) for value in known}
    first = known[0] if known else Value(value=None, unit="", direction=Direction.LOWER)
    numbers = [
        [value.value for value in side if value is not None and value.value is not None]
        for side in (left, right)
    ]
    missing, estimate = "", None
    if len(kinds) > 1:
        listed = " and ".join(sorted(f"{unit} ({direction.value})" for unit, direction, _ in kinds))
        missing = f"runs do not agree on what it is: {listed}"
    for side, got, runs, least in zip(
        ("baseline", "candidate"), numbers, (baseline, candidate), fewest, strict=True
    ):
        if not missing and len(got) < len(runs):
            missing = f"not measured in {len(runs) - len(got)} of {len(runs)} {side} runs"
        elif not missing and len(got) < least:
            missing = f"{len(got)} {side} runs, {least} are needed"
    if not missing:
        floor = calibration.floor_of(name) if calibration else 0.0
        arrays = [np.asarray(got, dtype=np.float64) for got in numbers]
        estimate = estimator(arrays[0], arrays[1], first.direction.worse, floor)
        missing = "" if estimate else "the baseline is 0 or less, so there is no ratio"
    middles = [float(np.median(got)) if got else None for got in numbers]
    return Observation(
        metric=name,
        unit=first.unit,
        direction=first.direction,
        quantile=first.quantile,
        baseline=middles[0],
        candidate=middles[1],
        estimate=estimate,
        missing=missing,
        thin=_thin(first.quantile, known, design),
    )


def _thin(quantile: float | None, values: Sequence[Value], design: Design) -> str:
    if quantile is None or quantile <= 0.5:
        return ""
    counts = [value.count for value in values]
    if any(count is None for count in counts):
        return "nobody says how many samples stand behind this percentile"
    beyond = min(count or 0 for count in counts) * (1 - quantile)
    if beyond < design.tail_samples * (1 - 1e-9):
        return f"{beyond:.3g} samples of a run lie beyond this percentile, {design.tail_samples:g} are needed"
    return ""
