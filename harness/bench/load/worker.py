"""One process of a run, started by ``workers.py``: a job through standard input, progress through output."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
from io import FileIO

from harness.bench.load.run import run_here
from harness.bench.load.workers import Job


def main() -> None:
    """Read the job, warm up, say so, wait for the moment to begin, run, and say so."""
    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and its end is ours
    pipe = FileIO(
        sys.stdin.fileno(), closefd=False
    )  # a buffer would be locked by the watching thread at the end
    job: Job = pickle.loads(_exactly(pipe, int.from_bytes(_exactly(pipe, 8), "big")))
    uvloop.run(_run(job, pipe))
    _say(b"done")


async def _run(job: Job, pipe: FileIO) -> None:
    loop = asyncio.get_running_loop()

    def gate() -> asyncio.Future[float]:
        begin: asyncio.Future[float] = loop.create_future()
        threading.Thread(target=_wait_and_watch, args=(pipe, loop, begin), daemon=True).start()
        _say(b"warm")
        return begin

    await run_here(job.plan, job.path, job.clock, job.part, gate=gate, told=lambda kept: _say(b"%d" % kept))


def _wait_and_watch(pipe: FileIO, loop: asyncio.AbstractEventLoop, begin: asyncio.Future[float]) -> None:
    """The moment to begin; after that, the end of the input is the end of the parent."""
    line = pipe.readline()
    if line:
        loop.call_soon_threadsafe(begin.set_result, float(line))
        pipe.read(1)
    os._exit(1)


def _exactly(pipe: FileIO, size: int) -> bytes:
    told = b""
    while len(told) < size:
        more = pipe.read(size - len(told))
        if not more:
            sys.exit(1)
        told += more
    return told


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
