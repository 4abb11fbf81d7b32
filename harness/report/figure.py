"""Charts as pictures inside a page: static SVG in the page's own colours, with the same numbers as a table.

A page without scripts is the one that opens everywhere. Colours are the page's CSS variables, so dark mode is the
page's; every chart is drawn twice, for a desk and for a phone, since letters that shrink are none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    import altair

    Drawing = altair.LayerChart | altair.FacetChart

Build = Callable[[int], "Drawing"]
"""Width in pixels -> a chart of that width."""
DESK, WIDE, PHONE = 460, 960, 322
"""Widths: half of the page, all of it, and a phone of 390 pixels less its margins."""
TICKS = ((1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
_NAMESPACES = re.compile(r' (xmlns(:xlink)?|version|class|role|aria-[a-z]+)="[^"]*"')

THEME: dict[str, Any] = {
    "aria": False,
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "padding": {"left": 2, "right": 6, "top": 4, "bottom": 2},
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--quiet)",
        "titleColor": "var(--quiet)",
        "titleFontWeight": "normal",
        "titleFontSize": 12,
        "labelFontSize": 11,
        "gridColor": "var(--line)",
        "domain": False,
        "ticks": False,
        "labelPadding": 6,
        "titlePadding": 8,
    },
    "legend": {
        "labelColor": "var(--ink)",
        "labelFontSize": 12,
        "title": None,
        "orient": "top",
        "symbolStrokeWidth": 2.5,
        "columns": 2,
        "offset": 4,
    },
    "text": {"color": "var(--ink)", "fontSize": 12},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart. ``says`` is what it shows, for those who do not see it, and ``head`` and ``rows`` are its numbers.

    ``pictures`` are SVG for a desk and for a phone; none where nothing can be drawn here. ``note`` stands under it.
    """

    title: str
    says: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    pictures: tuple[Markup, ...]
    wide: bool = False
    note: str = ""


def figure(
    title: str,
    says: str,
    build: Build | None,
    *,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    wide: bool = False,
    note: str = "",
) -> Figure:
    """Draw a chart in both widths. ``build``: ``None`` where there is too little to draw, and numbers say all."""
    widths = () if build is None else (WIDE if wide else DESK, PHONE)
    return Figure(
        title=title,
        says=says,
        head=tuple(head),
        rows=tuple(tuple(map(str, row)) for row in rows),
        pictures=tuple(svg(build(width)) for width in widths if build is not None),
        wide=wide,
        note=note,
    )


def svg(chart: Drawing) -> Markup:
    """A chart as an element of a page; Vega escapes what it is given, and nothing in it loads anything."""
    import vl_convert

    spec = chart.to_dict()
    spec["config"] = THEME
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    # Names within pictures are names within the page; the converter counts them on from picture to picture.
    return Markup(_NAMESPACES.sub("", vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])))


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers between two positive ones for a logarithmic axis, as dense as ``most`` allows."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in TICKS:
        found = [float(f"{step}e{decade}") for decade in decades for step in steps]
        inside = [one for one in found if low <= one <= high]
        if len(inside) <= most:
            break
    return inside
