"""Run directories for the pages, written by the writers that a benchmark uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from harness.bench.cells import OFF, Cell
from harness.bench.data.ask import Ask, Guide
from harness.bench.data.guides import schema_guide
from harness.bench.equality import greedy_equality
from harness.bench.history.history import History
from harness.bench.load.health import Health
from harness.bench.load.run import LoadResult
from harness.bench.load.store import Part, RecordFile, read_records
from harness.bench.measured import Measured, judged, kept
from harness.bench.plan import USUAL, Plan
from harness.bench.record import Chunk, Kind, Outcome, RequestRecord
from harness.bench.stats.run import Direction, Run, Value
from harness.report.bench.benchmark import Benchmark
from harness.report.bench.page import page
from harness.report.bench.series import Series, series_of
from harness.report.bench.summary import junit, markdown
from harness.rundir import RunDir

SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
HOSTILE = f"{SCRIPT}\u2028\u202e\x1b[31mred\x1b[0m\x00</pre></svg>{{{{ 7 * 7 }}}}"
LONG = "A megabyte. " * 87382  # 1,048,584 characters
SETTING = {"model": HOSTILE, "hardware": "H200"}
NAME = "free, speculation off"


def records(
    count: int, *, chunks: int = 12, at_once: int = 4, tokens: int = 1, seed: int = 0
) -> list[RequestRecord]:
    """A closed loop of log-normal requests, seconds on one clock."""
    dice = np.random.default_rng(seed)
    free, found = [0.0] * at_once, []
    for number in range(count):
        lane = int(np.argmin(free))
        sent = free[lane] + 0.001
        gaps = np.concatenate([[0.05 * dice.lognormal(0, 0.6)], 0.02 * dice.lognormal(0, 0.3, chunks - 1)])
        stamps = sent + np.cumsum(gaps)
        free[lane] = float(stamps[-1]) + 0.0005
        found.append(
            RequestRecord(
                id=f"random-{number:05d}",
                scheduled=sent,
                sent=sent,
                closed=free[lane],
                outcome=Outcome.COMPLETE,
                chunks=tuple(Chunk(at=float(at), kind=Kind.CONTENT, tokens=tokens) for at in stamps),
                status=200,
                finish_reason="stop",
                prompt_tokens=64,
                completion_tokens=chunks * tokens,
                text='{"a": 1}',
                token_ids=tuple(range(chunks * tokens)),
                drafted=(3,) * chunks if tokens > 1 else (),
                accepted=(tokens - 1,) * chunks if tokens > 1 else (),
            )
        )
    return found


def cell(
    run_dir: RunDir, kind: Cell, told: Sequence[RequestRecord], plain: Measured | None = None, **health: Any
) -> Measured:
    """Records through the file of a load, judged, and kept as a benchmark keeps them."""
    folder = run_dir.path / "records" / kind.name
    folder.mkdir(parents=True)
    with RecordFile(folder / "records-0.jsonl") as file:
        file.begin(Part(plan="0" * 16, begin=0.0, unix=0.0))
        for one in told:
            file.keep(one)
    guides = {one.guide: _guide(one.guide) for one in told if one.guide is not None}
    asks = [
        Ask(id=one.id, prompt=(1, 2), max_tokens=99, guide=guides[one.guide] if one.guide else None)
        for one in told
    ]
    load = LoadResult(
        records=read_records(folder).records,
        health=Health(**health),
        transport="raw",
        why_transport="",
    )
    found = judged(kind, asks, load, folder)
    if plain is not None:
        found = found.beside(greedy_equality(plain.records, found.records))
    kept(found, Plan(workload=USUAL), run_dir.path, model="tiny", tokenizer="tiny", fingerprint=SETTING)
    return found


def _guide(name: str) -> Guide:
    return schema_guide(name, {"type": "object"})


def two_by_two(reports: Path) -> Path:
    """A run as one wishes for: four right cells, several schemas, drafts that were accepted."""
    names = ["address", "invoice", "weather"]

    def guided(told: list[RequestRecord]) -> list[RequestRecord]:
        return [replace(one, guide=names[place % 3]) for place, one in enumerate(told)]

    made = [(OFF, records(24)), ("mtp", records(24, chunks=6, tokens=2, seed=1))]

    def cells(run_dir: RunDir) -> list[Measured]:
        plain = {
            kind: cell(
                run_dir, Cell(speculation=OFF, guided=kind), guided(made[0][1]) if kind else made[0][1]
            )
            for kind in (False, True)
        }
        drafted = [
            cell(
                run_dir,
                Cell(speculation="mtp", guided=kind),
                guided(made[1][1]) if kind else made[1][1],
                plain[kind],
            )
            for kind in (False, True)
        ]
        return [plain[False], plain[True], *drafted]

    with History(str(nights(reports))) as history:
        found = series_of(history, SETTING, "nightly", ["throughput.output", "tpot.mean_ms"])
        trends = [(NAME, one) for one in found]
    return _written(reports, "bench", cells, "right answers, measured by a healthy client", 0, "mtp", trends)


def hostile(reports: Path) -> Path:
    """Everything that a server, a data set or a user may say is hostile, and one answer is a megabyte."""

    def cells(run_dir: RunDir) -> list[Measured]:
        told = records(12)
        # Names of guides and ids come from files, texts and details from servers.
        told[1] = replace(told[1], text=HOSTILE * 500, outcome=Outcome.CUT, detail=HOSTILE)
        told[2] = replace(told[2], text=LONG, outcome=Outcome.HTTP_ERROR, detail=LONG)
        told = [replace(one, id=f"{place}{SCRIPT}") for place, one in enumerate(told)]
        bad = [replace(one, guide=f"{place % 3}{SCRIPT}", text=HOSTILE) for place, one in enumerate(told)]
        plain = cell(run_dir, Cell(speculation=OFF, guided=False), told)
        drafted = [
            replace(one, token_ids=(7,), drafted=(3, 3), accepted=(1, 2), guide=one.guide) for one in bad
        ]
        right = [replace(one, text='{"a": 1}', outcome=Outcome.COMPLETE, detail="") for one in drafted[3:]]
        late = cell(run_dir, Cell(speculation="mtp", guided=True), right, because=(HOSTILE,))
        late = replace(late, cell=replace(late.cell, variant=SCRIPT))  # which no file may be called
        return [plain, cell(run_dir, Cell(speculation="mtp", guided=False), drafted, plain), late]

    return _written(reports, "bench", cells, HOSTILE, 1, "mtp")


def many(reports: Path, count: int = 10_000) -> Path:
    """A night's worth of requests in one cell."""

    def cells(run_dir: RunDir) -> list[Measured]:
        return [cell(run_dir, Cell(speculation=OFF, guided=False), records(count, chunks=8, at_once=200))]

    return _written(reports, "bench", cells, "right answers, measured by a healthy client", 0, None)


