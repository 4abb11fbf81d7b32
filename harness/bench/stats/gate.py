"""Tonight against the past: nights first, which cost nothing, then interleaved pairs where those do not settle it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np

from harness.bench.stats.calibrate import Calibration
from harness.bench.stats.changepoints import change_points
from harness.bench.stats.compare import Comparison, Measure, interleaved
from harness.bench.stats.design import Design
from harness.bench.stats.estimate import Array, Estimate, prediction
from harness.bench.stats.fingerprint import Difference, differences, require_same
from harness.bench.stats.judge import Call, MetricResult, judge, overall
from harness.bench.stats.observe import observe
from harness.bench.stats.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The gate's answer and how it came about.

    ``against``: what tonight was held against, in words. ``nights`` and ``pairs``: how many of each were used.
    ``differs``: where no past night is of tonight's setting, on which keys the newest is not.
    """

    call: Call
    why: str
    against: str
    results: tuple[MetricResult, ...] = ()
    nights: int = 0
    pairs: int = 0
    refused: tuple[str, ...] = ()
    differs: tuple[Difference, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 nothing worse, 1 a regression, 125 nothing shown."""
        return self.call.exit_code

    @staticmethod
    def of(found: Comparison) -> GateReport:
        """A comparison in the same form, so that it can be written in the same ways."""
        left, right = len(found.baseline), len(found.candidate)
        return GateReport(
            call=found.call,
            why=_reasons(found.call, found.results) or "; ".join(found.refused),
            against=f"{left} runs" if left == right else f"{left} runs for {right}",
            results=found.results,
            pairs=min(left, right),
            refused=found.refused,
        )


def gate(
    tonight: Sequence[Run],
    nights: Sequence[Run],
    design: Design,
    calibration: Calibration | None = None,
    measure: Measure | None = None,
) -> GateReport:
    """Judge tonight's runs. ``nights``: past runs in any order, of any fingerprint; those that do not fit are left out.

    Past nights alone may pass tonight. They may call a regression only where nothing can be measured (``measure`` is
    ``None``); otherwise what they do not pass is decided by interleaved pairs, which do not share the night's weather
    with the baseline, and whose false alarms are bounded by ``design.alpha`` whatever the nights did.
    """
    refused = tuple(f"run {run.id}: {run.validity}" for run in tonight if not run.validity.comparable)
    valid = [run for run in tonight if run.validity.comparable]
    if not valid:
        why = "; ".join(refused) or "there is no run"
        return GateReport(call=Call.INCONCLUSIVE, why=why, against="nothing", refused=refused)
    require_same(valid)
    if calibration:
        calibration.require_fits(valid[0])
    tonight_began = min(
        run.time for run in valid
    )  # an old night that is judged again has later ones after it
    past = [run for run in nights if run.validity.comparable and run.time < tonight_began]
    fitting = [run for run in past if not differences(valid[0].fingerprint, run.fingerprint)]
    newest = max(past, key=lambda run: run.time, default=None)
    differs = differences(valid[0].fingerprint, newest.fingerprint) if newest and not fitting else ()
    window = _homogeneous(_by_night(fitting)[-design.window :], design)
    screened: GateReport | None = None
    if len(window) >= design.fewest:
        screened = _screen(valid, window, design, calibration, refused)
        if screened.exit_code == 0 or measure is None:
            return screened
    if measure is None:
        why = f"{len(window)} past nights of this setting at this level, {design.fewest} are needed"
        return GateReport(
            call=Call.INCONCLUSIVE, why=why, against="too few nights", refused=refused, differs=differs
        )
    found = GateReport.of(interleaved(measure, design, calibration))
    return replace(
        found,
        against=f"{found.pairs} interleaved pairs with the baseline",
        nights=len(window) if screened else 0,
        refused=refused + found.refused,
        differs=differs,
    )


def _screen(
    valid: Sequence[Run],
    window: Sequence[Sequence[Run]],
    design: Design,
    calibration: Calibration | None,
    refused: tuple[str, ...],
) -> GateReport:
    sizes = [len(night) for night in window]

    def predicted(one: Array, other: Array, worse: int, floor: float) -> Estimate | None:
        means = [_middle(part) for part in np.split(one, np.cumsum(sizes)[:-1])]
        return prediction(
            np.asarray(means), other, worse=worse, confidence=design.confidence, floor=floor, trim=design.trim
        )

    past = [run for night in window for run in night]
    seen = observe(past, valid, design, calibration, predicted, fewest=(design.fewest, 1))
    results = judge(seen, design, design.alpha, calibration)
    call = overall(results)
    return GateReport(
        call=call,
        why=_reasons(call, results),
        against=f"{len(window)} past nights",
        results=results,
        nights=len(window),
        refused=refused,
    )


def _middle(values: Array) -> float:
    """A night's value: the geometric mean of its runs, which share the night and so count once."""
    return float(np.exp(np.log(values).mean())) if values.min() > 0 else float(values.mean())


def _by_night(runs: Sequence[Run]) -> list[list[Run]]:
    nights: dict[date, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.time):
        nights.setdefault(run.time.date(), []).append(run)
    return list(nights.values())


def _homogeneous(nights: list[list[Run]], design: Design) -> list[list[Run]]:
    """The nights since the last change of level of any gated metric: a window across a step is no baseline."""
    start = 0
    for name in design.effects:
        values = [[run.number(name) for run in night] for night in nights]
        known = [[number for number in night if number is not None and number > 0] for night in values]
        if len(nights) > 2 and all(known):
            points = change_points([_middle(np.asarray(night)) for night in known])
            start = max([start, *(point.index for point in points)])
    return nights[start:]


def _reasons(call: Call, results: Sequence[MetricResult]) -> str:
    return "; ".join(f"{result.seen.metric}: {result.why}" for result in results if result.call is call)
