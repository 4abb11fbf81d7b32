"""Cells of a benchmark: speculation off and on, free and guided; and the measuring of one of them.

Everything that is measured lies in the cell's folder the moment it is there, and a cell that was killed goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from harness.bench.data.ask import Ask
from harness.bench.load.call import Call
from harness.bench.load.health import Bounds
from harness.bench.load.lost import ServerLost, lost, set_aside
from harness.bench.load.run import LoadPlan, LoadResult, Progress, run_load
from harness.bench.load.shape import Closed
from harness.bench.load.store import read_records
from harness.bench.load.transport import Endpoint
from harness.bench.metrics.acceptance import Acceptance
from harness.bench.metrics.counters import acceptance_of, between, counters
from harness.bench.plan import Plan
from harness.bench.served import Served
from harness.errors import TargetError

OFF, AS_SERVED = "off", "as served"
KINDS = (False, True)
"""Of requests: free, guided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """``speculation``: ``off``, where drafts come from, or ``as served`` where the server is not ours.

    ``variant`` and ``number`` tell repeated runs of several variants apart, ``side`` runs of two revisions of one.
    """

    speculation: str
    guided: bool
    side: str | None = None
    variant: str | None = None
    number: int | None = None

    @property
    def name(self) -> str:
        """As part of file names."""
        kind = "guided" if self.guided else "free"
        drafts = None if self.speculation == AS_SERVED else self.speculation
        parts = (self.side, self.variant, kind, drafts, None if self.number is None else str(self.number))
        return "-".join(filter(None, parts))

    @property
    def title(self) -> str:
        """For people."""
        words = AS_SERVED if self.speculation == AS_SERVED else f"speculation {self.speculation}"
        run = "" if self.number is None else f", run {self.number + 1}"
        who = "".join(f"{one}: " for one in (self.side, self.variant) if one)
        return f"{who}{'guided' if self.guided else 'free'}, {words}{run}"


def cells_of(speculations: Sequence[str]) -> tuple[Cell, ...]:
    """Both kinds of requests for each server, in the order in which servers are started."""
    return tuple(Cell(speculation=one, guided=guided) for one in speculations for guided in KINDS)


def early_shares(cells: Sequence[Cell], turns: int) -> Iterator[tuple[Cell, Fraction]]:
    """Who is asked next, and up to which share of its requests, before all are asked for the last share in order.

    Backwards every other time, so that no cell is always the first, or always behind the same one.
    """
    for turn in range(1, turns):
        yield from (
            (cell, Fraction(turn, turns)) for cell in (cells if (turns - turn) % 2 == 0 else cells[::-1])
        )


def is_done(folder: Path, asks: Sequence[Ask]) -> bool:
    """Whether every request of a cell has its record."""
    return {ask.id for ask in asks} <= read_records(folder).done


def measure(
    plan: Plan,
    asks: Sequence[Ask],
    served: Served,
    folder: Path,
    *,
    until: int | None = None,
    progress: Progress | None = None,
    bounds: Bounds | None = None,
) -> LoadResult:
    """Warm up, then measure what is not measured yet, between two looks at the server's counters.

    ``until``: of the first so many requests only, and of the others another time.

    ServerLost where the server is gone in the middle; what it did not answer is not measured then.
    """
    calls, endpoint = plan.calls(asks, served.model), Endpoint(url=served.url, api_key=served.api_key)
    if is_done(folder, asks[:until]):
        return _load(plan, calls, endpoint, folder, progress, bounds, until)
    folder.mkdir(parents=True, exist_ok=True)
    _warm_up(plan.warm_up(asks, served.model), endpoint, plan.workload.concurrency, folder / "warm-up")
    part = len(list(folder.glob("metrics-*-before.txt")))
    _keep(served.metrics(), folder / f"metrics-{part}-before.txt")
    found = _load(plan, calls, endpoint, folder, progress, bounds, until)
    _require_server(served, found, folder)
    with suppress(TargetError):  # one that is gone behind the last answer
        _keep(served.metrics(), folder / f"metrics-{part}-after.txt")
    return found


def _require_server(served: Served, found: LoadResult, folder: Path) -> None:
    """ServerLost where it is gone and left requests without an answer."""
    left = lost([record for record in found.records if not record.warm_up])
    missing = served.missing() if left else None
    if missing is None:
        return
    set_aside(folder, left)
    whole = len([record for record in found.records if not record.warm_up])
    raise ServerLost(
        f"{folder.name}: the server was lost, {whole - len(left)} of {whole} requests measured: {missing}",
        url=served.url,
    )


def drafts_of(folder: Path) -> tuple[Acceptance | None, str]:
    """Acceptance as the server counted it around the parts of a cell, and what is missing of it, in words."""
    begun = sorted(folder.glob("metrics-*-before.txt"))
    pairs = [(before, before.with_name(before.name.replace("before", "after"))) for before in begun]
    ended = [pair for pair in pairs if pair[1].exists()]
    if begun and not ended:
        return None, "acceptance is unknown: the server's counters could not be read again behind the cell"
    read = [[counters(path.read_text("utf-8")) for path in pair] for pair in ended]
    found = acceptance_of([between(before, after) for before, after in read])
    if found is None or not found.drafted:
        return None, ""  # rows without a draft are counted too, and are no speculation
    missing = len(begun) - len(ended)
    note = f"acceptance is without the requests of {missing} of {len(begun)} parts: the server's counters could not be "
    return found, f"{note}read again behind them" if missing else ""


def _load(
    plan: Plan,
    calls: tuple[Call, ...],
    endpoint: Endpoint,
    folder: Path,
    progress: Progress | None,
    bounds: Bounds | None,
    until: int | None,
) -> LoadResult:
    load = LoadPlan(endpoint=endpoint, calls=calls, shape=plan.shape)
    return run_load(load, folder, resume=True, until=until, progress=progress, bounds=bounds)


def _warm_up(calls: tuple[Call, ...], endpoint: Endpoint, concurrency: int, folder: Path) -> None:
    """In a run of its own, so that the server's counters can be read behind it. A new server is warmed up anew."""
    shutil.rmtree(folder, ignore_errors=True)
    run_load(LoadPlan(endpoint=endpoint, calls=calls, shape=Closed(concurrency=concurrency)), folder)


def _keep(metrics: str | None, path: Path) -> None:
    path.write_text(metrics or "", encoding="utf-8")
