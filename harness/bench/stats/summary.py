"""The gate's answer for people and machines: Markdown for a step summary, JUnit, a JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from harness.bench.stats.gate import GateReport
from harness.bench.stats.judge import Call, MetricResult
from harness.bench.stats.run import Direction
from harness.bench.stats.states import Change, State

SIGNS = {Call.PASS: "✅", Call.REGRESSION: "❌", Call.IMPROVEMENT: "🚀", Call.INCONCLUSIVE: "❔", None: "👁"}


def markdown(report: GateReport, changes: Sequence[Change] = ()) -> str:
    """A section for a GitHub step summary, of the gated metrics; names and reasons are escaped."""
    lines = [
        f"## {SIGNS[report.call]} Benchmark gate: {report.call.value}",
        "",
        f"Against {_cell(report.against)}. {_cell(report.why)}".rstrip(),
        "",
    ]
    if report.results:
        lines += [
            "| | metric | baseline | tonight | worse by (95 % interval) | allowed | p (Holm) | why |",
            "|---|---|---:|---:|---:|---:|---:|---|",
            *(_row(result) for result in report.results if result.effect is not None),
            "",
        ]
    lines += [f"- left out: {_cell(line)}" for line in report.refused]
    lines += [f"- another setting: {_cell(str(one))}" for one in report.differs]
    if changes:
        lines += ["", "| change | metric | level | since | suspects | note |", "|---|---|---:|---|---|---|"]
        lines += [_change_row(change) for change in changes]
    return "\n".join(lines).rstrip() + "\n"


def junit(report: GateReport, changes: Sequence[Change] = ()) -> str:
    """JUnit XML: a test case per metric and per change of level.

    A regression and a new change for the worse fail; what was not shown, only observed or is known is skipped.
    """
    suite = ElementTree.Element("testsuite", name="benchmark gate", tests="0", failures="0", skipped="0")
    if report.results:
        for result in report.results:
            case = ElementTree.SubElement(
                suite, "testcase", classname="gate", name=_plain(result.seen.metric)
            )
            _outcome(case, result.call, result.why)
    else:
        _outcome(
            ElementTree.SubElement(suite, "testcase", classname="gate", name="gate"), report.call, report.why
        )
    for change in changes:
        name = f"{_plain(change.metric)} since {change.time:%Y-%m-%d}"
        case = ElementTree.SubElement(suite, "testcase", classname="change", name=name)
        if change.state is State.NEW:
            words = f"{change.point.share:+.1%}, suspects {change.suspects}"
            ElementTree.SubElement(case, "failure", message=_plain(words), type="new change")
        elif change.state is State.KNOWN:
            ElementTree.SubElement(case, "skipped", message=_plain(f"known: {change.reason}"))
    counted = {"tests": "testcase", "failures": "testcase/failure", "skipped": "testcase/skipped"}
    for name, path in counted.items():
        suite.set(name, str(len(suite.findall(path))))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def as_json(report: GateReport) -> dict[str, Any]:
    """JSON-ready: the call, exit code and every metric; shares are positive where it got worse."""
    return {
        "call": report.call.value,
        "exit": report.exit_code,
        "why": report.why,
        "against": report.against,
        "nights": report.nights,
        "pairs": report.pairs,
        "refused": list(report.refused),
        "differs": [str(difference) for difference in report.differs],
        "metrics": {result.seen.metric: _metric(result) for result in report.results},
    }


def _metric(result: MetricResult) -> dict[str, Any]:
    seen = result.seen
    change = seen.estimate.change if seen.estimate else (None, None, None)
    return {
        "call": result.call.value if result.call else "observed",
        "why": result.why,
        "unit": seen.unit,
        "direction": seen.direction.value,
        "baseline": seen.baseline,
        "candidate": seen.candidate,
        "worse_by": change[0],
        "low": change[1],
        "high": change[2],
        "p_adjusted": result.p_adjusted,
        "effect": result.effect,
        "margin": result.margin,
    }


def _outcome(case: ElementTree.Element, call: Call | None, why: str) -> None:
    if call is Call.REGRESSION:
        ElementTree.SubElement(case, "failure", message=_plain(why), type="regression")
    elif call is Call.INCONCLUSIVE or call is None:
        word = call.value if call else "observed"
        ElementTree.SubElement(case, "skipped", message=_plain(f"{word}: {why}"))


def _row(result: MetricResult) -> str:
    seen = result.seen
    arrow = "↓" if seen.direction is Direction.LOWER else "↑"
    numbers = [
        "–" if value is None else f"{value:.4g} {_cell(seen.unit)}"
        for value in (seen.baseline, seen.candidate)
    ]
    worse = "–"
    if seen.estimate:
        change, low, high = seen.estimate.change
        worse = f"{change:+.1%} ({low:+.1%} to {high:+.1%})"
    margin = f"{result.margin:.1%}" if result.margin is not None else "–"
    p_value = f"{result.p_adjusted:.2g}" if result.p_adjusted is not None else "–"
    cells = [
        SIGNS[result.call],
        f"{_cell(seen.metric)} {arrow}",
        *numbers,
        worse,
        margin,
        p_value,
        _cell(result.why),
    ]
    return f"| {' | '.join(cells)} |"


def _change_row(change: Change) -> str:
    note = f"fixed by {change.fixed_by}" if change.state is State.FIXED else change.reason
    cells = [
        change.state.value,
        change.metric,
        f"{change.point.share:+.1%}",
        f"{change.time:%Y-%m-%d}",
        change.suspects,
        note,
    ]
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    """Text for a Markdown table: no new column, line or HTML comes out of it."""
    for seen, shown in {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "`": "\\`"}.items():
        text = text.replace(seen, shown)
    return " ".join(_plain(text).split())


def _plain(text: str) -> str:
    """Without control characters, which XML cannot hold."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)
