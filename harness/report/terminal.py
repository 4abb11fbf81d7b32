"""What the engineer with a red CI sees first: a table, the first failure of each variant, and what was proven."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.verdict import Divergence, Evidence, Verdict

STYLE = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.NEAR_TIE: "yellow",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.UNSUPPORTED: "dim",
}


def verdict_text(verdict: Verdict) -> Text:
    """A verdict in its colour."""
    return Text(verdict.value, STYLE[verdict])


def matrix(title: str, variants: list[str], rows: list[tuple[str, dict[str, Verdict]]]) -> Table:
    """Scenario x variant."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("scenario")
    for variant in variants:
        table.add_column(variant)
    for name, verdicts in rows:
        table.add_row(name, *(verdict_text(verdicts[v]) if v in verdicts else Text("-") for v in variants))
    return table


def failure(
    variant: str, scenario: str, first: Divergence, ledger: tuple[str, ...], documented: bool | None, replay: str
) -> RenderableType:
    """One failure: the earliest coordinate, the named mistake, signal against noise, the ledger, the replay."""
    lines: list[RenderableType] = [Text(f"{variant} fails in {scenario!r}", "bold"), Padding(headline(first), (0, 0, 0, 2))]
    if documented is not None:
        how = "as documented" if documented else "NOT in the documented way"
        lines.append(Padding(Text(f"this is {how}", "" if documented else "bold red"), (0, 0, 0, 2)))
    lines += [Padding(Text(line, "dim"), (0, 0, 0, 4)) for line in ledger]
    lines.append(Padding(Text(f"replay: {replay}"), (0, 0, 0, 2)))
    return Group(*lines)


def headline(first: Divergence) -> Text:
    """Where and what, in one paragraph."""
    text = Text(f"{first.kind} at {first.at}: {first.message}")
    if first.error is not None and first.threshold is not None:
        text.append(f"; relative RMS {first.error:.2g}, allowed {first.threshold:.2g}")
    if first.diagnosis:
        text.append(f"\ndiagnosis: {first.diagnosis}", "bold")
    return text


def checks(evidence: tuple[Evidence, ...]) -> Table:
    """What each check looked at and found."""
    table = Table(box=None, pad_edge=False)
    for column in ("check", "verdict", "what it saw"):
        table.add_column(column)
    for one in evidence:
        table.add_row(one.check, verdict_text(one.verdict), one.summary + (f" ({one.power})" if one.power else ""))
    return table


def plain_lines(renderables: Iterator[RenderableType], console: Console) -> None:
    """Print one after the other, a blank line between."""
    for renderable in renderables:
        console.print(renderable)
        console.print()
