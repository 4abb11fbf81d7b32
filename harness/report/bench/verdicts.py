"""Runs against runs as a page, and a history as a page: intervals, trends, and where levels changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.bench.stats.gate import GateReport
from harness.bench.stats.judge import Call, worst
from harness.bench.stats.states import State
from harness.report.bench.forest import forest, of_results
from harness.report.bench.series import Series
from harness.report.bench.trend import trend
from harness.report.figure import Figure
from harness.report.html import template

STYLES = {
    Call.PASS: "pass",
    Call.IMPROVEMENT: "pass",
    Call.REGRESSION: "fail",
    Call.INCONCLUSIVE: "open",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """``lines`` are said before the figures, ``facts`` behind them."""

    title: str
    lines: tuple[str, ...]
    figures: tuple[Figure, ...]
    facts: Mapping[str, str]


def comparison(title: str, reports: Mapping[str, GateReport]) -> str:
    """A page for ``compare`` and ``gate``: each cell with the interval of every metric."""
    call = worst(report.call for report in reports.values())
    sections = []
    for name, report in reports.items():
        drawn = forest(f"{name}: how much worse", list(of_results(report.results)))
        lines = [f"{report.call.value}: {report.why}".rstrip(": "), *report.refused]
        lines += [f"another setting: {one}" for one in report.differs]
        facts = {"against": report.against, "nights": str(report.nights), "pairs": str(report.pairs)}
        sections.append(
            Section(title=name, lines=tuple(lines), figures=(drawn,) if drawn else (), facts=facts)
        )
    return _page(
        title,
        call.value if len(reports) == 1 else f"{call.value}, the worst of {len(reports)} cells",
        STYLES[call],
        sections,
    )


def history(title: str, settings: Mapping[str, tuple[Mapping[str, str], Sequence[Series]]]) -> str:
    """A page of trends. ``settings``: the id of each to its fingerprint and its series."""
    new = sum(
        change.state is State.NEW
        for _, series in settings.values()
        for one in series
        for change in one.changes
    )
    sections, told = [], [fingerprint for fingerprint, _ in settings.values()]
    telling = [key for key in told[0] if len({one.get(key) for one in told}) > 1] if told else []
    for name, (fingerprint, series) in settings.items():
        drawn = [trend(one) for one in series]
        found = sum(len(one.changes) for one in series)
        nights = max((len(one.nights) for one in series), default=0)
        sections.append(
            Section(
                title=f"setting {name}",
                lines=(
                    *(f"{key}: {fingerprint[key]}" for key in telling if key in fingerprint),
                    f"{nights} nights, {found} changes of level",
                ),
                figures=tuple(one for one in drawn if one is not None),
                facts=fingerprint,
            )
        )
    words = f"{new} new changes for the worse" if new else "no new change for the worse"
    return _page(title, words, "fail" if new else "pass", sections)


def _page(title: str, conclusion: str, style: str, sections: Sequence[Section]) -> str:
    return template("verdicts.html").render(
        title=title, conclusion=(conclusion[:1].upper() + conclusion[1:], style), sections=sections
    )
