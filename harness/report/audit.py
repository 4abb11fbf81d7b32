"""An audit for a person: the first screen, and a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from harness.live.audit import Audit
from harness.live.finding import Finding
from harness.live.transcript import Transcript
from harness.report.html import STYLE, template
from harness.report.terminal import verdict_text
from harness.verdict import Verdict

LOG_LINES = 6
MEANINGS = {
    Verdict.PASS: "everything agreed",
    Verdict.FAIL: "something was wrong; only this is red",
    Verdict.NEAR_TIE: "two tokens were so close that noise may choose between them",
    Verdict.INCONCLUSIVE: "nothing was wrong, but too little could be compared",
    Verdict.UNSUPPORTED: "the server does not offer what the check needs",
}


def screen(audit: Audit, transcript: Transcript) -> Iterator[Any]:
    """A table of the checks; then each failure with its example and its likely cause; then the server's last words."""
    table = Table()
    for column in ("check", "verdict", "requests", "what it saw"):
        table.add_column(column, overflow="fold")
    for finding in audit.findings:
        table.add_row(finding.check, verdict_text(finding.verdict), finding.share, finding.told)
    yield table
    for finding in audit.failed:
        yield from failure(finding)
    if audit.failed and audit.failed[0].check == "liveness" and transcript.log:
        yield Text("  the end of its log:", "dim")
        yield from (Text(f"    {line[:300]}", "dim") for line in transcript.log[-LOG_LINES:])
    if transcript.budget_spent:
        yield Text("the budget of requests was spent before the end: --budget N", "yellow")


def failure(finding: Finding) -> Iterator[Text]:
    """One failure, line by line."""
    share = f" in {finding.share} requests" if finding.share else ""
    yield Text(f"{finding.check} FAILS{share}: {finding.told}", "bold")
    if finding.worst:
        yield Text(f"  {finding.worst}")
    if finding.cause:
        yield Text(f"  likely: {finding.cause}", "bold")


def page(title: str, audit: Audit, transcript: Transcript, setting: Mapping[str, Any]) -> str:
    """One self-contained page."""
    offer = transcript.offer
    facts = {
        "model": offer.model,
        "version": offer.version or "not said",
        "grammars": offer.grammars or "none",
        **{f"without {what}": why for what, why in offer.lacks.items()},
        **{name: value for name, value in setting.items() if value not in (None, "", [])},
    }
    failed = audit.verdict is Verdict.FAIL
    return template("audit.html").render(
        title=title,
        summary=f"{len(transcript.asked)} requests, {len(transcript.generated)} answers compared",
        conclusion=(conclusion(audit), STYLE[audit.verdict]),
        audit=audit,
        log=transcript.log if failed else (),
        facts=facts,
        style=STYLE,
        meanings=MEANINGS,
    )


def conclusion(audit: Audit) -> str:
    """The verdict as a sentence."""
    if audit.failed:
        return f"The server is wrong: {', '.join(finding.check for finding in audit.failed)}."
    if audit.verdict.exit_code == 125:
        return "Undecided: too little could be compared."
    return "Nothing is wrong with this server, as far as it could be asked."
