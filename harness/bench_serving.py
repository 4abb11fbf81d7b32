"""The server of a cell: the user's, or ours for as long as it is measured."""

from __future__ import annotations

import argparse
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.bench.load.lost import ServerLost
from harness.bench.plan import Plan
from harness.bench.served import Served, first_model
from harness.bench_asked import server_arguments
from harness.live.own_server import OwnServer, own_server
from harness.rundir import RunDir

PATIENCE = 1.0
"""Seconds between a connection that is refused and a process that is no more."""


@contextmanager
def serving(
    args: argparse.Namespace, plan: Plan, run_dir: RunDir, speculation: str, key: str | None
) -> Iterator[Served]:
    """What is measured; ``run.json`` says where it is before anything is sent."""
    if args.base_url:
        served = Served(url=args.base_url, model=args.model or first_model(args.base_url, key), api_key=key)
        _remember(run_dir, speculation, served)
        yield served
        return
    with own(run_dir, speculation, server_arguments(args, plan, speculation)) as served:
        yield served


@contextmanager
def own(
    run_dir: RunDir, name: str, arguments: Sequence[str], checkout: Path | None = None
) -> Iterator[Served]:
    """The embedded server, of a ``checkout`` if any, with these arguments; ``name``: of its log and in ``run.json``."""
    with own_server(arguments, run_dir.path / f"server-{name}.log", checkout) as server:
        served = Served(url=server.url, model=server.model)
        _remember(run_dir, name, served)
        try:
            yield served
        except ServerLost as error:
            if error.url != served.url:
                raise
            told = f"{error.args[0]}; {_end_of(server)}"
            raise ServerLost(told, url=error.url, hint=error.hint) from None


def remembered(run_dir: RunDir, speculation: str) -> Served | None:
    """The server that cells were measured on, which may be gone; ``None``: none of them began."""
    told = run_dir.run.get("served", {}).get(speculation)
    return Served(url=told["url"], model=told["model"]) if told else None


def _end_of(server: OwnServer) -> str:
    """How it ended, and where it may have said why."""
    with suppress(subprocess.TimeoutExpired):
        server.process.wait(PATIENCE)
    code = server.process.returncode
    ended = "is still there" if code is None else f"exit code {code}"
    if code is not None and code < 0:
        ended = f"ended by {signal.Signals(-code).name}"
    return f"the process {ended}, its log is {server.log}"


def _remember(run_dir: RunDir, speculation: str, served: Served) -> None:
    told = {"url": served.url, "model": served.model}
    run_dir.run.setdefault("served", {})[speculation] = told
    run_dir.save()
