"""Throughput against concurrency: how fast tokens came while so many requests were under way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from harness.bench.measured import Measured
from harness.bench.metrics.concurrency import levels
from harness.bench.metrics.span import measured
from harness.bench.metrics.tokens import chunk_tokens, output_chunks
from harness.report.bench.groups import Group
from harness.report.figure import Figure, figure

if TYPE_CHECKING:
    from harness.report.figure import Drawing

LEAST_SECONDS = 0.25
"""A level that was held for a moment says nothing of a rate."""
MOST_LEVELS = 24
"""Points of a line; more levels are joined."""


def against_concurrency(groups: Sequence[Group]) -> Figure | None:
    """A line for each cell; ``None`` where no level was held long enough, or chunks do not say their tokens."""
    frame = pd.DataFrame([row for group in groups for row in _points(group)])
    if frame.empty:
        return None
    top = frame.loc[frame.rate.idxmax()]
    return figure(
        "Throughput against concurrency",
        f"Output tokens per second while so many requests were under way. "
        f"Most: {top.rate:,.0f} at {top.level:g} in {top.title}.",
        lambda width: _chart(frame, groups, width),
        head=("cell", "requests under way", "for s", "output tok/s"),
        rows=[
            (row.title, f"{row.level:.3g}", f"{row.seconds:.1f}", f"{row.rate:,.1f}")
            for row in frame.itertuples()
        ],
        note="output tokens per second while so many requests were under way; larger dots were held for longer",
    )


def _points(group: Group) -> list[dict[str, object]]:
    """Time and tokens by level, over all runs of a group."""
    seconds: dict[int, float] = {}
    tokens: dict[int, float] = {}
    for run in group.runs:
        _add(run, seconds, tokens)
    held = sorted(level for level, time in seconds.items() if level > 0 and time >= LEAST_SECONDS)
    found = []
    for part in np.array_split(held, min(MOST_LEVELS, len(held))) if held else ():
        time = sum(seconds[int(level)] for level in part)
        at = sum(int(level) * seconds[int(level)] for level in part) / time
        rate = sum(tokens.get(int(level), 0.0) for level in part) / time
        found.append({"title": group.title, "level": at, "seconds": time, "rate": rate})
    return found


def _add(run: Measured, seconds: dict[int, float], tokens: dict[int, float]) -> None:
    kept = measured(run.records)
    steps = levels((record.sent, record.closed) for record in kept)
    if len(steps) < 2:
        return
    for (at, level), (after, _) in pairwise(steps):
        seconds[level] = seconds.get(level, 0.0) + after - at
    times = np.array([at for at, _ in steps])
    under_way = np.array([level for _, level in steps])
    for record in kept:
        each = chunk_tokens(record)
        if each is None:
            continue
        stamps = np.array([chunk.at for chunk in output_chunks(record)])
        places = np.clip(np.searchsorted(times, stamps, side="left") - 1, 0, len(times) - 1)
        for level, count in zip(under_way[places], each, strict=True):
            tokens[int(level)] = tokens.get(int(level), 0.0) + count


def _chart(frame: pd.DataFrame, groups: Sequence[Group], width: int) -> Drawing:
    import altair as alt

    drawn = [group for group in groups if group.title in set(frame.title)]
    names = [group.title for group in drawn]
    colour = alt.Color(
        "title:N",
        sort=names,
        scale=alt.Scale(domain=names, range=[group.colour for group in drawn]),
        legend=alt.Legend(columns=1 if width < 400 else 2, symbolType="stroke"),
    )
    dash = alt.StrokeDash(
        "title:N",
        sort=names,
        scale=alt.Scale(domain=names, range=[[1, 0] if group.strength == 1 else [4, 3] for group in drawn]),
    )
    base = alt.Chart(frame).encode(
        x=alt.X(
            "level:Q",
            title="requests under way",
            scale=alt.Scale(zero=False, padding=16),
            axis=alt.Axis(tickMinStep=1, tickCount=6, format="d", grid=False),
        ),
        y=alt.Y("rate:Q", title="output tok/s", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5)),
        color=colour,
    )
    return alt.layer(
        base.mark_line(strokeWidth=2).encode(strokeDash=dash),
        base.mark_point(filled=True, opacity=1).encode(
            size=alt.Size("seconds:Q", scale=alt.Scale(range=[25, 160]), legend=None)
        ),
    ).properties(width=width, height=220)
