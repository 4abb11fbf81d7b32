"""A run of the verb ``bench``, and what a reader has to know of it before believing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.bench.cells import OFF
from harness.bench.costs import Cost
from harness.bench.measured import Measured
from harness.bench.metrics.crossed import Crossed
from harness.bench.screen import crossed
from harness.report.bench.series import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A run of the verb ``bench``. ``run``: what ``run.json`` holds; ``verdict`` and ``code``: what is printed last.

    ``speculation``: what is held against off; ``None`` where there is no two by two. ``prompt``: (request id, whether
    guided) -> its text, where that is known. ``at_a_time``: requests that ran together. ``trends``: (cell, its nights),
    where there is a history.
    """

    name: str
    run: Mapping[str, Any]
    cells: Sequence[Measured]
    verdict: str
    code: int
    speculation: str | None = None
    at_a_time: int | None = None
    costs: Sequence[Cost] = ()
    trends: Sequence[tuple[str, Series]] = ()
    prompt: Callable[[str, bool], str | None] = field(default=lambda name, guided: None)

    @property
    def crossed(self) -> Crossed | None:
        """The two by two."""
        return (
            None if self.speculation is None else crossed(self.cells, OFF, self.speculation, self.at_a_time)
        )


def problems(cells: Sequence[Measured]) -> Iterator[tuple[str, str, str]]:
    """(cells, style, what a reader has to know), the worst first; what several cells share is said once."""
    told = [
        *(("fail", line, one) for one in cells for line in one.wrong),
        *(("open", f"client-bound: {line}", one) for one in cells for line in one.load.health.because),
        *(("open", line, one) for one in cells for line in one.notes),
    ]
    found: dict[tuple[str, str], list[str]] = {}
    for style, line, one in told:
        found.setdefault((style, line), []).append(one.cell.title)
    for (style, line), titles in found.items():
        yield _all(titles, cells), style, line


def warnings(cells: Sequence[Measured]) -> Iterator[tuple[str, str]]:
    """(a warning, the cells that have it): they do not make a run invalid."""
    found: dict[str, list[str]] = {}
    for one in cells:
        for line in one.summary.trust.warnings:
            found.setdefault(line, []).append(one.cell.title)
    for line, titles in found.items():
        yield line, _all(titles, cells)


def _all(titles: Sequence[str], cells: Sequence[Measured]) -> str:
    return "all cells" if len(titles) == len(cells) > 1 else "; ".join(titles)
