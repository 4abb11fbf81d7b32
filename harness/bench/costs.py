"""What one variant costs against another, where both are right: speed bought with wrong answers has no price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from harness.bench.stats.compare import Comparison, compare
from harness.bench.stats.design import Design
from harness.bench.stats.judge import Call, MetricResult
from harness.bench.stats.run import Run

EFFECTS: Mapping[str, float] = MappingProxyType(
    {"throughput.output": 0.05, "tpot.mean_ms": 0.05, "ttft.median_ms": 0.05, "e2el.mean_ms": 0.05}
)
"""Metrics that are told, with the smallest change that matters."""
FEWEST = 2
"""Runs of either side that an interval takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """``wrong``: which variants are, and why; then there is no ``found``. Nor is there where too few runs counted."""

    old: str
    new: str
    guided: bool
    wrong: tuple[str, ...] = ()
    too_few: str = ""
    found: Comparison | None = None

    @property
    def exit_code(self) -> int:
        """1: the new one is wrong; 125: undecided. A price is no failure, and a wrong old one is why there is a fix."""
        if any(line.startswith(f"{self.new} ") for line in self.wrong):
            return 1
        undecided = self.found is not None and self.found.call is Call.INCONCLUSIVE
        return 125 if self.too_few or undecided else 0

    @property
    def rows(self) -> Iterator[tuple[str, ...]]:
        """Metric, before, after, worse by, interval, call."""
        for result in self._gated:
            seen, estimate = result.seen, result.seen.estimate
            if estimate is None:
                continue
            change, low, high = estimate.change
            call = result.call.value if result.call else "observed"
            yield (
                seen.metric,
                f"{seen.baseline:.4g} {seen.unit}",
                f"{seen.candidate:.4g} {seen.unit}",
                f"{change:+.1%}",
                f"{low:+.1%} to {high:+.1%}",
                call,
            )

    @property
    def _gated(self) -> list[MetricResult]:
        return [one for one in self.found.results if one.seen.metric in EFFECTS] if self.found else []

    def __str__(self) -> str:
        kind = "guided" if self.guided else "free"
        head = f"{kind}: {self.new} against {self.old}"
        if self.wrong:
            return f"{head}: no price, {'; '.join(self.wrong)}"
        if self.too_few:
            return f"{head}: not known, {self.too_few}"
        speed = next((one for one in self._gated if one.seen.metric == "throughput.output"), None)
        if speed is None or speed.seen.estimate is None:
            return f"{head}: not known"
        change, low, high = speed.seen.estimate.change
        call = speed.call.value if speed.call else "observed"
        return f"{head}: output rate worse by {change:+.1%} ({low:+.1%} to {high:+.1%}): {call}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        metrics = {}
        for one in self._gated:
            if one.seen.estimate is not None:
                change, low, high = one.seen.estimate.change
                metrics[one.seen.metric] = {
                    "before": one.seen.baseline,
                    "after": one.seen.candidate,
                    "worse_by": change,
                    "interval": [low, high],
                    "call": one.call.value if one.call else None,
                }
        return {
            "old": self.old,
            "new": self.new,
            "guided": self.guided,
            "wrong": list(self.wrong),
            "too_few": self.too_few,
            "metrics": metrics,
            "told": str(self),
        }


def cost(before: Sequence[Run], after: Sequence[Run], *, old: str, new: str, guided: bool) -> Cost:
    """Compare runs of two variants of one setting; their servers' arguments are meant to differ."""
    wrong = []
    for name, runs in ((old, before), (new, after)):
        bad = [run for run in runs if not run.validity.correct]
        if bad:
            wrong.append(f"{name} is wrong in {len(bad)} of {len(runs)} runs ({bad[0].validity.why})")
    if wrong:
        return Cost(old=old, new=new, guided=guided, wrong=tuple(wrong))
    left = [sum(run.validity.comparable for run in runs) for runs in (before, after)]
    if min(left) < FEWEST:
        words = f"{left[0]} and {left[1]} runs were not client-bound, {FEWEST} of each are needed"
        return Cost(old=old, new=new, guided=guided, too_few=words)
    found = compare(before, after, Design(effects=EFFECTS), across=("server",))
    return Cost(old=old, new=new, guided=guided, found=found)
