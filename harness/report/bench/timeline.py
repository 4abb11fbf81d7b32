"""When each request ran: its wait for the first token, its answer, and how it ended; in as few lanes as hold them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from harness.bench.measured import Measured
from harness.bench.metrics.concurrency import levels
from harness.bench.metrics.latency import ttft
from harness.bench.metrics.span import measured
from harness.bench.record import Outcome, RequestRecord
from harness.report.bench.groups import FREE, GUIDED
from harness.report.figure import PHONE, Figure, figure

if TYPE_CHECKING:
    import altair

    from harness.report.figure import Drawing

MOST_BARS = 400
"""Requests that are drawn one by one; of more, how many were under way."""
MOST_LANES = 64
SLOTS = 240
"""Instants of the curve that stands for many requests."""
WAIT, FAILED = "var(--wait)", "var(--fail)"


def timelines(cells: Sequence[Measured]) -> Iterator[Figure]:
    """One for each cell that sent anything, wrong ones too: that is where one looks for why. All on one scale."""
    sent = [sorted(measured(one.records), key=lambda record: record.sent) for one in cells]
    longest = max((_seconds(kept) for kept in sent if kept), default=0.0)
    for one, kept in zip(cells, sent, strict=True):
        if kept:
            yield _figure(one, kept, longest)


def _seconds(kept: Sequence[RequestRecord]) -> float:
    """From the first request sent to the last stream closed."""
    return max(record.closed for record in kept) - kept[0].sent


def _figure(cell: Measured, kept: Sequence[RequestRecord], longest: float) -> Figure:
    begin = kept[0].sent
    lanes = _lanes(kept)
    failed = [record for record in kept if record.outcome is not Outcome.COMPLETE]
    many = len(kept) > MOST_BARS or max(lanes) >= MOST_LANES
    slowest = sorted(kept, key=lambda record: record.sent - record.closed)[:10]
    says = f"{len(kept):,} requests in {_seconds(kept):.1f} s, {len(failed)} of them failed"
    colour = GUIDED if cell.cell.guided else FREE
    return figure(
        cell.cell.title,
        f"{says}; at most {max(lanes) + 1} at a time.",
        (lambda width: _curve(kept, longest, colour, width))
        if many
        else (lambda width: _bars(kept, lanes, longest, colour, width)),
        head=("slowest requests", "sent at s", "first token after ms", "closed after s", "outcome"),
        rows=[_row(record, begin) for record in (*failed[:10], *slowest)],
        wide=True,
        note=says,
    )


def _row(record: RequestRecord, begin: float) -> tuple[str, ...]:
    first = ttft(record)
    return (
        record.id,
        f"{record.sent - begin:.2f}",
        "none" if first is None else f"{first * 1e3:.1f}",
        f"{record.closed - record.sent:.2f}",
        record.outcome.value,
    )


def _lanes(kept: Sequence[RequestRecord]) -> list[int]:
    """For each request, by the time of sending, the lowest lane that is empty."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    found = []
    for record in kept:
        while busy and busy[0][0] <= record.sent:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (record.closed, lane))
        found.append(lane)
    return found


def _bars(
    kept: Sequence[RequestRecord], lanes: Sequence[int], longest: float, colour: str, width: int
) -> Drawing:
    import altair as alt

    begin, rows = kept[0].sent, []
    for record, lane in zip(kept, lanes, strict=True):
        sent, closed = record.sent - begin, record.closed - begin
        first = ttft(record)
        answering = closed if first is None else sent + first
        ended = colour if record.outcome is Outcome.COMPLETE else FAILED
        rows.append(
            {"lane": lane, "from": sent, "to": answering, "colour": FAILED if first is None else WAIT}
        )
        rows += [] if first is None else [{"lane": lane, "from": answering, "to": closed, "colour": ended}]
    high = max(lanes) + 1
    tall = max(6, min(18, 220 // high))
    base = alt.Chart(pd.DataFrame(rows)).encode(
        x=_across("from:Q", longest, width),
        x2="to:Q",
        y=alt.Y("lane:O", axis=None),
        color=alt.Color("colour:N", scale=None),
    )
    bars = base.mark_bar(height=max(3, tall - 3), cornerRadius=2, stroke="var(--card)", strokeWidth=0.7)
    return alt.layer(bars).properties(width=width, height=tall * high)


def _across(field: str, longest: float, width: int) -> altair.X:
    import altair as alt

    return alt.X(
        field,
        title="seconds",
        scale=alt.Scale(domain=[0, longest or 1], nice=False),
        axis=alt.Axis(tickCount=4 if width == PHONE else 8),
    )


def _curve(kept: Sequence[RequestRecord], longest: float, colour: str, width: int) -> Drawing:
    """How many were under way, the highest of each slot, and where requests failed."""
    import altair as alt

    begin = kept[0].sent
    steps = pd.DataFrame(levels((r.sent - begin, r.closed - begin) for r in kept), columns=["at", "level"])
    slot = max(steps["at"].max() / SLOTS, 1e-9)
    curve = steps.assign(at=(steps["at"] // slot) * slot).groupby("at", as_index=False)["level"].max()
    failed = sorted({(r.closed - begin) // slot * slot for r in kept if r.outcome is not Outcome.COMPLETE})
    across = _across("at:Q", longest, width)
    area = alt.Chart(curve).mark_area(interpolate="step-after", color=colour, opacity=0.8)
    marks = alt.Chart(pd.DataFrame({"at": failed}, dtype=float)).mark_tick(
        color=FAILED, thickness=2, size=14, yOffset=-8
    )
    return alt.layer(
        area.encode(x=across, y=alt.Y("level:Q", title="under way", axis=alt.Axis(tickMinStep=1))),
        marks.encode(x=across, y=alt.value(0)),
    ).properties(width=width, height=130)
