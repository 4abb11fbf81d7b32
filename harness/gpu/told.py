"""What the gate says: a first screen, Markdown for a step summary, JUnit, annotations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from harness.gpu.jobs import Done, Place
from harness.report.terminal import verdict_text
from harness.verdict import Verdict, worst

MOST_TOLD = 8
"""Jobs that the first screen tells of."""
SIGNS = {Verdict.PASS: "✅", Verdict.FAIL: "❌"}
SOUND = (Verdict.PASS, Verdict.NEAR_TIE)


def verdict_of(done: Sequence[Done]) -> Verdict:
    """The verdict of the whole gate; of no job, INCONCLUSIVE. A job that cannot be done here is told of, and left out
    as long as another one is not."""
    verdicts = [one.outcome.verdict for one in done]
    return worst([verdict for verdict in verdicts if verdict is not Verdict.UNSUPPORTED] or verdicts)


def notable(done: Sequence[Done]) -> list[Done]:
    """What is not sound, the red first."""
    open_ = [one for one in done if one.outcome.verdict not in SOUND]
    return sorted(
        open_, key=lambda one: (one.outcome.verdict is not Verdict.FAIL, one.job.part, one.job.name)
    )


def screen(done: Sequence[Done], seconds: float) -> Iterator[Any]:
    """Parts as a table, then whatever is not sound with the next command, then one line."""
    table = Table()
    for column in ("part", "jobs", "verdict", "passed", "not", "longest"):
        table.add_column(column)
    for part, jobs in _parts(done).items():
        sound = sum(one.outcome.verdict in SOUND for one in jobs)
        longest = max(jobs, key=lambda one: one.seconds)
        table.add_row(
            part,
            str(len(jobs)),
            verdict_text(verdict_of(jobs)),
            str(sound),
            str(len(jobs) - sound),
            f"{longest.seconds:.0f} s {longest.job.name}",
        )
    yield table
    told = notable(done)
    for one in told[:MOST_TOLD]:
        yield Text.assemble(verdict_text(one.outcome.verdict), f"  {one.job.name}: {one.outcome.told}")
        yield Text(f"  next: {one.job.again}\n  log:  {one.log}")
    if len(told) > MOST_TOLD:
        yield Text(f"and {len(told) - MOST_TOLD} more: the report names all")
    yield Text.assemble(verdict_text(verdict_of(done)), f"  {headline(done, seconds)}")


def headline(done: Sequence[Done], seconds: float) -> str:
    """One line: how many jobs came to what."""
    counted = Counter(one.outcome.verdict.value for one in done)
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counted.items()))
    return f"{len(done)} jobs in {seconds:.0f} s: {verdicts or 'nothing ran'}"


def markdown(done: Sequence[Done], seconds: float, machine: str) -> str:
    """A section for a GitHub step summary."""
    verdict = verdict_of(done)
    lines = [
        f"## {SIGNS.get(verdict, '❔')} GPU gate: {verdict.value}",
        "",
        f"{machine}: {headline(done, seconds)}.",
        "",
    ]
    lines += ["| part | jobs | passed | verdict |", "|---|---:|---:|---|"]
    for part, jobs in _parts(done).items():
        sound = sum(one.outcome.verdict in SOUND for one in jobs)
        lines.append(f"| {part} | {len(jobs)} | {sound} | {verdict_of(jobs).value} |")
    if told := notable(done):
        lines += ["", "| job | verdict | what | next |", "|---|---|---|---|"]
        for one in told:
            cells = one.job.name, one.outcome.verdict.value, one.outcome.told, one.job.again
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    lines += [
        "",
        *(f"- {one.job.name}: {_cell(one.outcome.told)}" for one in done if one.job.part == "recompile"),
    ]
    return "\n".join(lines).rstrip() + "\n"


def junit(done: Sequence[Done]) -> str:
    """JUnit XML: one suite per part, one case per job."""
    root = ElementTree.Element("testsuites", name="gpu gate")
    for part, jobs in _parts(done).items():
        verdicts = [one.outcome.verdict for one in jobs]
        failures = verdicts.count(Verdict.FAIL)
        skipped = sum(verdict not in (*SOUND, Verdict.FAIL) for verdict in verdicts)
        numbers = {"tests": str(len(jobs)), "failures": str(failures), "skipped": str(skipped)}
        suite = ElementTree.SubElement(root, "testsuite", {"name": part, **numbers})
        for one in jobs:
            about = {"classname": f"gpu.{part}", "name": one.job.name, "time": f"{one.seconds:.1f}"}
            case = ElementTree.SubElement(suite, "testcase", about)
            verdict, told = one.outcome.verdict, _plain(one.outcome.told)
            if verdict is Verdict.FAIL:
                failure = ElementTree.SubElement(case, "failure", message=told)
                failure.text = f"next: {_plain(one.job.again)}"
            elif verdict not in SOUND:
                ElementTree.SubElement(case, "skipped", message=f"{verdict.value}: {told}")
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def workflow_commands(done: Sequence[Done]) -> Iterator[str]:
    """Workflow commands that put each failure on its file."""
    for one in notable(done):
        red = one.outcome.verdict is Verdict.FAIL
        fallback = Place(file="Makefile", told=one.outcome.told)
        for place in one.outcome.places or (fallback,):
            where = f"file={_property(place.file)},line={place.line},title={_property(one.job.name)}"
            said = f"{place.told or one.outcome.told}\nnext: {one.job.again}"
            yield f"::{'error' if red else 'warning'} {where}::{_message(said)}"


def _parts(done: Sequence[Done]) -> dict[str, list[Done]]:
    parts: dict[str, list[Done]] = {}
    for one in sorted(done, key=lambda one: (one.job.part, one.job.name)):
        parts.setdefault(one.job.part, []).append(one)
    return parts


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|").replace("`", "'").replace("<", "&lt;").replace("\n", " ")


def _plain(text: str) -> str:
    """Without characters that XML cannot hold."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
