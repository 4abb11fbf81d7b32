"""From observations to calls: one for each metric, under one family-wise level."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.bench.stats.calibrate import Calibration
from harness.bench.stats.design import Design
from harness.bench.stats.estimate import Estimate, holm, shift_of
from harness.bench.stats.observe import Observation

MOST_MARGIN = 2.0
"""Where noise hides the practical effect, a pass may rest on what can be seen, up to this many times the effect."""


class Call(enum.Enum):
    """What was shown. ``INCONCLUSIVE``: neither a change that matters nor its absence."""

    PASS = "pass"
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """0, 1, or 125, so that ``git bisect run`` skips what was not shown."""
        return {Call.REGRESSION: 1, Call.INCONCLUSIVE: 125}.get(self, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricResult:
    """What was seen of a metric and what it is called; ``call`` is ``None`` where it is only observed.

    ``effect``: the smallest change that matters, ``None`` where it is not gated; ``margin``: what the whole interval
    must stay below to pass (both shares). ``p_adjusted``: one-sided for worse, after Holm.
    """

    seen: Observation
    call: Call | None
    why: str
    effect: float | None = None
    margin: float | None = None
    p_adjusted: float | None = None


def judge(
    seen: Sequence[Observation], design: Design, alpha: float, calibration: Calibration | None = None
) -> tuple[MetricResult, ...]:
    """A call for each gated metric, at the family-wise level ``alpha`` for regressions (and again for improvements).

    A gated metric without an estimate is inconclusive. A percentile that is not known well enough is only observed,
    yet it stays in Holm's family with p = 1: were it left out because its interval came out wide, tonight's data
    would choose the family.
    """
    family = {one.metric: one.estimate for one in seen if one.metric in design.effects}
    observed = {one.metric: _unfit(one, design) for one in seen}
    estimates = [None if observed[name] else estimate for name, estimate in family.items()]
    worse = dict(zip(family, holm([e.p_worse if e else 1.0 for e in estimates]), strict=True))
    better = dict(zip(family, holm([e.p_better if e else 1.0 for e in estimates]), strict=True))
    results = []
    for one in seen:
        if observed[one.metric]:
            effect = design.effects.get(one.metric)
            results.append(MetricResult(seen=one, call=None, why=observed[one.metric], effect=effect))
        else:
            results.append(_result(one, design, worse, better, alpha, calibration))
    return tuple(results)


def overall(results: Iterable[MetricResult]) -> Call:
    """A regression beats inconclusive beats the rest; where nothing was gated nothing was shown."""
    return worst(result.call for result in results)


def worst(calls: Iterable[Call | None]) -> Call:
    """The same of calls; ``None`` is observed."""
    seen = set(calls)
    order = (Call.REGRESSION, Call.INCONCLUSIVE, Call.IMPROVEMENT, Call.PASS)
    return next((call for call in order if call in seen), Call.INCONCLUSIVE)


def _unfit(one: Observation, design: Design) -> str:
    """Why a metric is only observed; empty for one that is gated."""
    if one.metric not in design.effects:
        return one.missing or "not gated"
    if not one.tail:
        return ""
    if one.thin:
        return one.thin
    effect = design.effects[one.metric]
    if one.estimate and one.estimate.half_width > shift_of(effect, one.estimate.linear):
        return f"known to ±{one.estimate.half_width:.1%} only, and {effect:.0%} is what matters"
    return ""


def _result(
    one: Observation,
    design: Design,
    worse: Mapping[str, float],
    better: Mapping[str, float],
    alpha: float,
    calibration: Calibration | None,
) -> MetricResult:
    effect = design.effects[one.metric]
    smallest = calibration.smallest_of(one.metric) if calibration else 0.0
    margin = max(effect, min(smallest, MOST_MARGIN * effect))
    call, why = Call.INCONCLUSIVE, one.missing
    if one.estimate:
        p_worse, p_better = worse[one.metric], better[one.metric]
        call, why = _call(one.estimate, effect, margin, p_worse <= alpha, p_better <= alpha)
    return MetricResult(
        seen=one, call=call, why=why, effect=effect, margin=margin, p_adjusted=worse[one.metric]
    )


def _call(
    estimate: Estimate, effect: float, margin: float, is_worse: bool, is_better: bool
) -> tuple[Call, str]:
    matters, allowed = (shift_of(share, estimate.linear) for share in (effect, margin))
    change, low, high = estimate.change
    if is_worse and estimate.shift >= matters:
        return Call.REGRESSION, f"worse by {change:.1%}"
    if is_better and estimate.shift <= -matters:
        return Call.IMPROVEMENT, f"better by {-change:.1%}"
    if estimate.high < allowed:
        return Call.PASS, f"worse by {max(high, 0.0):.1%} at most, {margin:.1%} is allowed"
    return Call.INCONCLUSIVE, f"between {low:+.1%} and {high:+.1%} worse, {margin:.1%} is allowed"
