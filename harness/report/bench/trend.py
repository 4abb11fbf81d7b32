"""A metric over the nights: its values, the level of each stretch, and where the level changed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from harness.bench.stats.run import Direction
from harness.bench.stats.states import Change, State
from harness.report.bench.series import Series
from harness.report.figure import Figure, figure

if TYPE_CHECKING:
    from harness.report.figure import Drawing

COLOURS = {
    State.NEW: "var(--fail)",
    State.KNOWN: "var(--open)",
    State.FIXED: "var(--quiet)",
    State.BETTER: "var(--pass)",
}
ONE = "one night: a line is drawn from the second one on"
MOST_NIGHTS = 400
"""The newest ones are drawn; change points are looked for in all."""


def trend(series: Series, title: str = "", *, wide: bool = True) -> Figure | None:
    """``title``: the metric's name unless told. ``None`` where there is no night."""
    metric, nights, changes, unit = series.metric, series.nights, series.changes, series.unit
    if not nights:
        return None
    ends = [0, *(change.point.index for change in changes), len(nights)]
    frame = pd.DataFrame([{"time": night.time, "value": night.value} for night in nights])
    frame["level"] = np.exp(_levels(np.log(frame["value"].to_numpy()), ends))
    frame["stretch"] = np.repeat(range(len(ends) - 1), np.diff(ends))
    frame["time"] = frame["time"].map(lambda time: time.timestamp() * 1e3)
    marks = pd.DataFrame(
        [
            {
                "time": change.time.timestamp() * 1e3,
                "first": nights[max(change.point.nights[0] - 1, 0)].time.timestamp() * 1e3,
                "said": f"{change.point.share:+.1%} {change.state.value}",
                "colour": COLOURS[change.state],
            }
            for change in changes
        ],
        columns=["time", "first", "said", "colour"],
    )
    last, better = nights[-1], "lower" if series.direction is Direction.LOWER else "higher"
    told = "; ".join(_words(change) for change in changes) or "no change of level"
    return figure(
        title or metric,
        f"{metric} over {len(nights)} nights, {better} is better. Last: {last.value:.4g} {unit}. {told}.",
        (lambda width: _chart(frame.tail(MOST_NIGHTS), marks, unit, width)) if len(nights) > 1 else None,
        head=("night (UTC)", "commit", f"{metric} {unit}".strip(), "level"),
        rows=[
            (f"{night.time:%Y-%m-%d %H:%M}", night.commit[:12], f"{night.value:.4g}", f"{level:.4g}")
            for night, level in zip(
                reversed(nights[-MOST_NIGHTS:]), reversed(list(frame["level"])), strict=False
            )
        ],
        wide=wide,
        note=f"{better} is better; {told if len(nights) > 1 else ONE}",
    )


def _levels(logs: np.ndarray, ends: Sequence[int]) -> np.ndarray:
    """Mean logarithm of the stretch that each night belongs to: [nights] -> [nights]."""
    means = [float(logs[start:end].mean()) for start, end in pairwise(ends)]
    return np.repeat(means, np.diff(ends))


def _words(change: Change) -> str:
    note = f", fixed by {change.fixed_by[:12]}" if change.fixed_by else ""
    note += f" ({change.reason})" if change.reason else ""
    told = f"{change.point.share:+.1%} since {change.time:%Y-%m-%d}, {change.state.value}"
    return f"{told}: {change.within(12)}{note}"


def _chart(frame: pd.DataFrame, marks: pd.DataFrame, unit: str, width: int) -> Drawing:
    import altair as alt

    marks = marks[marks["time"] >= frame["time"].min()]
    # Vega has the time zone of this machine; nights have UTC.
    time = alt.Scale(type="utc")
    down = alt.Y(
        "value:Q", title=unit or None, scale=alt.Scale(zero=False, padding=12), axis=alt.Axis(tickCount=5)
    )
    across = alt.X(
        "time:T",
        title=None,
        scale=time,
        axis=alt.Axis(format="%b %d", grid=False, tickCount=8 if width > 400 else 4),
    )
    base, changed = alt.Chart(frame), alt.Chart(marks)
    colour = alt.Color("colour:N", scale=None)
    return alt.layer(
        changed.mark_rect(opacity=0.16).encode(x=alt.X("first:T", scale=time), x2="time:T", color=colour),
        base.mark_line(color="var(--quiet)", strokeWidth=1, opacity=0.5).encode(x=across, y=down),
        base.mark_point(filled=True, size=22, color="var(--mark)", opacity=1).encode(x=across, y=down),
        base.mark_line(color="var(--ink)", strokeWidth=2).encode(x=across, y="level:Q", detail="stretch:N"),
        changed.mark_rule(strokeWidth=1.5).encode(x=alt.X("time:T", scale=time), color=colour),
        changed.mark_text(align="left", dx=5, fontWeight=600).encode(
            x=alt.X("time:T", scale=time), y=alt.value(8), text="said:N", color=colour
        ),
    ).properties(width=width, height=200)
