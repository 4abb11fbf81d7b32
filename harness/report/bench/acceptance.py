"""How good drafts were: by their position, and by the schema that an answer had to keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from harness.bench.measured import Measured
from harness.bench.metrics.acceptance import FREE, Acceptance, by_guide
from harness.bench.metrics.span import complete
from harness.bench.metrics.tokens import chunk_tokens
from harness.bench.record import RequestRecord
from harness.report.bench.groups import Group
from harness.report.figure import Figure, figure
from harness.report.html import shown

if TYPE_CHECKING:
    from harness.report.figure import Drawing

MOST_GUIDES = 24
"""Bars of one figure; the table has all of them."""
BAR = 20
FEWEST = 8
"""Steps behind a bar, at least."""


def by_position(groups: Sequence[Group]) -> Figure | None:
    """Share of verify steps that accepted the draft at each place; ``None`` where nothing was drafted."""
    found = [
        (f"{group.title}{_run(run, group)}", group, drafts)
        for group in groups
        for run in group.runs[:1]
        if (drafts := run.summary.acceptance) is not None and drafts.over_all
    ]
    if not found:
        return None
    frame = pd.DataFrame(
        [
            {"title": title, "place": place + 1, "share": share, "colour": group.colour}
            for title, group, drafts in found
            for place, share in enumerate(drafts.over_all or ())
        ]
    )
    says = "; ".join(
        f"{title}: {', '.join(f'{share:.0%}' for share in drafts.over_all or ())}"
        for title, _, drafts in found
    )
    return figure(
        "Acceptance by position",
        f"Share of verify steps that accepted the draft at positions 1, 2, and so on. {says}.",
        lambda width: _positions(frame, {title: group.colour for title, group, _ in found}, width),
        head=(
            "cell",
            "position",
            "of all steps",
            "of steps that drafted so far",
            "where all before were accepted",
        ),
        rows=[row for title, _, drafts in found for row in _rows(title, drafts)],
        note="share of verify steps that accepted the draft at each position",
    )


def _run(run: Measured, group: Group) -> str:
    return "" if len(group.runs) == 1 or run.cell.number is None else f", run {run.cell.number + 1}"


def _rows(title: str, drafts: Acceptance) -> Iterator[tuple[str, ...]]:
    for place, share in enumerate(drafts.over_all or ()):
        others = (drafts.over_reached, drafts.given_earlier)
        yield (
            title,
            str(place + 1),
            f"{share:.1%}",
            *(_share(one[place]) if one else "not told" for one in others),
        )


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def _positions(frame: pd.DataFrame, colours: dict[str, str], width: int) -> Drawing:
    import altair as alt

    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    base = alt.Chart(frame).encode(
        x=alt.X("place:O", title="position of the draft", axis=alt.Axis(labelAngle=0, grid=False)),
        xOffset=alt.XOffset("title:N", sort=list(colours)),
        y=alt.Y(
            "share:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=5)
        ),
    )
    return alt.layer(
        base.mark_bar(cornerRadiusEnd=3).encode(
            color=alt.Color(
                "title:N", scale=scale, sort=list(colours), legend=alt.Legend(columns=1, offset=18)
            )
        ),
        base.mark_text(dy=-7, fontSize=11, color="var(--quiet)").encode(
            text=alt.Text("share:Q", format=".0%")
        ),
    ).properties(width=width, height=220)


def by_schema(groups: Sequence[Group]) -> Figure | None:
    """Tokens of a step for each schema; ``None`` where no server tells, and no chunk says how many tokens it has.

    From the requests' own verify steps where the server reports them, else from the tokens of chunks.
    """
    drafting = [group for group in groups if any(run.summary.acceptance is not None for run in group.runs)]
    records = [record for group in drafting for record in complete(group.records)]
    told = {name: (one.length, one.steps) for name, one in by_guide(records).items() if one.length}
    lengths = told or _of_chunks(records)
    counts = Counter(record.guide or FREE for record in records)
    known = [
        {"guide": str(shown(name)), "length": length, "steps": steps, "n": counts[name]}
        for name, (length, steps) in lengths.items()
        if steps >= FEWEST
    ]
    if len(known) < 2:
        return None
    frame = pd.DataFrame(known).sort_values("length", ascending=False, ignore_index=True)
    frame["colour"] = ["var(--free)" if name == FREE else "var(--guided)" for name in frame.guide]
    drawn = frame if len(frame) <= MOST_GUIDES else pd.concat([frame.head(12), frame.tail(12)])
    what = "tokens of a verify step" if told else "tokens of a chunk, which is what a step gave"
    left_out = len(frame) - len(drawn)
    return figure(
        "Acceptance by schema",
        f"{what}, by schema. Most: {frame.guide.iloc[0]}, {frame.length.iloc[0]:.2f}; "
        f"least: {frame.guide.iloc[-1]}, {frame.length.iloc[-1]:.2f}.",
        lambda width: _schemas(drawn, width),
        head=("schema", "tokens per step", "steps", "requests"),
        rows=[(row.guide, f"{row.length:.2f}", f"{row.steps:,}", row.n) for row in frame.itertuples()],
        note=f"{what}, with speculation"
        + (f"; the {left_out} in the middle are in the table" if left_out else ""),
    )


def _of_chunks(records: Sequence[RequestRecord]) -> dict[str, tuple[float, int]]:
    """Tokens per chunk that has any, and how many of those there were, by guide."""
    sums: dict[str, tuple[int, int]] = {}
    for record in records:
        each = chunk_tokens(record)
        if each is None:
            continue
        tokens, steps = sums.get(record.guide or FREE, (0, 0))
        sums[record.guide or FREE] = tokens + sum(each), steps + sum(count > 0 for count in each)
    return {name: (tokens / steps, steps) for name, (tokens, steps) in sums.items() if steps}


def _schemas(frame: pd.DataFrame, width: int) -> Drawing:
    import altair as alt

    base = alt.Chart(frame).encode(
        y=alt.Y("guide:N", sort=None, title=None, axis=alt.Axis(labelLimit=150, labelColor="var(--ink)")),
        x=alt.X("length:Q", title="tokens per step", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5)),
    )
    return alt.layer(
        base.mark_bar(cornerRadiusEnd=3, height=BAR * 0.62).encode(color=alt.Color("colour:N", scale=None)),
        base.mark_text(align="left", dx=4, fontSize=11, color="var(--quiet)").encode(
            text=alt.Text("length:Q", format=".2f")
        ),
    ).properties(width=width, height=BAR * len(frame))
