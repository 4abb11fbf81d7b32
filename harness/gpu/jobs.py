"""Commands that run beside each other, each with a time of its own, and what they came to."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from harness.verdict import Verdict

GRACE = 5.0
"""Seconds in which a child that was told to end may tidy up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a file, for an annotation."""

    file: str
    line: int = 1
    told: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a job came to, in one sentence; ``places`` point at files of the repository."""

    verdict: Verdict
    told: str
    places: tuple[Place, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that is over. ``code`` is ``None`` where it ran past its time and was ended."""

    code: int | None
    out: str
    seconds: float
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command. ``judge`` reads what it left, ``again`` is what a person runs to see it alone."""

    name: str
    part: str
    command: Sequence[str]
    judge: Callable[[Ended], Outcome]
    again: str
    seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A job, what it came to, how long it took, and its log."""

    job: Job
    outcome: Outcome
    seconds: float
    log: Path


class Runner:
    """Runs jobs in ``folder``, a folder and a log for each, ``at_once`` at a time, until ``deadline`` (monotonic)."""

    def __init__(self, folder: Path, at_once: int, deadline: float) -> None:
        self._folder = folder
        self._at_once = at_once
        self._deadline = deadline
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._over = False

    def run(self, jobs: Sequence[Job]) -> Iterator[Done]:
        """Jobs as they end, begun in their order. Whatever ends this early ends the children too."""
        pool = ThreadPoolExecutor(max_workers=self._at_once)
        try:
            for future in as_completed([pool.submit(self._one, job) for job in jobs]):
                yield future.result()
        finally:
            self._over = True
            with self._lock:
                for child in self._running:
                    _end(child)
            pool.shutdown(wait=True, cancel_futures=True)

    def _one(self, job: Job) -> Done:
        folder = self._folder / job.name
        log = folder / "log.txt"
        left = min(job.seconds, self._deadline - time.monotonic())
        if left <= 0 or self._over:
            outcome = Outcome(
                verdict=Verdict.INCONCLUSIVE, told="not begun: the time of the whole run is spent"
            )
            return Done(job=job, outcome=outcome, seconds=0.0, log=log)
        folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        with log.open("wb") as file:
            child = subprocess.Popen(
                job.command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **job.environment},
                start_new_session=True,  # its own children end with it
            )
        with self._lock:
            self._running.add(child)
            if self._over:
                _end(child)
        code = self._wait(child, left)
        ended = Ended(
            code=code,
            out=log.read_text(encoding="utf-8", errors="replace"),
            seconds=time.monotonic() - started,
            folder=folder,
        )
        outcome = _late(job, left) if code is None else job.judge(ended)
        return Done(job=job, outcome=outcome, seconds=ended.seconds, log=log)

    def _wait(self, child: subprocess.Popen[bytes], seconds: float) -> int | None:
        try:
            return child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(child)
            return None
        finally:
            with self._lock:
                self._running.discard(child)


def _late(job: Job, left: float) -> Outcome:
    """A job has its own time; where less of the whole run's was left, it did nothing wrong."""
    if left < job.seconds:
        return Outcome(verdict=Verdict.INCONCLUSIVE, told="cut off: the time of the whole run is spent")
    told = f"did not end within {left:.0f} s: it hangs, or is far too slow"
    return Outcome(verdict=Verdict.FAIL, told=told)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child and its own children: politely, then not."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, None)):
        try:
            os.killpg(child.pid, number)
            child.wait(timeout=patience)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return
