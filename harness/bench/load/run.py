"""A whole run: warm-up, load, records on disk, the client's certificate; in this process or in several.

plan = LoadPlan(endpoint=Endpoint(url="http://127.0.0.1:8000"), calls=calls, shape=Closed(concurrency=10))
result = run_load(plan, folder)
"""

from __future__ import annotations

import asyncio
import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.bench.load.arrivals import offered_rate
from harness.bench.load.call import Call
from harness.bench.load.clock import Clock
from harness.bench.load.collector import rarely_collecting
from harness.bench.load.drive import drive
from harness.bench.load.health import Bounds, Health, Pulse, merged
from harness.bench.load.shape import Closed, Open, Shape
from harness.bench.load.store import Part, RecordFile, plan_digest, read_records
from harness.bench.load.transport import Endpoint, choose, open_transport
from harness.bench.record import RequestRecord
from harness.errors import UsageError

Progress = Callable[[int, int], None]
HEAD_START = 0.1
"""Seconds between the end of the warm-up and the first request."""
MOST_FILES = 65536
COST_PER_CHUNK = 20e-6
"""CPU seconds of the raw transport, at most (reports/baselines/load.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What to send and how. ``transport``: its name, or ``None`` for the one that fits.

    ``workers``: processes of their own; 0: this process. ``warm_up``: calls that are sent first, as many at a time as
    the shape has places, and marked.
    """

    endpoint: Endpoint
    calls: tuple[Call, ...]
    shape: Shape
    warm_up: tuple[Call, ...] = ()
    transport: str | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        ids = {call.id for call in self.calls}
        if not self.calls or len(ids) != len(self.calls):
            raise UsageError(
                f"saw {len(self.calls)} calls with {len(ids)} ids, expected some, each with its own"
            )
        if isinstance(self.shape, Open) and len(self.shape.times) != len(self.calls):
            raise UsageError(
                f"saw {len(self.shape.times)} arrivals for {len(self.calls)} calls, expected as many"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """``records`` with the warm-up's, by the time of sending."""

    records: tuple[RequestRecord, ...]
    health: Health
    transport: str
    why_transport: str


def run_load(
    plan: LoadPlan,
    folder: Path,
    *,
    resume: bool = False,
    until: int | None = None,
    progress: Progress | None = None,
    bounds: Bounds | None = None,
) -> LoadResult:
    """Run a plan and keep every record in ``folder``. ``progress`` hears (measured, all) a few times a second.

    ``until``: only the first so many calls; the others are left to a later run that resumes this one.

    Raises:
        UsageError: a URL that is none, a folder with records of another plan or, without ``resume``, of any.
    """
    import uvloop

    transport, why = choose(plan.endpoint, plan.transport)
    _allow_files()
    plan = replace(plan, transport=transport)
    digest = plan_digest(plan.calls, plan.shape)
    folder.mkdir(parents=True, exist_ok=True)
    places, begin, parts = _left(plan, folder, digest, resume)
    places = places if until is None else [place for place in places if place < until]
    if places:
        left = _only(plan, places)
        clock = Clock(time.monotonic() - begin)
        part = Part(plan=digest, begin=begin, unix=time.time())
        whole = len(plan.calls[:until])
        told = _counting(progress, whole - len(left.calls), whole)
        if plan.workers:
            from harness.bench.load.workers import run_workers

            uvloop.run(run_workers(left, folder, clock, part, told))
        else:
            uvloop.run(run_here(left, folder / "records-0.jsonl", clock, part, told=told))
        parts += 1
    kept = read_records(folder)
    records = kept.records
    is_free = isinstance(plan.shape, Open) and plan.shape.most_in_flight is None and parts == 1
    offered = offered_rate_of(plan.shape) if is_free else None
    health = merged(kept.pulses, records, offered=offered, parts=parts, bounds=bounds)
    return LoadResult(
        records=records,
        health=health,
        transport=transport,
        why_transport=why,
    )


async def run_here(
    plan: LoadPlan,
    path: Path,
    clock: Clock,
    part: Part,
    *,
    gate: Callable[[], asyncio.Future[float]] | None = None,
    told: Callable[[int], None] | None = None,
) -> None:
    """A plan in this loop. ``gate`` is called after the warm-up and answers when to begin, on the run's clock."""
    transport = open_transport(plan.endpoint, clock, plan.transport)
    pulse = Pulse(clock)
    with RecordFile(path) as file:
        file.begin(part)
        teller = asyncio.create_task(_tell(file, told)) if told is not None else None
        try:
            if plan.warm_up:
                warm = [replace(call, warm_up=True) for call in plan.warm_up]
                await drive(transport, warm, Closed(concurrency=_places(plan)), clock, file.keep)
            with rarely_collecting():
                begin = clock.now() + HEAD_START if gate is None else await gate()
                pulse.start()
                try:
                    await drive(
                        transport,
                        plan.calls,
                        plan.shape,
                        clock,
                        file.keep,
                        begin=begin,
                        dispatched=pulse.dispatched,
                    )
                finally:
                    file.end(pulse.stop())
        finally:
            if teller is not None:
                teller.cancel()
            await transport.close()


def workers_needed(chunks_per_second: float, *, load: float = 0.6) -> int:
    """Processes that the raw transport takes for so many chunks a second, each kept below ``load`` of its core."""
    return max(1, math.ceil(round(chunks_per_second * COST_PER_CHUNK / load, 6)))


def offered_rate_of(shape: Shape) -> float | None:
    """Requests per second that were due; ``None`` for a closed loop."""
    import numpy as np

    return offered_rate(np.asarray(shape.times)) if isinstance(shape, Open) else None


def _places(plan: LoadPlan) -> int:
    """As many at a time as the run itself will have, so that the same batch sizes are warm."""
    shape = plan.shape
    most = shape.concurrency if isinstance(shape, Closed) else shape.most_in_flight
    return max(1, min(most or len(plan.warm_up), len(plan.warm_up)))


def _left(plan: LoadPlan, folder: Path, digest: str, resume: bool) -> tuple[list[int], float, int]:
    """Which calls are not measured yet, where the run's clock goes on, and how many parts there were."""
    kept = read_records(folder)
    if not kept.parts:
        return list(range(len(plan.calls))), 0.0, 0
    if not resume:
        raise UsageError(
            f"{folder} has {len(kept.done)} records of a run", hint="--resume, or another folder"
        )
    if any(part.plan != digest for part in kept.parts):
        raise UsageError(
            f"{folder}: saw records of plan {kept.parts[0].plan}, expected {digest}",
            hint="resume with the arguments that the run began with",
        )
    places = [i for i, call in enumerate(plan.calls) if call.id not in kept.done]
    return places, kept.ended, len({part.unix for part in kept.parts})


def _only(plan: LoadPlan, places: list[int]) -> LoadPlan:
    """Some of the calls; the first of them is due when its part begins."""
    shape = plan.shape
    if isinstance(shape, Open) and len(places) < len(plan.calls):
        shape = replace(shape, times=tuple(shape.times[i] - shape.times[places[0]] for i in places))
    return replace(plan, calls=tuple(plan.calls[i] for i in places), shape=shape)


def _allow_files() -> None:
    """As many connections as this process may have: a stream that fails for want of one is not the server's fault."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _counting(progress: Progress | None, done: int, whole: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda kept: progress(done + kept, whole)


async def _tell(file: RecordFile, told: Callable[[int], None]) -> None:
    """Four times a second, whatever comes."""
    while True:
        await asyncio.sleep(0.25)
        told(file.kept)
