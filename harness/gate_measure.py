"""Baseline and candidate measured in turn, for the gate: two revisions of the engine, on this night and this machine.

The baseline is served from a worktree of its commit by the same interpreter with the same packages; the client is ours
for both. More runs of the candidate alone would not do: they all share tonight's machine, and past nights do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.bench.cells import OFF, Cell, is_done
from harness.bench.history.results import UNKNOWN
from harness.bench.measured import Measured
from harness.bench.served import Served
from harness.bench.stats.compare import Measure
from harness.bench.stats.of_result import run_of
from harness.bench.stats.run import Run
from harness.bench.worktree import checked_out, has_commit
from harness.bench_asked import server_arguments, speculations
from harness.bench_serving import own, remembered
from harness.bench_session import Session
from harness.errors import UsageError
from harness.rundir import RunDir, alone

BASELINE, CANDIDATE = "baseline", "candidate"
SERIES = "gate"


class Pairs:
    """What one benchmark measured, measured again beside a baseline; servers start when they are first needed.

    Every run lies in ``pairs/`` of the benchmark's run directory the moment it is there: a gate that is killed goes on.
    """

    def __init__(self, tonight: Session, session: Session, commit: str, servers: ExitStack) -> None:
        self.commit = commit
        self._tonight, self._session, self._servers = tonight, session, servers
        self._ours = (session.run_dir.run["revision"] or {"commit": UNKNOWN})["commit"]
        self._checkout: Path | None = None
        self._served: dict[str, Served] = {}
        self._plain: dict[bool, Measured] = {}

    def of(self, name: str) -> Measure:
        """The gate's callback for a cell of the benchmark, by its name."""
        cells = {
            cell.name: cell
            for one in speculations(self._session.args)
            for guided in (False, True)
            for cell in [Cell(speculation=one, guided=guided)]
        }
        if name not in cells:
            raise UsageError(f"saw cell {name!r}, expected one of {', '.join(cells)}")
        count = 0

        def measure(baseline_first: bool) -> tuple[Run, Run]:
            nonlocal count
            order = (BASELINE, CANDIDATE) if baseline_first else (CANDIDATE, BASELINE)
            runs = {side: self._run(replace(cells[name], side=side, number=count)) for side in order}
            count += 1
            return runs[BASELINE], runs[CANDIDATE]

        return measure

    def _run(self, cell: Cell) -> Run:
        session = self._session
        served, alive = self._server(cell)
        plain = self._without_drafts(cell) if cell.side == CANDIDATE and cell.speculation != OFF else None
        found, result = session.measure(
            cell, served, alive=alive, plain=plain, repeats=False
        )  # the gate repeats whole pairs
        speed = found.output
        session.say(f"{cell.title}: {'left out' if speed is None else f'{speed:.1f} tok/s'}")
        return run_of(
            result,
            fingerprint=result["specharness"]["fingerprint"],
            commit=self.commit if cell.side == BASELINE else self._ours,
            time=datetime.now(UTC),
            series=SERIES,
            client_bound="; ".join(found.load.health.because),
        )

    def _server(self, cell: Cell) -> tuple[Served, bool]:
        """The server, and whether it is there: runs that are whole need none."""
        session, name = self._session, f"{cell.side}-{cell.speculation}"
        known = remembered(session.run_dir, name)
        if known and name not in self._served and is_done(session.folder(cell), session.asks[cell.guided]):
            return known, False
        if name not in self._served:
            arguments = server_arguments(session.args, session.plan, cell.speculation)
            checkout = self._baseline() if cell.side == BASELINE else None
            server = own(session.run_dir, name, arguments, checkout)
            self._served[name] = self._servers.enter_context(server)
        return self._served[name], True

    def _baseline(self) -> Path:
        if self._checkout is None:
            folder = self._session.run_dir.path / "checkout"
            self._checkout = self._servers.enter_context(checked_out(self.commit, folder.resolve()))
        return self._checkout

    def _without_drafts(self, cell: Cell) -> Measured:
        """Tonight's cell whose answers a candidate's must be. The baseline was held against its own, on its night."""
        if cell.guided not in self._plain:
            served = remembered(self._tonight.run_dir, OFF)
            if served is None:
                raise UsageError(
                    f"{self._tonight.run_dir.path}: has no cell without speculation", hint="bench"
                )
            self._plain[cell.guided] = self._tonight.judge(Cell(speculation=OFF, guided=cell.guided), served)
        return self._plain[cell.guided]


@contextmanager
def pairs_of(run_dir: Path, commit: str, args: argparse.Namespace) -> Iterator[Pairs]:
    """``run_dir``: of a benchmark of the embedded server, measured with this very code. UsageError where it is not."""
    if not has_commit(commit):
        raise UsageError(
            f"the baseline {commit}: this clone does not hold it",
            hint="`git fetch --unshallow`, or actions/checkout with fetch-depth: 0",
        )
    tonight = _session(run_dir, args)
    if tonight.args.base_url or tonight.args.compare:
        raise UsageError(
            f"{run_dir}: measured {tonight.args.base_url or 'several variants'}, expected one embedded server",
            hint="of a server of yours the past nights decide: gate without --measure",
        )
    session = _session(run_dir, args)
    session.run_dir = _folder(run_dir / "pairs", tonight.run_dir.run, commit)
    with alone(session.run_dir.path), ExitStack() as servers:
        yield Pairs(tonight, session, commit, servers)


def _session(run_dir: Path, args: argparse.Namespace) -> Session:
    asked = {"resume": run_dir, "json": args.json, "api_key_file": None, "base_url": None, "commit": None}
    return Session.begun(argparse.Namespace(**asked))


def _folder(path: Path, tonight: Mapping[str, Any], commit: str) -> RunDir:
    """The old one where it has the same baseline."""
    if (path / "run.json").is_file():
        found = RunDir.resume(path)
        if found.run.get("baseline") == commit:
            return found
        raise UsageError(
            f"{path}: holds pairs with the baseline {found.run.get('baseline')}, and this one is {commit}",
            hint=f"move it away, or pass --baseline {found.run.get('baseline')}",
        )
    path.mkdir(parents=True, exist_ok=True)
    kept = {key: tonight.get(key) for key in ("setting", "plan", "revision")}
    made = RunDir(path, {"name": "pairs", "baseline": commit, **kept})
    made.save()
    return made