def _written(
    reports: Path,
    name: str,
    cells: Callable[[RunDir], list[Measured]],
    verdict: str,
    code: int,
    speculation: str | None,
    trends: Sequence[tuple[str, Series]] = (),
) -> Path:
    run = {
        "name": name,
        "started": "2026-12-01T02:00:00",
        "plan": Plan(workload=USUAL).as_dict(),
        "setting": {},
    }
    run_dir = RunDir.create(reports, name, run)
    found = Benchmark(
        name=name,
        run=run_dir.run,
        cells=cells(run_dir),
        verdict=verdict,
        code=code,
        speculation=speculation,
        trends=trends,
        prompt=lambda asked, guided: HOSTILE if code else f"the prompt of {asked}",
    )
    run_dir.write_text("index.html", page(found, run_dir.path))
    run_dir.write_text("summary.md", markdown(found))
    run_dir.write_text("junit.xml", junit(found))
    return run_dir.path


def nights(folder: Path, count: int = 60) -> Path:
    """A history with a step for the worse on night 20, mended on night 40."""
    dice = np.random.default_rng(3)
    with History(str(folder / "history")) as history:
        for night in range(count):
            slow = 1.12 if 20 <= night < 40 else 1.0
            tpot = 20 * slow * float(dice.lognormal(0, 0.01))
            values = {
                "tpot.mean_ms": Value(value=tpot, unit="ms", direction=Direction.LOWER),
                "throughput.output": Value(value=4000 / tpot, unit="tok/s", direction=Direction.HIGHER),
            }
            history.append(
                Run(
                    fingerprint=SETTING,
                    values=values,
                    time=datetime(2026, 10, 1, 2, tzinfo=UTC) + timedelta(days=night),
                    commit=f"{night:040x}",
                )
            )
    return folder / "history"
