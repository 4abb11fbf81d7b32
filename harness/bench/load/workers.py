"""A run in several processes: one clock, one beginning, a file of records for each.

A worker lives as long as its standard input is open, so none outlives a parent that is killed and goes on asking.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.bench.load.clock import Clock
from harness.bench.load.run import HEAD_START, LoadPlan
from harness.bench.load.shape import share
from harness.bench.load.store import Part
from harness.errors import HarnessError

ROOT = Path(__file__).resolve().parents[3]


class WorkerError(HarnessError):
    """A process of the load generator ended before its time."""

    usual_hint = "what it said is above; --resume goes on with what is left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one worker does; it travels as a pickle between two processes of ours."""

    plan: LoadPlan
    path: Path
    clock: Clock
    part: Part


async def run_workers(
    plan: LoadPlan, folder: Path, clock: Clock, part: Part, told: Callable[[int], None] | None
) -> None:
    """Share a plan among ``plan.workers`` processes, fewer where there are fewer calls.

    Raises:
        WorkerError: one of them failed; the others are ended.
    """
    count = min(plan.workers, len(plan.calls))
    jobs = [
        Job(
            plan=replace(
                plan,
                calls=plan.calls[k::count],
                warm_up=plan.warm_up[k::count],
                shape=share(plan.shape, k, count),
                workers=0,
            ),
            path=folder / f"records-{k}.jsonl",
            clock=clock,
            part=part,
        )
        for k in range(count)
    ]
    workers = [await _start() for _ in jobs]
    try:
        for worker, job in zip(workers, jobs, strict=True):
            sent = pickle.dumps(job)
            _to(worker).write(len(sent).to_bytes(8, "big") + sent)
        for worker in workers:
            await _line(worker, "warm")
        begin = clock.now() + HEAD_START
        kept = [0] * count
        for worker in workers:
            _to(worker).write(f"{begin!r}\n".encode())
        await asyncio.gather(*(_listen(worker, k, kept, told) for k, worker in enumerate(workers)))
    finally:
        await _end(workers)


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "harness.bench.load.worker",
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def _listen(
    worker: asyncio.subprocess.Process, k: int, kept: list[int], told: Callable[[int], None] | None
) -> None:
    while (line := await _line(worker)) != b"done":
        kept[k] = int(line)
        if told is not None:
            told(sum(kept))


async def _line(worker: asyncio.subprocess.Process, expected: str | None = None) -> bytes:
    while True:
        assert worker.stdout is not None
        line = (await worker.stdout.readline()).rstrip(b"\n")
        if not line:
            raise WorkerError(f"a worker of the load generator ended with exit code {await worker.wait()}")
        if expected is None or line == expected.encode():
            return line


def _to(worker: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    assert worker.stdin is not None
    return worker.stdin


async def _end(workers: Sequence[asyncio.subprocess.Process]) -> None:
    for worker in workers:
        if worker.returncode is None:
            _to(worker).close()
            try:
                await asyncio.wait_for(worker.wait(), 5)
            except TimeoutError:
                worker.kill()
                await worker.wait()
