"""What the engineer with a red CI sees first: a table, the first failure of each variant, and what was proven."""

from __future__ import annotations

from collections.abc import Iterator

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


def matrix(variants: list[str], rows: list[tuple[str, dict[str, Verdict]]]) -> Table:
    """Scenario x variant."""
    table = Table()
    table.add_column("scenario", no_wrap=True)
    for variant in variants:
        table.add_column(variant, no_wrap=True)
    for name, verdicts in rows:
        table.add_row(name, *(verdict_text(verdicts[v]) if v in verdicts else Text("-") for v in variants))
    return table


def failure(
    variant: str,
    scenario: str,
    first: Divergence,
    ledger: tuple[str, ...],
    documented: bool | None,
    replay: str,
) -> Iterator[Text]:
    """One failure, line by line: the coordinate, the mistake, signal against noise, the ledger, the replay."""
    yield Text(f"{variant} fails in {scenario!r}", "bold")
    yield from headline(first)
    if documented is not None:
        how = "as documented" if documented else "NOT in the documented way"
        yield Text(f"  this is {how}", "" if documented else "bold red")
    for line in ledger:
        yield Text(f"    {line}", "dim")
    yield Text(f"  replay: {replay}")


def headline(first: Divergence) -> Iterator[Text]:
    """Where, what, by how much, and why."""
    yield Text(f"  {first.kind} at {first.at}: {first.message}")
    if first.error is not None and first.threshold is not None:
        yield Text(f"  relative RMS {first.error:.2g} where {first.threshold:.2g} is allowed")
    if first.diagnosis:
        yield Text(f"  diagnosis: {first.diagnosis}", "bold")


def checks(evidence: tuple[Evidence, ...]) -> Table:
    """What each check looked at and found."""
    table = Table(box=None, pad_edge=False)
    for column in ("check", "verdict", "what it saw"):
        table.add_column(column)
    for one in evidence:
        table.add_row(
            one.check, verdict_text(one.verdict), one.summary + (f" ({one.power})" if one.power else "")
        )
    return table
