"""Baseline runs against candidate runs; and interleaved repeats until the answer is known or the budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from harness.bench.stats.calibrate import Calibration
from harness.bench.stats.design import Design
from harness.bench.stats.estimate import Array, Estimate, ratio
from harness.bench.stats.fingerprint import require_same
from harness.bench.stats.judge import Call, MetricResult, judge, overall
from harness.bench.stats.observe import observe
from harness.bench.stats.run import Run

Measure = Callable[[bool], tuple[Run, Run]]
"""Measures one more pair, the baseline first where told so -> (baseline, candidate)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two groups of runs show. ``alpha``: the level of this look; ``refused``: runs left out, and why."""

    call: Call
    results: tuple[MetricResult, ...]
    baseline: tuple[Run, ...]
    candidate: tuple[Run, ...]
    alpha: float
    refused: tuple[str, ...] = ()


def compare(
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    design: Design,
    calibration: Calibration | None = None,
    *,
    across: Collection[str] = (),
    alpha: float | None = None,
) -> Comparison:
    """Run-level comparison, at the family-wise level ``alpha`` (the design's where not given).

    Runs that are not valid are left out. Raises Incomparable where fingerprints differ in a key that is not in
    ``across``, also against those of the calibration.
    """
    level = design.alpha if alpha is None else alpha
    require_same([*baseline, *candidate], across)
    if calibration:
        for run in [*baseline, *candidate]:
            calibration.require_fits(run, across)
    left, right = (tuple(run for run in runs if run.validity.comparable) for runs in (baseline, candidate))
    refused = tuple(
        f"run {run.id}: {run.validity}" for run in [*baseline, *candidate] if not run.validity.comparable
    )

    def welch(one: Array, other: Array, worse: int, floor: float) -> Estimate | None:
        return ratio(one, other, worse=worse, confidence=design.confidence, floor=floor, trim=design.trim)

    results = judge(observe(left, right, design, calibration, welch), design, level, calibration)
    return Comparison(
        call=overall(results),
        results=results,
        baseline=left,
        candidate=right,
        alpha=level,
        refused=refused,
    )


def interleaved(
    measure: Measure,
    design: Design,
    calibration: Calibration | None = None,
    *,
    across: Collection[str] = (),
) -> Comparison:
    """Pairs in the order ABBA until nothing gated is inconclusive, ``max_pairs`` at most.

    A regression ends it too. The looks share the design's alpha. A pair with an invalid run is measured again in the
    same order, as often as half of ``max_pairs`` in all; if that does not suffice the answer is inconclusive.
    """
    baseline: list[Run] = []
    candidate: list[Run] = []
    refused: list[str] = []
    for look in design.looks:
        while len(baseline) < look:
            left, right = measure(len(baseline) % 2 == 0)
            bad = [run for run in (left, right) if not run.validity.comparable]
            if not bad:
                baseline.append(left)
                candidate.append(right)
                continue
            refused.append("; ".join(f"run {run.id}: {run.validity}" for run in bad))
            if len(refused) > design.max_pairs // 2:
                # Alpha 0: this is no look of the plan, so nothing may be claimed from it.
                stopped = compare(baseline, candidate, design, calibration, across=across, alpha=0.0)
                return replace(stopped, call=Call.INCONCLUSIVE, refused=tuple(refused))
        found = compare(baseline, candidate, design, calibration, across=across, alpha=design.alpha_at(look))
        if found.call is not Call.INCONCLUSIVE or not _may_resolve(found):
            break
    return replace(found, refused=tuple(refused))


def _may_resolve(found: Comparison) -> bool:
    """Whether more pairs can help: a metric that was not measured stays so."""
    return any(result.call is Call.INCONCLUSIVE and not result.seen.missing for result in found.results)
