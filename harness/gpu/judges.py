"""What the commands of the gate came to: a verb's JSON line, pytest's report, a sanitizer's log."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from harness.gpu.jobs import Ended, Outcome, Place
from harness.verdict import Verdict

RAN = re.compile(r'^\{"part": .*\}$', re.MULTILINE)
MEMCHECK = re.compile(r"ERROR SUMMARY: (\d+) error")
RACECHECK = re.compile(r"RACECHECK SUMMARY: .*\((\d+) errors?, (\d+) warning")
MOST_PLACES = 10
"""Annotations of one job: CI services show no more."""


def last_json(out: str) -> dict[str, Any] | None:
    """The last line that is a JSON object: a crash of the interpreter may print behind it."""
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            return found if isinstance(found, dict) else None
    return None


def of_verb(ended: Ended, file: str) -> Outcome:
    """A verb of ours, by its JSON line; ``file`` is what an annotation points at."""
    said = last_json(ended.out)
    if said is None or said.get("exit") != ended.code:
        last = next((line for line in reversed(ended.out.splitlines()) if line.strip()), "nothing")
        told = f"ended with {ended.code} and no JSON line that says so; its last words: {last[:200]}"
        return Outcome(verdict=Verdict.FAIL, told=told, places=(Place(file=file, told=told),))
    error = str(said.get("error", ""))
    verdict = {0: Verdict.PASS, 125: Verdict.UNSUPPORTED if error else Verdict.INCONCLUSIVE}.get(
        said["exit"], Verdict.FAIL
    )
    told = str(said.get("told") or error.splitlines()[0] if error else said.get("told") or _verdicts(said))
    places = (Place(file=file, told=told),) if verdict is Verdict.FAIL else ()
    return Outcome(verdict=verdict, told=told, places=places)


def _verdicts(said: dict[str, Any]) -> str:
    """What a reproduction says of its variants, in one line."""
    if unexpected := said.get("unexpected"):
        return "; ".join(map(str, unexpected))
    variants = said.get("variants") or said.get("verdicts")
    if isinstance(variants, dict):
        return ", ".join(f"{name}: {_short(what)}" for name, what in variants.items())
    return f"exit {said['exit']}"


def _short(what: object) -> str:
    return str(what.get("verdict", what) if isinstance(what, dict) else what)


def of_pytest(ended: Ended) -> Outcome:
    """pytest, by its JUnit report in the job's folder; where every test was skipped, that is INCONCLUSIVE."""
    try:
        root = ElementTree.parse(ended.folder / "junit.xml").getroot()
    except (OSError, ElementTree.ParseError) as error:
        return Outcome(
            verdict=Verdict.FAIL, told=f"pytest ended with {ended.code} and left no report: {error}"
        )
    counts, places = Counter[str](), list[Place]()
    for case in root.iter("testcase"):
        bad = next((child for child in case if child.tag in ("failure", "error")), None)
        counts[
            "failed" if bad is not None else "skipped" if case.find("skipped") is not None else "passed"
        ] += 1
        if bad is not None:
            words = (bad.get("message") or "").splitlines() or [""]
            places.append(
                Place(
                    file=case.get("file") or "cases",
                    line=int(case.get("line") or 0) + 1,
                    told=f"{case.get('name')}: {words[0][:200]}",
                )
            )
    told = ", ".join(f"{number} {what}" for what, number in counts.items()) or "no test"
    if places:
        told = f"{told}; first: {places[0].told}"
    failed = bool(places) or ended.code not in (0, 5)
    if failed and not places:
        told = f"{told}; pytest ended with {ended.code}"
    passed = Verdict.PASS if counts["passed"] else Verdict.INCONCLUSIVE
    return Outcome(
        verdict=Verdict.FAIL if failed else passed,
        told=told,
        places=tuple(places[:MOST_PLACES]),
        counts=dict(counts),
    )


def findings(tool: str, log: Path) -> tuple[int | None, str]:
    """What a sanitizer found, ``None`` where its log has no summary, and the first line of the first finding."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None, ""
    pattern = MEMCHECK if tool == "memcheck" else RACECHECK
    found = [sum(map(int, match.groups())) for match in pattern.finditer(text)]
    lines = [line.removeprefix("=========").strip() for line in text.splitlines()]
    first = next(
        (line for line in lines if re.match(r"(Invalid|Error:|Warning:|Out-of-range|Misaligned)", line)), ""
    )
    return (sum(found), first) if found else (None, lines[-1] if lines else "")


def of_sanitizer(ended: Ended, tool: str, planted: bool) -> Outcome:
    """A sanitizer: findings are failures, unless the mistake was planted, where silence says that nobody looks."""
    count, first = findings(tool, ended.folder / "sanitizer.txt")
    ran = RAN.findall(ended.out)
    launches = json.loads(ran[-1])["launches"] if ran else 0
    counts = {"launches": launches, "findings": count or 0}
    if count is None:
        told = f"{tool} left no summary (exit {ended.code}): {first or ended.out.strip()[-200:]}"
        return Outcome(verdict=Verdict.INCONCLUSIVE, told=told, counts=counts)
    if planted:
        verdict = Verdict.PASS if count else Verdict.INCONCLUSIVE
        told = f"the planted mistake was {'found' if count else 'not found: its silence proves nothing'}"
        return Outcome(verdict=verdict, told=f"{told} ({first})" if first else told, counts=counts)
    if count or not ran:
        told = f"{count} findings in {launches or 'unfinished'} launches: {first}"
        return Outcome(verdict=Verdict.FAIL, told=told, counts=counts)
    return Outcome(verdict=Verdict.PASS, told=f"no finding in {launches} launches", counts=counts)
