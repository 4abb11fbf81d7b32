"""Comparisons with their intervals: one line for each, beside the band of what does not matter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from harness.bench.costs import EFFECTS, Cost
from harness.bench.stats.judge import Call, MetricResult
from harness.report.figure import PHONE, Figure, figure

if TYPE_CHECKING:
    from harness.report.figure import Drawing

COLOURS = {
    Call.PASS: "var(--pass)",
    Call.IMPROVEMENT: "var(--pass)",
    Call.REGRESSION: "var(--fail)",
    Call.INCONCLUSIVE: "var(--open)",
    None: "var(--quiet)",
}
ROW, PHONE_ROW = 38, 56
"""Pixels of a line; on a phone its figures have a line of their own."""
FARTHEST = 3.0
"""Shares beyond which an interval is cut off at the frame: two runs may have one of a million percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """``worse_by``, ``low`` and ``high`` are shares (0.1: 10 % worse); ``matters``: the least that does."""

    what: str
    worse_by: float
    low: float
    high: float
    matters: float
    call: Call | None
    before: str = ""
    after: str = ""

    @property
    def told(self) -> str:
        """In words."""
        return f"{self.worse_by:+.1%} ({self.low:+.1%} to {self.high:+.1%})"

    @property
    def word(self) -> str:
        """What follows."""
        return self.call.value if self.call else "observed"


def of_results(results: Iterable[MetricResult], prefix: str = "") -> Iterator[Interval]:
    """Of judged metrics; those without an interval have no line."""
    for one in results:
        seen = one.seen
        if seen.estimate is None:
            continue
        middle, low, high = seen.estimate.change
        yield Interval(
            what=f"{prefix}{seen.metric}",
            worse_by=middle,
            low=low,
            high=high,
            matters=one.effect or 0.0,
            call=one.call,
            before=f"{seen.baseline:.4g} {seen.unit}",
            after=f"{seen.candidate:.4g} {seen.unit}",
        )


def of_costs(costs: Sequence[Cost]) -> list[Interval]:
    """Of ``bench --compare``, the metrics whose price is told."""
    found: list[Interval] = []
    for one in costs:
        kind = "guided" if one.guided else "free"
        rows = [r for r in one.found.results if r.seen.metric in EFFECTS] if one.found else []
        found += of_results(rows, f"{kind}, {one.old} to {one.new}: ")
    return found


def forest(title: str, intervals: Sequence[Interval], note: str = "") -> Figure | None:
    """``None`` where there is nothing to compare."""
    if not intervals:
        return None
    says = "; ".join(f"{one.what} worse by {one.told}: {one.word}" for one in intervals)
    return figure(
        title,
        f"How much worse each metric became, with its interval. {says}.",
        lambda width: _chart(intervals, width),
        head=("metric", "before", "after", "worse by", "95 % interval", "what matters", "call"),
        rows=[
            (
                one.what,
                one.before,
                one.after,
                f"{one.worse_by:+.1%}",
                f"{one.low:+.1%} to {one.high:+.1%}",
                f"{one.matters:.0%}" if one.matters else "",
                one.word,
            )
            for one in intervals
        ],
        wide=True,
        note=note
        or "right of the middle is worse; the grey band is what does not matter; the line is the 95 % interval",
    )


def _chart(intervals: Sequence[Interval], width: int) -> Drawing:
    import altair as alt

    edge = max(
        0.1, *(abs(end) for one in intervals for end in (one.low, one.high) if abs(end) <= FARTHEST), 0.1
    )
    edge, desk = min(FARTHEST, edge * 1.1), width > PHONE
    frame = pd.DataFrame(
        [
            {
                "place": -float(number),
                "up": -number + 0.5,
                "label": -number + (0.27 if desk else 0.33),
                "figures": -number + (0.27 if desk else 0.04),
                "line": -number - (0.18 if desk else 0.26),
                "low": max(one.low, -edge),
                "high": min(one.high, edge),
                "middle": min(max(one.worse_by, -edge), edge),
                "matters": one.matters,
                "safe": -one.matters,
                "down": -number - 0.5,
                "what": one.what,
                "told": f"{one.told}  {one.word}",
                "colour": COLOURS[one.call],
            }
            for number, one in enumerate(intervals)
        ]
    )
    across = alt.Scale(domain=[-edge, edge], nice=False)
    down = alt.Scale(domain=[-len(intervals) + 0.45, 0.55], nice=False)
    base = alt.Chart(frame)
    axis = alt.Axis(format="+.0%", title="worse by", tickCount=8 if desk else 4)
    y = alt.Y("line:Q", axis=None, scale=down)
    colour = alt.Color("colour:N", scale=None)
    return alt.layer(
        base.mark_rect(color="var(--line)", opacity=0.55).encode(
            x=alt.X("safe:Q", axis=axis, scale=across),
            x2="matters:Q",
            y=alt.Y("down:Q", axis=None, scale=down),
            y2="up:Q",
        ),
        base.mark_rule(color="var(--quiet)").encode(x=alt.datum(0)),
        base.mark_rule(strokeWidth=3).encode(x="low:Q", x2="high:Q", y=y, color=colour),
        base.mark_point(filled=True, size=80, opacity=1).encode(x="middle:Q", y=y, color=colour),
        base.mark_text(align="left", limit=width // 2 if desk else width).encode(
            x=alt.value(0), y="label:Q", text="what:N"
        ),
        base.mark_text(align="right" if desk else "left", fontWeight=600).encode(
            x=alt.value("width" if desk else 0), y="figures:Q", text="told:N", color=colour
        ),
    ).properties(width=width, height=(ROW if desk else PHONE_ROW) * len(intervals))
