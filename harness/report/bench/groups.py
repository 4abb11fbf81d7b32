"""Cells that are drawn together: repeated runs of one variant are one group, and their samples are pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.bench.cells import OFF
from harness.bench.measured import Measured
from harness.bench.record import RequestRecord
from harness.report.html import shown

FREE, GUIDED = "var(--free)", "var(--guided)"
"""Colours, of the page's style sheet. Without speculation they are paler."""
PALE = 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """``runs``: the cells behind it, one or several of the same variant, kind and speculation."""

    title: str
    runs: tuple[Measured, ...]

    @property
    def records(self) -> list[RequestRecord]:
        """Of all runs."""
        return [record for run in self.runs for record in run.records]

    @property
    def guided(self) -> bool:
        """Whether its answers follow a guide."""
        return self.runs[0].cell.guided

    @property
    def colour(self) -> str:
        """By guide."""
        return GUIDED if self.guided else FREE

    @property
    def strength(self) -> float:
        """Opacity: paler without speculation."""
        return PALE if self.runs[0].cell.speculation == OFF else 1.0


def groups(cells: Sequence[Measured]) -> list[Group]:
    """All cells, in their order."""
    found: dict[str, list[Measured]] = {}
    for one in cells:
        found.setdefault(str(shown(replace(one.cell, number=None).title)), []).append(one)
    return [Group(title=title, runs=tuple(runs)) for title, runs in found.items()]


def right(cells: Sequence[Measured]) -> list[Group]:
    """Without what is wrong: speed is told only of right answers."""
    return groups([one for one in cells if not one.wrong])
