"""The matrix for a terminal, and as a page in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from harness.explore.coverage import Coverage
from harness.explore.matrix import Matrix, Row

COVERED = {
    "trim to zero": "grammar trims to zero",
    "a >= 2": "several accepted",
    "preemption": "preempted",
    "prefix hit": "prefix hit",
    "padded row": "padded rows",
    "row move": "row moved",
    "end in a window": "end inside a window",
    "mixed prefill": "prompt beside verify rows",
    "k change": "draft length changed",
}
"""What must happen together, every one with every other, in the runs of the correct engine: by event."""


def terminal(matrix: Matrix) -> Table:
    """One line per fault: what kills it, and how it is told."""
    table = Table("row", "fault", "kills", "checks", "acts", "found", "fastest scenario", "diagnosis")
    for row in matrix.rows:
        table.add_row(*_cells(row), style=None if row.kills or not row.declared.counted else "red")
    return table


def page(matrix: Matrix, coverage: Coverage, command: str) -> str:
    """All of it: figures, faults, checks, diagnoses, coverage."""
    summary = matrix.summary()
    figures = "; ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in summary.items() if name != "exit"
    )
    lines = ["# Kill matrix", "", f"`{command}`", "", figures, ""]
    head = (
        "row",
        "fault",
        "kills",
        "checks that fail",
        "acts at",
        "found at",
        "fastest scenario",
        "diagnosis",
    )
    lines += ["## Faults", "", *_table(head, [_cells(row) for row in matrix.rows]), ""]
    lines += ["## Checks", "", "Kills by check, over all scenarios that kill.", "", *_checks(matrix), ""]
    lines += ["## Diagnoses", "", "Declared and found, over all kills of all faults.", ""]
    confused = [(*names, str(count)) for names, count in sorted(matrix.confusion.items())]
    lines += [*_table(("declared", "found", "kills"), confused), ""]
    lines += ["## Coverage", "", f"What happened in {coverage.runs:,} runs of the correct engine.", ""]
    lines += _table(("event", "runs"), [(name, f"{runs:,}") for name, runs in coverage.events.items()])
    lines += ["", "Runs in which two of these happened together:", "", *_pairs(coverage), ""]
    return "\n".join(lines)


def empty_pairs(coverage: Coverage) -> list[str]:
    """Pairs of the events that must meet, and did not."""
    return [f"{one} + {other}" for one, other in coverage.empty(COVERED.values())]


def _cells(row: Row) -> tuple[str, ...]:
    declared, kill = row.declared, row.fastest
    if kill is None or kill.first is None:
        return (
            declared.row,
            declared.name,
            "0",
            "",
            "",
            "",
            f"acted in {row.acted} of {len(row.records)}",
            "",
        )
    named = "" if row.diagnosed or not declared.counted else f" (declared: {declared.cause})"
    return (
        declared.row,
        declared.name,
        f"{len(row.kills)} of {row.acted}",
        ", ".join(kill.checks),
        str(kill.acted),
        kill.first.told,
        kill.scenario,
        f"{kill.first.cause}{named}",
    )


def _checks(matrix: Matrix) -> list[str]:
    names = sorted({check for row in matrix.rows for check in row.checks()})
    counts = [(row.declared.name, row.checks()) for row in matrix.rows]
    return _table(
        ("fault", *names), [(fault, *(str(found[name] or "") for name in names)) for fault, found in counts]
    )


def _pairs(coverage: Coverage) -> list[str]:
    events = list(COVERED.items())
    rows = [
        (name, *(f"{coverage.together(event, other):,}" if event != other else "" for _, other in events))
        for name, event in events
    ]
    return _table(("", *COVERED), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
