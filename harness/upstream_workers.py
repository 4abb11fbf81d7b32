"""The cells of the table by several processes: they fill the run directory, and ``judge_releases`` finds all there.

A suspect holds an engine, an oracle and child processes, so none travels between processes. What travels is how to
make them; a worker makes its own once, and is asked for one suspect of one release at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from harness.errors import EngineError
from harness.rundir import RunDir
from harness.scenario import Scenario
from harness.suspects import MetadataSuspect, Suspect, Tell
from harness.upstream_table import ask, ask_small, small_name

Make = Callable[[Tell], Sequence[Suspect]]
"""How a process makes its suspects; it must pickle, and say the same names everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One entry of the run directory: a suspect of a release, on the scenarios or on small batches."""

    suspect: str
    release: str
    small: bool = False

    @property
    def name(self) -> str:
        """How the run directory calls it."""
        return small_name(self.suspect) if self.small else self.suspect


def judge_ahead(
    make: Make,
    releases: Sequence[str],
    scenarios: Sequence[Scenario],
    run_dir: RunDir,
    tell: Tell,
    workers: int,
) -> None:
    """Record everything that the table of these suspects lacks, by up to ``workers`` processes at a time.

    Raises:
        EngineError: a worker died; what was recorded until then stays.
    """
    tasks = [t for t in _tasks(make(tell), releases) if run_dir.cell(t.name, t.release) is None]
    if not tasks:
        return
    tell(f"{len(tasks)} entries to judge, {min(workers, len(tasks))} at a time")
    with ProcessPoolExecutor(
        max_workers=min(workers, len(tasks)),
        mp_context=get_context("spawn"),  # forked threads of torch and a GPU's context would be broken
        initializer=_prepare,
        initargs=(make, tuple(scenarios)),
    ) as pool:
        waiting = {pool.submit(_work, task): task for task in tasks}
        try:
            for done in as_completed(waiting):
                task = waiting[done]
                run_dir.record(task.name, task.release, done.result())
                tell(f"{task.release}  {task.name}: judged")
        except BrokenProcessPool:
            raise EngineError(
                "a worker process died: out of memory, or killed", hint=f"--resume {run_dir.path}"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _tasks(suspects: Sequence[Suspect], releases: Sequence[str]) -> list[Task]:
    """What takes longest comes first: suspects that run kernels, then small batches, then steps."""
    builders = [suspect.name for suspect in suspects if isinstance(suspect, MetadataSuspect)]
    kernels = [suspect.name for suspect in suspects if not isinstance(suspect, MetadataSuspect)]
    return [
        *(Task(suspect=name, release=release) for release in releases for name in kernels),
        *(Task(suspect=name, release=release, small=True) for release in releases for name in builders),
        *(Task(suspect=name, release=release) for release in releases for name in builders),
    ]


_mine: dict[str, Suspect] = {}
_scenarios: tuple[Scenario, ...] = ()


def _prepare(make: Make, scenarios: tuple[Scenario, ...]) -> None:
    """In a worker, before its first task."""
    global _scenarios
    _mine.update({suspect.name: suspect for suspect in make(_silent)})
    _scenarios = scenarios


def _work(task: Task) -> dict[str, Any]:
    """In a worker."""
    suspect = _mine[task.suspect]
    if task.small:
        assert isinstance(suspect, MetadataSuspect)
        return ask_small(suspect, task.release)
    return ask(suspect, task.release, _scenarios)


def _silent(line: str) -> None:
    """Several voices at once help nobody; the parent says what is done."""
