"""A benchmark for a GitHub step summary, in Markdown, and for CI, as JUnit."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from harness.bench.measured import Measured
from harness.bench.screen import SYNTHETIC, ratios
from harness.report.bench.benchmark import Benchmark, problems, warnings
from harness.report.bench.tiles import HEAD, rows
from harness.report.html import shown

SIGNS = {0: "✅", 1: "❌"}
UNDECIDED = "❔"
MOST_LINES = 40
"""Problems that are listed; GitHub shows a step's first megabyte."""
_ESCAPED = {ord(mark): f"&#{ord(mark)};" for mark in "&<>|`*_[]~@\\"}


def markdown(found: Benchmark) -> str:
    """A section; what servers say in it is text, in one line each."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Benchmark) -> Iterator[str]:
    yield f"## {SIGNS.get(found.code, UNDECIDED)} Benchmark: {cell(found.verdict)}"
    yield ""
    yield f"| {' | '.join(HEAD)} |"
    yield f"|---|:-:|{'---:|' * (len(HEAD) - 2)}"
    for row in rows(found.cells):
        yield f"| {' | '.join(map(cell, (row.title, row.verdict, *row.figures)))} |"
    yield ""
    if found.crossed is not None:
        yield from (f"- {cell(line)}" for line in ratios(found.crossed))
    yield from (f"- {cell(str(one))}" for one in found.costs)
    told = list(problems(found.cells))
    for title, style, line in told[:MOST_LINES]:
        yield f"- {'❌' if style == 'fail' else '⚠️'} {cell(title)}: {cell(line)}"
    if len(told) > MOST_LINES:
        yield f"- and {len(told) - MOST_LINES} more, in the report"
    if cautions := list(warnings(found.cells)):
        yield f"\n<details><summary>{len(cautions)} warnings, which make no figure wrong</summary>\n"
        yield from (f"- {cell(line)} ({cell(where)})" for line, where in cautions[:MOST_LINES])
        yield "\n</details>"
    if not found.run.get("setting", {}).get("base_url"):
        yield ""
        yield f"<sub>{SYNTHETIC}</sub>"


def junit(found: Benchmark) -> str:
    """One case for each cell: wrong answers fail, a client that was the limit is skipped."""
    suite = ElementTree.Element("testsuite", name=visible(found.name))
    for one in found.cells:
        took = one.summary.span.seconds if one.summary.span else 0.0
        case = ElementTree.SubElement(
            suite, "testcase", classname="benchmark", name=visible(one.cell.title), time=f"{took:.3f}"
        )
        _outcome(case, one)
    for price in found.costs:
        kind = "guided" if price.guided else "free"
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname="cost",
            name=f"{kind}: {visible(price.new)} against {visible(price.old)}",
        )
        if price.exit_code:
            what = "failure" if price.exit_code == 1 else "skipped"
            ElementTree.SubElement(case, what, message=visible(str(price)))
    counted = {"tests": "testcase", "failures": "testcase/failure", "skipped": "testcase/skipped"}
    for name, path in counted.items():
        suite.set(name, str(len(suite.findall(path))))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _outcome(case: ElementTree.Element, one: Measured) -> None:
    if one.wrong:
        told = ElementTree.SubElement(case, "failure", message=visible("; ".join(one.wrong)), type="wrong")
        told.text = visible("\n".join(one.notes))
    elif one.load.health.is_client_bound:
        why = "; ".join(one.load.health.because)
        ElementTree.SubElement(case, "skipped", message=visible(f"client-bound: {why}"))


def cell(text: str) -> str:
    """Text within a line of Markdown: no column, mark, link or element comes out of it."""
    return " ".join(visible(text).split()).translate(_ESCAPED)


def visible(text: str) -> str:
    """Invisible characters spelled out, which XML cannot hold, and no more than a page shows."""
    return str(shown(text))
