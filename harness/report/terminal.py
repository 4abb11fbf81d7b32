"""What the engineer with a red CI sees first: a table, the first failure of each variant, and what was proven."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from harness.check.lookalikes import seen_before
from harness.run import Judgement
from harness.verdict import Divergence, Verdict

MOST_REPORTS = 2
"""Public reports that are shown with a failure."""
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
    table.add_column("scenario")
    for variant in variants:
        table.add_column(variant, overflow="fold")
    for name, verdicts in rows:
        table.add_row(name, *(verdict_text(verdicts[v]) if v in verdicts else Text("-") for v in variants))
    return table


def failure(variant: str, judgement: Judgement, replay: str) -> Iterator[Text]:
    """One failure, line by line: the coordinate, the mistake, what else failed, the ledger, the replay."""
    first = judgement.first
    assert first is not None
    yield Text(f"{variant} fails in {judgement.scenario!r}", "bold")
    yield from headline(first)
    for evidence in judgement.evidence:
        if (
            evidence.verdict is Verdict.FAIL
            and evidence.divergences
            and evidence.divergences[0].kind != first.kind
        ):
            later = evidence.divergences[0]
            yield Text(f"  also {later.kind} at {later.at}: {later.message}")
    if judgement.documented is not None:
        how = "as documented" if judgement.documented else "NOT in the documented way"
        yield Text(f"  this is {how}", "" if judgement.documented else "bold red")
    for line in judgement.ledger:
        yield Text(f"    {line}", "dim")
    yield Text(f"  replay: {replay}")


def headline(first: Divergence) -> Iterator[Text]:
    """Where, what, by how much, and why."""
    yield Text(f"  {first.kind} at {first.at}: {first.message}")
    if first.error is not None and first.threshold is not None:
        yield Text(f"  relative RMS {first.error:.2g} where {first.threshold:.2g} is allowed")
    if first.diagnosis:
        yield Text(f"  diagnosis: {first.diagnosis}", "bold")
    for report in seen_before(first.cause, first.kind)[:MOST_REPORTS]:
        yield Text(f"  seen before in {report}", "dim")
