"""What was judged, as a table for a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from harness.bench.stats.gate import GateReport
from harness.bench.stats.judge import Call, MetricResult
from harness.bench.stats.run import Direction

STYLES = {
    Call.PASS: "green",
    Call.IMPROVEMENT: "green",
    Call.REGRESSION: "bold red",
    Call.INCONCLUSIVE: "yellow",
}


def table(report: GateReport, title: str, *, everything: bool = False) -> Table:
    """A row per gated metric, and with ``everything`` per one that either side measured; arrows show which way is
    better."""
    found = Table(title=Text(title), title_justify="left")
    for name in ("metric", "verdict", "baseline", "candidate", "worse by", "interval", "allowed", "why"):
        found.add_column(
            name, justify="right" if name in ("baseline", "candidate", "worse by", "allowed") else "left"
        )
    for result in report.results:
        seen = result.seen
        measured = seen.baseline is not None or seen.candidate is not None
        if result.effect is not None or (everything and measured):
            found.add_row(*_cells(result))
    return found


def _cells(result: MetricResult) -> list[Text]:
    seen = result.seen
    arrow = "↓" if seen.direction is Direction.LOWER else "↑"
    change, interval = "-", "-"
    if seen.estimate:
        middle, low, high = seen.estimate.change
        change, interval = f"{middle:+.1%}", f"{low:+.1%} to {high:+.1%}"
    elif seen.baseline and seen.candidate and seen.baseline > 0 and seen.candidate > 0:
        ratio = seen.candidate / seen.baseline
        change = f"{(ratio if seen.direction is Direction.LOWER else 1 / ratio) - 1:+.1%}"
    verdict = (
        Text(result.call.value, style=STYLES[result.call]) if result.call else Text("observed", style="dim")
    )
    return [
        Text(f"{seen.metric} {arrow}" if seen.unit else seen.metric),
        verdict,
        *(
            Text("-" if value is None else f"{value:.4g} {seen.unit}")
            for value in (seen.baseline, seen.candidate)
        ),
        Text(change),
        Text(interval),
        Text("-" if result.margin is None else f"{result.margin:.1%}"),
        Text(result.why),
    ]
