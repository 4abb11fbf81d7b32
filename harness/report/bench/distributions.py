"""How latencies are distributed: one hill for each cell over a common logarithmic axis, with its median and its P99."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from harness.bench.metrics.distribution import Distribution, distribution
from harness.bench.metrics.itl import icl, itl_amortised
from harness.bench.metrics.latency import e2el, tpot, ttft
from harness.bench.metrics.span import complete
from harness.bench.record import RequestRecord
from harness.report.bench.groups import Group
from harness.report.figure import PHONE, Figure, figure, ticks

if TYPE_CHECKING:
    from harness.report.figure import Drawing

Samples = Callable[[RequestRecord], "Sequence[float] | float | None"]
CLOCKS: tuple[tuple[str, str, str, Samples], ...] = (
    ("TTFT", "time to first token", "from sending a request to its first token", ttft),
    ("TPOT", "time per output token", "the mean of each request, behind its first token", tpot),
    ("ITL", "between chunks", "what vLLM prints as ITL: a chunk holds every token of a step", icl),
    (
        "ITL, amortised",
        "between tokens",
        "each gap shared out among the tokens that it brought",
        itl_amortised,
    ),
    ("E2EL", "end to end", "from sending a request to its last token", e2el),
)
"""Short name, its words, what it is, samples of a request in seconds."""
BINS = 36
FARTHEST = 100
"""Times below the least median at which the axis begins: chunks of one read have no time between them, and a logarithm
has no zero. What is shorter is in the first bin."""
ROW, HILL = 58, 0.52
"""Pixels of a cell's row, and how much of it is the hill."""
SHOWN = (50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """``samples`` in milliseconds, ``[n]``; ``told``: the same in figures."""

    group: Group
    samples: np.ndarray
    told: Distribution


def distributions(groups: Sequence[Group]) -> Iterator[Figure]:
    """A figure for each clock that was measured in any group."""
    for short, words, what, clock in CLOCKS:
        rows = [row for group in groups if (row := _row(group, clock)) is not None]
        if rows:
            yield _figure(f"{short}: {words}", what, rows)


def _row(group: Group, clock: Samples) -> _Row | None:
    pooled: list[float] = []
    for record in complete(group.records):
        found = clock(record)
        pooled += [] if found is None else [found] if isinstance(found, float) else found
    told = distribution(pooled, SHOWN)
    return None if told is None else _Row(group=group, samples=np.array(pooled) * 1e3, told=told.scaled(1e3))


def _figure(title: str, what: str, rows: Sequence[_Row]) -> Figure:
    least = max(min(row.told.median for row in rows) / FARTHEST, 1e-3)
    low = max(least, min(row.told.low for row in rows)) / 1.15
    high = max(2 * low, max(row.told.high for row in rows)) * 1.15
    edges = np.geomspace(low, high, BINS + 1)  # [BINS + 1]
    hills = pd.concat(_hill(place, row, edges) for place, row in enumerate(rows))
    marks = pd.DataFrame([_mark(place, row, low) for place, row in enumerate(rows)])
    says = "; ".join(
        f"{row.group.title}: median {_ms(row.told.median)} ms, P99 {_ms(row.told.percentiles[99.0])} ms"
        for row in rows
    )
    thin = [row for row in rows if not row.told.trusted(99.0)]
    first = "; the first bin holds all that is shorter" if low > min(row.told.low for row in rows) else ""
    return figure(
        title,
        f"{what}. {says}.",
        lambda width: _chart(hills, marks, (low, high), width),
        head=("cell", "n", "mean ms", "P50 ms", "P90 ms", "P99 ms", "least ms", "most ms"),
        rows=[
            (row.group.title, f"{row.told.n:,}", *(_ms(value) for value in _figures(row.told)))
            for row in rows
        ],
        note=what + ("; P99 rests on fewer than ten samples above it" if thin else "") + first,
    )


def _figures(told: Distribution) -> tuple[float, ...]:
    return told.mean, *(told.percentiles[q] for q in SHOWN), told.low, told.high


def _hill(place: int, row: _Row, edges: np.ndarray) -> pd.DataFrame:
    """Steps of a histogram, the highest bin as high as the row allows; rows are stacked downwards."""
    counts, _ = np.histogram(np.clip(row.samples, edges[0], edges[-1]), edges)
    floor = -float(place)
    frame = pd.DataFrame(
        {"from": edges[:-1], "to": edges[1:], "floor": floor, "top": floor + HILL * counts / counts.max()}
    )
    frame["colour"], frame["strength"] = row.group.colour, row.group.strength
    return frame[counts > 0]


def _mark(place: int, row: _Row, low: float) -> dict[str, object]:
    median, p99 = row.told.median, row.told.percentiles[99.0]
    return {
        "floor": -float(place),
        "label": -float(place) + HILL + 0.2,
        "roof": -float(place) + HILL + 0.02,
        "median": max(median, low),
        "p99": max(p99, low),
        "title": row.group.title,
        "said": f"P50 {_ms(median)}  P99 {_ms(p99)}",
        "colour": row.group.colour,
    }


def _chart(hills: pd.DataFrame, marks: pd.DataFrame, span: tuple[float, float], width: int) -> Drawing:
    import altair as alt

    values = ticks(*span, most=5 if width == PHONE else 8)
    axis = alt.Axis(values=values, format="~g", title="ms, logarithmic", grid=True)
    across = alt.Scale(type="log", domain=list(span), nice=False)
    down = alt.Y("floor:Q", axis=None, scale=alt.Scale(domain=[-len(marks) + 0.95, 0.95], nice=False))
    colour = alt.Color("colour:N", scale=None)
    base = alt.Chart(marks)
    return alt.layer(
        base.mark_rule(stroke="var(--line)").encode(y=down),
        alt.Chart(hills)
        .mark_rect()
        .encode(
            x=alt.X("from:Q", axis=axis, scale=across),
            x2="to:Q",
            y=down,
            y2="top:Q",
            color=colour,
            opacity=alt.Opacity("strength:Q", scale=None),
        ),
        base.mark_rule(stroke="var(--ink)", strokeWidth=1.5).encode(x="median:Q", y=down, y2="roof:Q"),
        base.mark_rule(stroke="var(--ink)", strokeWidth=1, strokeDash=[2, 2]).encode(
            x="p99:Q", y=down, y2="roof:Q"
        ),
        base.mark_text(align="left", fontWeight=600, limit=width - 130).encode(
            x=alt.value(0), y="label:Q", text="title:N"
        ),
        base.mark_text(align="right", color="var(--quiet)").encode(
            x=alt.value("width"), y="label:Q", text="said:N"
        ),
    ).properties(width=width, height=ROW * len(marks))


def _ms(value: float) -> str:
    """Three digits are more than a run is worth."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
