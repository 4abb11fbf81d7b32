"""Scenarios by the hundred: jobs for workers, and a log that an interrupted campaign goes on from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.codec import decode, encode
from harness.explore.farm import Where, unordered
from harness.explore.generate import scenario
from harness.explore.workbench import Record, Setting, Workbench, workbench
from harness.scenario import Scenario

Records = tuple[Record, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One variant on ``given`` scenarios, all of them, and then on drawn ones until it was killed ``enough`` times."""

    setting: Setting
    variant: str
    seed: int
    generated: range  # numbers of generated scenarios
    given: tuple[Scenario, ...] = ()
    enough: int | None = None  # None: try everything

    @property
    def key(self) -> str:
        """How the log calls it."""
        return f"{self.variant} {self.generated.start}-{self.generated.stop}"


def work(job: Job) -> tuple[str, Records]:
    """In a worker: the job's key and its records, in the order of its scenarios."""
    bench = workbench(job.setting)
    records: list[Record] = []
    for drawn, one in _scenarios(job, bench):
        killed = sum(record.killed for record in records)
        if lost_device(job.setting.device) or (drawn and job.enough is not None and killed >= job.enough):
            break
        records.append(bench.examine(one, job.variant))
    return job.key, tuple(records)


def _scenarios(job: Job, bench: Workbench) -> Iterator[tuple[bool, Scenario]]:
    """Whether it was drawn, and the scenario."""
    yield from ((False, given) for given in job.given)
    yield from ((True, scenario(bench.words, job.seed, index)) for index in job.generated)


def lost_device(device: str) -> bool:
    """Whether a fault has killed the GPU's context, so that nothing more can be run in this process."""
    if device != "cuda":
        return False
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:  # the assertion that failed on the device, told again and again
        return True
    return False


class Log:
    """The records of finished jobs, one line each, on disk as soon as they are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done: dict[str, Records] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                self._read(line)

    def add(self, key: str, records: Records) -> None:
        """Keep what a job found."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"job": key, "records": encode(records)}) + "\n")
        self.done[key] = records

    def _read(self, line: str) -> None:
        try:
            data = json.loads(line)
        except ValueError:
            return  # the run was killed while it wrote this line
        self.done[data["job"]] = decode(Records, data["records"], str(self._path))


def campaign(
    jobs: Iterable[Job], log: Log, workers: int, on: Where = "processes", *, fresh: bool = False
) -> Iterator[tuple[str, Records]]:
    """The key and records of every job: those of the log first, then the others as they come.

    ``fresh``: each in a process of its own, since a fault may kill a GPU's context for whoever comes next.
    """
    known = list(log.done.items())
    yield from known
    skip = {key for key, _ in known}
    due = (job for job in jobs if job.key not in skip)
    for key, records in unordered(work, due, workers, on, fresh):
        log.add(key, records)
        yield key, records
