"""What the verb ``bench`` does once its arguments are known."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.bench.cells import OFF, Cell, cells_of, is_done, measure
from harness.bench.data.ask import Ask
from harness.bench.data.vocabulary import Vocabulary
from harness.bench.equality import greedy_equality
from harness.bench.load.health import Bounds
from harness.bench.measured import Measured, judged, kept
from harness.bench.plan import Plan
from harness.bench.screen import SYNTHETIC, blocks, crossed, ratios, table
from harness.bench.served import Served
from harness.bench.ties import partings
from harness.bench_asked import fingerprint, key_of, opened, speculations
from harness.bench_serving import remembered, serving
from harness.console import console_of
from harness.models.tiny import default_cache, ensure
from harness.rundir import RunDir, program

WRONG, UNDECIDED = 1, 125


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all cells; red where answers are wrong, undecided where the client was the limit."""
    console, key = console_of(args), key_of(args)
    run_dir, plan, args = opened(args)
    folder = args.tokenizer or ensure(args.preset, cache=default_cache(os.environ))
    vocabulary = Vocabulary(folder)
    session = Session(
        args=args,
        plan=plan,
        run_dir=run_dir,
        console=console,
        key=key,
        tokenizer=folder.name,
        asks={guided: plan.asks(vocabulary, guided=guided) for guided in (False, True)},
    )
    try:
        for speculation in speculations(args):
            _measure(session, speculation)
    except KeyboardInterrupt:
        print(
            f"interrupted: what was measured is kept; go on with: {program()} bench --resume {run_dir.path}",
            file=sys.stderr,
        )
        raise
    return _told(session)


@dataclass(slots=True, kw_only=True)
class Session:
    """A benchmark under way. ``asks``: by whether they are guided; ``cells``: measured so far."""

    args: argparse.Namespace
    plan: Plan
    run_dir: RunDir
    console: Console
    key: str | None
    tokenizer: str
    asks: dict[bool, list[Ask]]
    cells: list[Measured] = field(default_factory=list)

    def say(self, line: object) -> None:
        """A line that is neither wrapped nor coloured."""
        self.console.print(line, highlight=False, soft_wrap=True)

    def folder(self, cell: Cell) -> Path:
        """Where the records of a cell lie."""
        return self.run_dir.path / "records" / cell.name

    def without_drafts(self, cell: Cell) -> Measured | None:
        """The cell that this one's answers must be those of; ``None``: there is none."""
        return next(
            (
                one
                for one in self.cells
                if one.cell.guided == cell.guided and one.cell.speculation == OFF and cell.speculation != OFF
            ),
            None,
        )


def _measure(session: Session, speculation: str) -> None:
    """Both cells of one server."""
    with _served(session, speculation) as (served, alive):
        for cell in cells_of([speculation]):
            found = _cell(session, cell, served, alive)
            result = kept(
                found,
                session.plan,
                session.run_dir.path,
                model=served.model,
                tokenizer=session.tokenizer,
                fingerprint=fingerprint(
                    session.args, session.plan, session.asks[cell.guided], speculation, served.model
                ),
            )
            session.cells.append(found)
            for line in blocks(found, result, session.args.format):
                session.say(line)


def _cell(session: Session, cell: Cell, served: Served, alive: bool) -> Measured:
    asks, folder = session.asks[cell.guided], session.folder(cell)
    lag = session.args.loop_lag
    with session.console.status(Text(f"{cell.title}: warm-up")) as status:
        load = measure(
            session.plan,
            asks,
            served,
            folder,
            progress=lambda done, whole: status.update(Text(f"{cell.title}: {done} of {whole}")),
            bounds=None if lag is None else Bounds(loop_lag_p99=lag / 1e3),
        )
    found, other = judged(cell, asks, load, folder), session.without_drafts(cell)
    if other is None:
        return found
    found = found.beside(greedy_equality(other.records, found.records))
    assert found.equality is not None
    told = session.run_dir.run.setdefault("partings", {})
    if alive or cell.name not in told:
        parted = partings(found.equality, asks, other.records, found.records, served if alive else None)
        told[cell.name] = [str(one) for one in parted]
        session.run_dir.save()
    return found.noting(told[cell.name])


@contextmanager
def _served(session: Session, speculation: str) -> Iterator[tuple[Served, bool]]:
    """The server, and whether it is there: cells that are whole need none."""
    known = remembered(session.run_dir, speculation)
    if known is not None and all(
        is_done(session.folder(cell), session.asks[cell.guided]) for cell in cells_of([speculation])
    ):
        yield known, False
        return
    with serving(session.args, session.plan, session.run_dir, speculation, session.key) as served:
        yield served, True


def _told(session: Session) -> dict[str, Any]:
    """The two by two, the ratios, and the line for machines."""
    cells, args = session.cells, session.args
    result: dict[str, Any] = {"cells": {one.cell.name: _figures(one) for one in cells}}
    session.say("")
    if args.base_url:
        session.console.print(table(cells, f"{args.base_url}"))
    else:
        session.console.print(table(cells, SYNTHETIC))
        found = crossed(cells, OFF, args.spec)
        for line in ratios(found):
            session.say(line)
        result |= {
            "speedup_free": found.speedup_free,
            "speedup_guided": found.speedup_guided,
            "interaction": found.interaction,
            "kept": found.kept,
            "synthetic": True,
        }
    result["verdict"], code = _verdict(cells)
    session.say(result["verdict"])
    session.run_dir.run["result"] = result
    session.run_dir.save()
    session.say(f"results: {session.run_dir.path}")
    return {"verb": "bench", **result, "run_dir": str(session.run_dir.path), "exit": code}


def _verdict(cells: Sequence[Measured]) -> tuple[str, int]:
    wrong = [f"{one.cell.title}: {'; '.join(one.wrong)}" for one in cells if one.wrong]
    if wrong:
        return f"WRONG, its speed means nothing: {' | '.join(wrong)}", WRONG
    bound = [one.cell.title for one in cells if one.load.health.is_client_bound]
    if bound:
        return f"UNDECIDED, the client was the limit of: {'; '.join(bound)}", UNDECIDED
    return "right answers, measured by a healthy client", 0


def _figures(one: Measured) -> dict[str, Any]:
    tpot, drafts = one.summary.clocks["tpot"], one.summary.acceptance
    return {
        "output_throughput": one.summary.throughput.output,
        "mean_tpot_ms": tpot.mean * 1e3 if tpot else None,
        "acceptance_length": drafts.length if drafts else None,
        "valid_share": one.validity.valid_share if one.validity else None,
        "equality": None
        if one.equality is None
        else {"compared": one.equality.compared, "equal": one.equality.equal},
        "comparable": one.comparable,
        "wrong": list(one.wrong),
        "client_bound": list(one.load.health.because),
        "streams": asdict(one.summary.streams)["outcomes"],
    }
