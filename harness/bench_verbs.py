"""What the verb ``bench`` does once its arguments are known."""

from __future__ import annotations

import argparse
import errno
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from harness.bench.cells import OFF, Cell, cells_of, early_shares, is_done
from harness.bench.history.filing import file_runs
from harness.bench.load.lost import ServerLost
from harness.bench.measured import Measured
from harness.bench.metrics.crossed import RATIOS
from harness.bench.revision import Revision
from harness.bench.screen import SYNTHETIC, blocks, crossed, ratios, table
from harness.bench.served import Served
from harness.bench_asked import speculations
from harness.bench_compare import compare
from harness.bench_pages import write_pages
from harness.bench_serving import remembered, serving
from harness.bench_session import Session
from harness.errors import TargetError, UsageError
from harness.judging import require_writable
from harness.rundir import alone, program

WRONG, UNDECIDED = 1, 125
NO_MORE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""What a disk says that takes no more."""


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all cells; red where answers are wrong, undecided where the client was the limit."""
    require_writable(args.junit)
    with ExitStack() as held:
        if args.resume is not None:
            held.enter_context(alone(args.resume))  # before anything of it is read
        session = Session.begun(args)
        if args.resume is None:
            held.enter_context(alone(session.run_dir.path))
        return _all(session)


def _all(session: Session) -> dict[str, Any]:
    try:
        if session.args.compare:
            return compare(session)
        _measure(session)
        return _told(session)
    except KeyboardInterrupt:
        print(f"interrupted: {_on(session)}", file=sys.stderr)
        raise
    except ServerLost as error:
        raise ServerLost(str(error.args[0]), url=error.url, hint=_on(session)) from None
    except TargetError as error:
        if session.run_dir.run.get("began"):
            raise type(error)(str(error.args[0]), hint=f"{error.hint} {_on(session)}") from None
        raise
    except (OSError, ExceptionGroup) as error:
        if (disk := _of_the_disk(error)) is None:
            raise
        raise UsageError(
            f"{session.run_dir.path}: cannot be written: {disk.strerror}", hint=f"make room; {_on(session)}"
        ) from None


def _of_the_disk(error: OSError | ExceptionGroup[Exception]) -> OSError | None:
    """What a disk said that takes no more; ``None``: it was no disk."""
    if isinstance(error, OSError):
        return error if error.errno in NO_MORE else None
    found = (_of_the_disk(one) for one in error.exceptions if isinstance(one, (OSError, ExceptionGroup)))
    return next(filter(None, found), None)


def _on(session: Session) -> str:
    """How to go on."""
    resume = f"{program()} bench --resume {shlex.quote(str(session.run_dir.path))}"
    return f"what was measured is kept; go on with: {resume}"


def _measure(session: Session) -> None:
    """All cells: a share of each in turn; each is judged and shown when the last of its requests is asked."""
    cells = cells_of(speculations(session.args))
    with ExitStack() as servers:
        served = {one: servers.enter_context(_served(session, one)) for one in speculations(session.args)}
        for cell, share in early_shares(cells, session.plan.turns):
            one, alive = served[cell.speculation]
            if alive:
                session.ask(cell, one, until=round(share * len(session.asks[cell.guided])))
        for cell in cells:
            one, alive = served[cell.speculation]
            plain = _without_drafts(session.cells, cell)
            found, result = session.measure(cell, one, alive=alive, plain=plain)
            for line in blocks(found, result, session.args.format):
                session.say(line)


def _without_drafts(cells: Sequence[Measured], cell: Cell) -> Measured | None:
    """The cell whose answers this one's must be; ``None``: there is none."""
    pairs = (one for one in cells if one.cell.guided == cell.guided and one.cell.speculation == OFF)
    return None if cell.speculation == OFF else next(pairs, None)


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
        found = crossed(cells, OFF, args.spec, session.plan.at_a_time)
        for line in ratios(found):
            session.say(line)
        result |= {
            "speedup_free": found.speedup_free,
            "speedup_guided": found.speedup_guided,
            "interaction": found.interaction,
            "kept": found.kept,
            "intervals": {name: found.interval(name) for name in RATIOS},
            "synthetic": True,
        }
    result["verdict"], code = _verdict(cells)
    session.say(result["verdict"])
    if args.history:
        result["filed"] = _filed(session, code)
    session.run_dir.run["result"] = result
    session.run_dir.save()
    write_pages(session, result["verdict"], code, speculation=None if args.base_url else args.spec)
    session.say(f"results: {session.run_dir.path}")
    return {"verb": "bench", **result, "run_dir": str(session.run_dir.path), "exit": code}


def _filed(session: Session, code: int) -> list[str]:
    """Names of the files in the history; none of a run that is not valid."""
    url = session.args.history
    if code:
        session.say(f"history {url}: nothing is filed of a run that is not valid")
        return []
    filed = file_runs(url, [session.run_dir.path], series=session.args.series)
    revision = Revision(**session.run_dir.run["revision"])  # without one, nothing is filed
    session.say(f"history {url}: {len(filed)} cells filed, commit {revision.name}")
    return list(filed.values())


def _verdict(cells: Sequence[Measured]) -> tuple[str, int]:
    wrong = [f"{one.cell.title}: {'; '.join(one.wrong)}" for one in cells if one.wrong]
    if wrong:
        return f"WRONG, its speed means nothing: {' | '.join(wrong)}", WRONG
    bound = [one.cell.title for one in cells if one.load.health.is_client_bound]
    if bound:
        return f"UNDECIDED, the client was the limit of: {'; '.join(bound)}", UNDECIDED
    return "right answers, measured by a healthy client", 0


def _figures(one: Measured) -> dict[str, Any]:
    """For machines; a wrong cell has no speed."""
    drafts = one.summary.acceptance
    tpot, rate = (None, None) if one.wrong else (one.summary.clocks["tpot"], one.summary.throughput.output)
    return {
        "output_throughput": rate,
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
