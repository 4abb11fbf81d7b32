"""What a benchmark leaves for people and for CI: its page, a Markdown summary, JUnit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.bench.costs import Cost
from harness.bench.data.vocabulary import Vocabulary
from harness.bench.history.dataset import Dataset
from harness.bench.history.history import History
from harness.bench.result import NAMESPACE, read_result
from harness.bench_session import Session
from harness.errors import HarnessError
from harness.models.tiny import default_cache, ensure
from harness.report.bench.answers import FOLDER
from harness.report.bench.benchmark import Benchmark
from harness.report.bench.page import page
from harness.report.bench.series import Series, series_of
from harness.report.bench.summary import junit, markdown

TRENDS = ("throughput.output", "ttft.median_ms")
"""Metrics that a run's page shows over the nights; ``history page`` shows all."""
MISSING = "no page: {} is not installed; pip install 'specharness[bench]', then bench --resume {}"


def write_pages(
    session: Session, verdict: str, code: int, *, speculation: str | None = None, costs: Sequence[Cost] = ()
) -> None:
    """``summary.md``, ``index.html`` and what was asked for; the results are written before.

    ``speculation``: what is held against off; ``None``: there is no two by two.
    """
    run_dir, args = session.run_dir, session.args
    found = Benchmark(
        name=run_dir.path.name,
        run=run_dir.run,
        cells=session.cells,
        verdict=verdict,
        code=code,
        speculation=speculation,
        at_a_time=session.plan.at_a_time,
        costs=costs,
        prompt=_prompts(session),
        trends=_trends(session),
    )
    told = markdown(found)
    run_dir.write_text("summary.md", told)
    if step := os.environ.get("GITHUB_STEP_SUMMARY"):
        _write(session, Path(step), told, appends=True)
    if args.junit:
        _write(session, args.junit, junit(found))
    if not args.no_page:
        with session.console.status("drawing the report"):
            said = _page(session, found)
        session.say(said)


def _page(session: Session, found: Benchmark) -> str:
    """Write the page; where it lies, or why there is none: that costs no result and no exit code."""
    folder = session.run_dir.path
    shutil.rmtree(folder / FOLDER, ignore_errors=True)  # of the page before --resume
    try:
        path = session.run_dir.write_text("index.html", page(found, folder))
    except ImportError as error:
        return MISSING.format(error.name, folder)
    except Exception as error:  # noqa: BLE001 - what was measured is known, and worth more than its picture
        return f"no page, and that is a fault of specharness: {type(error).__name__}: {error}"
    return f"report: {path}"


def _prompts(session: Session) -> Callable[[str, bool], str | None]:
    """(request id, whether guided) -> its prompt as a text."""
    args = session.args
    vocabulary = Vocabulary(args.tokenizer or ensure(args.preset, cache=default_cache(os.environ)))
    asked = {guided: {ask.id: ask.prompt for ask in asks} for guided, asks in session.asks.items()}

    def prompt(name: str, guided: bool) -> str | None:
        found = asked[guided].get(name)
        return vocabulary.decode(found) if isinstance(found, tuple) else found

    return prompt


def _trends(session: Session) -> list[tuple[str, Series]]:
    """(cell, its nights) of the history that was named, this run's among them if it was filed."""
    url, folder, found = session.args.history, session.run_dir.path, list[tuple[str, Series]]()
    if not url or session.args.no_page:
        return found
    try:
        if Dataset(url).names():
            with History(url) as history:
                for one in session.cells:
                    told = read_result(folder / f"result-{one.cell.name}.json")[NAMESPACE]
                    series = series_of(history, told["fingerprint"], session.args.series, TRENDS)
                    found += [(one.cell.title, each) for each in series if len(each.nights) > 1]
    except HarnessError as error:
        session.say(f"no nights on the page: {error}")
    return found


def _write(session: Session, path: Path, text: str, *, appends: bool = False) -> None:
    try:
        with path.open("a" if appends else "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        session.say(f"{path}: cannot be written: {error.strerror}")
