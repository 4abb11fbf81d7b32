"""The server of a cell: the user's, or ours for as long as it is measured; and the end of one that a kill left."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.bench.plan import Plan
from harness.bench.served import Served, first_model
from harness.bench_asked import server_arguments
from harness.live.own_server import own_server
from harness.rundir import RunDir


@contextmanager
def serving(
    args: argparse.Namespace, plan: Plan, run_dir: RunDir, speculation: str, key: str | None
) -> Iterator[Served]:
    """What is measured; ``run.json`` says where it is before anything is sent."""
    if args.base_url:
        served = Served(url=args.base_url, model=args.model or first_model(args.base_url, key), api_key=key)
        _remember(run_dir, speculation, served, None)
        yield served
        return
    with own(run_dir, speculation, server_arguments(args, plan, speculation)) as served:
        yield served


@contextmanager
def own(run_dir: RunDir, name: str, arguments: Sequence[str]) -> Iterator[Served]:
    """The embedded server with these arguments; ``name``: of its log, and in ``run.json``."""
    _end_orphan(run_dir, name)
    with own_server(arguments, run_dir.path / f"server-{name}.log") as server:
        served = Served(url=server.url, model=server.model)
        _remember(run_dir, name, served, server.process.pid)
        yield served


def remembered(run_dir: RunDir, speculation: str) -> Served | None:
    """The server that cells were measured on, which may be gone; ``None``: none of them began."""
    told = run_dir.run.get("served", {}).get(speculation)
    return Served(url=told["url"], model=told["model"]) if told else None


def _remember(run_dir: RunDir, speculation: str, served: Served, pid: int | None) -> None:
    told = {"url": served.url, "model": served.model, "pid": pid}
    run_dir.run.setdefault("served", {})[speculation] = told
    run_dir.save()


def _end_orphan(run_dir: RunDir, speculation: str) -> None:
    """A benchmark that was killed could not end its server, which would run beside the one that follows it."""
    told = run_dir.run.get("served", {}).get(speculation)
    if not told or not told.get("pid"):
        return
    log = run_dir.path / f"server-{speculation}.log"
    if _writes_to(told["pid"], log):
        with suppress(ProcessLookupError):
            os.kill(told["pid"], signal.SIGKILL)


def _writes_to(pid: int, log: Path) -> bool:
    """Whether a process is that server: its output goes to the log of this run. Process numbers are used again."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/fd/1").resolve(strict=True) == log.resolve(strict=True)
    return False
