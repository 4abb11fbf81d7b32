"""The matrix for a terminal, and as a page in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from harness.check.observe import PAIRED
from harness.explore.coverage import Coverage
from harness.explore.matrix import Matrix, Row


def terminal(matrix: Matrix) -> Table:
    """One line per fault: what kills it, and how it is told."""
    table = Table("row", "fault", "kills", "checks", "acts", "found", "scenario", "diagnosis")
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
        "scenario",
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
    return [f"{one} + {other}" for one, other in coverage.empty(PAIRED)]


def _cells(row: Row) -> tuple[str, ...]:
    declared, kill = row.declared, row.shown
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
    rows = [
        (one, *(f"{coverage.together(one, other):,}" if one != other else "" for other in PAIRED))
        for one in PAIRED
    ]
    return _table(("", *PAIRED), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
