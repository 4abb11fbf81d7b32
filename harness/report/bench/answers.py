"""What was asked and answered, for a few requests: those that went wrong first, then the slowest. All of it is text.

A long text is cut on the page; the whole of it lies in a file beside, which browsers show as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.bench.measured import MOST_TOLD, WRONG, Measured
from harness.bench.metrics.latency import e2el, ttft
from harness.bench.metrics.span import complete, measured
from harness.bench.record import Outcome, RequestRecord
from harness.report.html import MOST
from harness.rundir import slug

FOLDER = "texts"
MOST_WRONG, MOST_SLOW = 8, 1
"""Of one cell: requests that went wrong; the slowest to the first token, and to the last one."""
MOST_SHOWN = 24
"""On a page: with every character escaped they are less than 1.2 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text as far as it is shown; ``whole``: where all of it is, empty where nothing was cut."""

    text: str
    characters: int
    whole: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request. ``why`` it is shown; ``wrong``: something is; ``facts`` in a few words each."""

    cell: str
    id: str
    why: str
    wrong: bool
    facts: tuple[str, ...]
    prompt: Passage | None
    answer: Passage


def exchanges(
    cells: Sequence[Measured], prompt: Callable[[str, bool], str | None], folder: Path
) -> Iterator[Exchange]:
    """Wrong ones of all cells first. ``prompt``: (request id, whether guided) -> its text, where that is known.

    Writes the texts that are cut to ``folder/texts``.
    """
    found = [(one, record, why, wrong) for one in cells for record, why, wrong in _chosen(one)]
    found.sort(key=lambda each: not each[3])
    for number, (one, record, why, wrong) in enumerate(found[:MOST_SHOWN]):
        asked = prompt(record.id, one.cell.guided)
        name = f"{slug(one.cell.name)}-{number}"
        yield Exchange(
            cell=one.cell.title,
            id=record.id,
            why=why,
            wrong=wrong,
            facts=tuple(_facts(record)),
            prompt=None if asked is None else _passage(asked, folder, f"{name}-prompt.txt"),
            answer=_passage(record.text, folder, f"{name}-answer.txt"),
        )


def _chosen(cell: Measured) -> Iterator[tuple[RequestRecord, str, bool]]:
    """(request, why, whether something is wrong with it), each request once."""
    reasons = _wrong(cell)
    wrong = [record for record in measured(cell.records) if record.id in reasons]
    for record in wrong[:MOST_WRONG]:
        yield record, reasons[record.id], True
    rest = [record for record in complete(cell.records) if record.id not in reasons]
    seen: set[str] = set()
    for clock, why in ((ttft, "slowest to its first token"), (e2el, "slowest to its last token")):
        for record in sorted(rest, key=lambda one: -(clock(one) or 0.0))[:MOST_SLOW]:
            if record.id not in seen:
                seen.add(record.id)
                yield record, why, False


def _wrong(cell: Measured) -> Mapping[str, str]:
    """Why, by request id; the first reason is the one that is told."""
    reasons = {
        record.id: f"{record.outcome.value}{f': {record.detail[:MOST_TOLD]}' if record.detail else ''}"
        for record in measured(cell.records)
        if record.outcome is not Outcome.COMPLETE
    }
    for one in cell.equality.divergences if cell.equality else ():
        where = f"{one.unit} {one.index + 1} of {one.lengths[0]} and {one.lengths[1]}"
        reasons.setdefault(one.id, f"parts from the answer without speculation at {where}")
    for answer in cell.validity.answers if cell.validity else ():
        if answer.validity in WRONG:
            reasons.setdefault(answer.id, f"{answer.validity.value}: {answer.detail}")
    return reasons


def _facts(record: RequestRecord) -> Iterator[str]:
    if record.guide is not None:
        yield f"schema {record.guide}"
    if record.prompt_tokens is not None:
        yield f"{record.prompt_tokens:,} tokens in"
    if record.completion_tokens is not None:
        yield f"{record.completion_tokens:,} out"
    for words, value in (("first token after", ttft(record)), ("last after", e2el(record))):
        if value is not None:
            yield f"{words} {value * 1e3:,.1f} ms"
    if record.finish_reason:
        yield f"ended by {record.finish_reason}"


def _passage(text: str, folder: Path, name: str) -> Passage:
    if len(text) <= MOST:
        return Passage(text=text, characters=len(text))
    path = folder / FOLDER / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="replace")
    return Passage(text=text[:MOST], characters=len(text), whole=f"{FOLDER}/{name}")
