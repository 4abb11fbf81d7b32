"""Many tasks on many processes, here or on a Ray cluster: the same tasks give the same results anywhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Literal, TypeVar

from harness.errors import EngineError, UsageError

Task = TypeVar("Task")
Result = TypeVar("Result")
Where = Literal["processes", "ray"]
PACKAGE = Path(__file__).resolve().parents[1]
"""What a machine of the cluster gets, beside its own copy of what this package needs."""
PASSED_ON = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TRITON_INTERPRET")
"""What the command line decides before any import, and a worker elsewhere must be told."""


def unordered(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    workers: int,
    on: Where = "processes",
    fresh: bool = False,
) -> Iterator[Result]:
    """The results of ``function`` (of a module, so that it can travel) as they come; a task is taken when a worker
    is free, so ``tasks`` may end for reasons of its own. ``fresh``: a worker does one task.

    Raises:
        UsageError: Ray is asked for and not installed.
        EngineError: a worker died.
    """
    return (_on_ray if on == "ray" else _on_processes)(function, iter(tasks), workers, fresh)


def _on_processes(
    function: Callable[[Task], Result], tasks: Iterator[Task], workers: int, fresh: bool
) -> Iterator[Result]:
    with ProcessPoolExecutor(
        max_workers=workers,
        mp_context=get_context("spawn"),  # forked threads of torch and a GPU's context would be broken
        initializer=_end_with_the_parent,
        max_tasks_per_child=1 if fresh else None,
    ) as pool:
        try:
            waiting = {pool.submit(function, task) for task in islice(tasks, workers)}
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                waiting |= {pool.submit(function, task) for task in islice(tasks, len(done))}
        except (KeyboardInterrupt, GeneratorExit):
            for child in active_children():  # a job may take minutes, and nobody waits for it any more
                child.terminate()
            raise
        except BrokenProcessPool:
            raise EngineError(
                "a worker process died: out of memory, or killed", hint="--resume RUN_DIR goes on"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_the_parent() -> None:
    """An interruption from the keyboard reaches all: a worker ends at once, without a traceback of its own."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _on_ray(
    function: Callable[[Task], Result], tasks: Iterator[Task], workers: int, fresh: bool
) -> Iterator[Result]:
    """The cluster that RAY_ADDRESS names, or one of this machine; a worker for every GPU where there are GPUs."""
    try:
        import ray
    except ImportError:
        raise UsageError("ON=ray needs Ray", hint="pip install 'specharness[cluster]'") from None

    told = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    ray.init(
        num_cpus=None if os.environ.get("RAY_ADDRESS") else workers,
        runtime_env={"py_modules": [str(PACKAGE)], "env_vars": told},
        log_to_driver=False,
        include_dashboard=False,
    )
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        made = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0)(_Worker)
        idle: list[Any] = [made.remote() for _ in range(gpus or workers)]
        busy: dict[Any, Any] = {}
        while True:
            for task in islice(tasks, len(idle)):
                worker = idle.pop()
                busy[worker.work.remote(function, task)] = worker
            if not busy:
                return
            done, _ = ray.wait(list(busy))
            for reference in done:
                worker = busy.pop(reference)
                yield ray.get(reference)
                if fresh:
                    ray.kill(worker)
                idle.append(made.remote() if fresh else worker)
    finally:
        ray.shutdown()


class _Worker:
    """A process of the cluster: it keeps what a task made for the next one."""

    def work(self, function: Callable[[Task], Result], task: Task) -> Result:
        """One task."""
        return function(task)
