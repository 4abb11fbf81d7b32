"""The few figures that a reader wants first, and the table of all cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.bench.measured import Measured
from harness.bench.metrics.crossed import Crossed
from harness.bench.screen import COLUMNS, figures, known, may_be_compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A figure in large letters. ``style``: pass, fail, open, or nothing."""

    label: str
    value: str
    note: str = ""
    style: str = ""


def tiles(cells: Sequence[Measured], crossed: Crossed | None) -> Iterator[Tile]:
    """Speed first, where there is a two by two; then whether answers are right, and whether the client was."""
    if crossed is not None:
        yield from _speed(crossed)
    pairs = [one.equality for one in cells if one.equality is not None]
    if pairs:
        compared, equal = sum(one.compared for one in pairs), sum(one.equal for one in pairs)
        yield Tile(
            label="answers equal",
            value=f"{equal:,} of {compared:,}",
            note="greedy, with and without speculation",
            style="pass" if equal == compared else "fail",
        )
    judged = [one.validity for one in cells if one.validity is not None]
    if judged:
        wrong = sum(any("guided" in line for line in one.wrong) for one in cells)
        shares = [one.valid_share for one in judged if one.valid_share is not None]
        low, high = (f"{edge(shares):.0%}" if shares else "none" for edge in (min, max))
        yield Tile(
            label="guided valid",
            value=low if low == high else f"{low} to {high}",
            note=f"{wrong} cells have wrong ones" if wrong else "the rest was cut by its length",
            style="fail" if wrong else "pass",
        )
    bound = sum(one.load.health.is_client_bound for one in cells)
    yield Tile(
        label="client was the limit of" if bound else "client",
        value=f"{bound} of {len(cells)}" if bound else "healthy",
        note="cells, which may not be compared" if bound else "these are the server's figures",
        style="open" if bound else "pass",
    )


def _speed(found: Crossed) -> Iterator[Tile]:
    missing = "not told: a cell of it may not be compared"
    for label, name in (("free", "speedup_free"), ("guided", "speedup_guided")):
        value: float | None = getattr(found, name)
        yield Tile(
            label=f"speed-up, {label}",
            value="–" if value is None else f"{value:.2f} ×",
            note=missing if value is None else f"output rate, speculation on / off{known(found, name)}",
        )
    if found.kept is not None:
        yield Tile(
            label="gain kept",
            value=f"{max(found.kept, 0):.0%}",
            note="with a grammar, speculation costs" if found.kept < 0 else "of the speed-up, with a grammar",
        )
    elif found.interaction is not None:
        yield Tile(label="interaction", value=f"{found.interaction:.2f}", note="speed-up guided / free")


HEAD = (COLUMNS[0], COLUMNS[-1], *COLUMNS[1:-1])
"""The terminal's columns; whether a cell may be compared stands beside its name, where a phone shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A cell in figures, and whether it may be compared: ``yes``, ``wrong`` or ``client-bound``."""

    title: str
    figures: tuple[str, ...]
    verdict: str
    style: str


def rows(cells: Sequence[Measured]) -> Iterator[Row]:
    """A wrong cell has no speed."""
    for one in cells:
        yield Row(
            title=one.cell.title,
            figures=tuple("–" if value is None else value for value in figures(one)),
            verdict=may_be_compared(one).removeprefix("no: "),
            style="pass" if one.comparable else "fail" if one.wrong else "open",
        )
