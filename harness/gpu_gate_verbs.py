"""What the verbs ``gpu-gate`` and ``sanitize`` do once their arguments are known."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.cases import find_root
from harness.console import console_of
from harness.doctor import find_gpus
from harness.errors import Unsupported, UsageError
from harness.gpu import told
from harness.gpu.jobs import Done, Job, Runner
from harness.gpu.plan import USUAL, plan
from harness.report.terminal import verdict_text
from harness.rundir import RunDir
from harness.verdict import Verdict


def gate(args: argparse.Namespace) -> dict[str, Any]:
    """Everything that means something on a GPU, beside each other."""
    return _run(args, "gpu-gate", [*(args.only or USUAL), *(args.add or ())])


def sanitize(args: argparse.Namespace) -> dict[str, Any]:
    """The kernels under memcheck and racecheck."""
    args.batches = 0
    return _run(args, "sanitize", ["sanitize"])


def _run(args: argparse.Namespace, verb: str, parts: Sequence[str]) -> dict[str, Any]:
    machine = _machine()
    console = console_of(args)
    root = (args.cases or find_root()).resolve()
    started = time.monotonic()
    run = {"name": verb, "seed": args.seed, "parts": list(parts), "machine": machine, "jobs": {}}
    run_dir = RunDir.create(
        args.reports or root / "reports",
        verb,
        {**run, "started": datetime.now().isoformat(timespec="seconds")},
    )
    jobs = plan(parts, root, run_dir.path.resolve(), args.seed, args.batches)
    console.print(f"{machine}: {len(jobs)} jobs, {args.workers} at a time", highlight=False)
    done = _all(jobs, Runner(run_dir.path.resolve(), args.workers, started + args.seconds), run_dir, console)
    seconds = time.monotonic() - started
    _write(args, run_dir, done, seconds, machine)
    for line in told.screen(done, seconds):
        console.print(line, soft_wrap=not hasattr(line, "columns"), highlight=False)
    console.print(f"report: {run_dir.path}", soft_wrap=True, highlight=False)
    verdict = told.verdict_of(done)
    return {
        "verb": verb,
        "verdict": verdict.value,
        "seconds": round(seconds, 1),
        "jobs": len(done),
        "verdicts": {v.value: n for v in Verdict if (n := sum(one.outcome.verdict is v for one in done))},
        "open": {one.job.name: one.outcome.told for one in told.notable(done)},
        "run_dir": str(run_dir.path),
        "exit": verdict.exit_code,
    }


def _machine() -> str:
    """The GPU by name; Unsupported without one."""
    gpus, driver = find_gpus()
    if not gpus:
        raise Unsupported(
            f"this gate judges the machine's GPU, and there is none here: {driver}",
            hint="make test is the gate of a machine without one; make doctor says what is here",
        )
    import torch

    if not torch.cuda.is_available():
        raise Unsupported(
            f"{gpus[0]} is here, but torch {torch.__version__} cannot use it",
            hint="install a CUDA build of torch; make doctor says what is here",
        )
    return f"{gpus[0].split(',')[0]}, {driver}"


def _all(jobs: Sequence[Job], runner: Runner, run_dir: RunDir, console: Console) -> list[Done]:
    """Every job, told and recorded as it ends."""
    done: list[Done] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=console.quiet) as bar:
            task = bar.add_task("gate", total=len(jobs))
            for one in runner.run(jobs):
                done.append(one)
                bar.advance(task)
                run_dir.run["jobs"][one.job.name] = _record(one)
                run_dir.save()
                if one.outcome.verdict is not Verdict.PASS:
                    console.print(
                        verdict_text(one.outcome.verdict),
                        f" {one.job.name}: {one.outcome.told}",
                        soft_wrap=True,
                    )
    except KeyboardInterrupt:
        print(f"interrupted: {len(done)} of {len(jobs)} jobs are in {run_dir.path}", file=sys.stderr)
        raise
    return done


def _record(one: Done) -> dict[str, Any]:
    outcome = one.outcome
    return {
        "part": one.job.part,
        "verdict": outcome.verdict.value,
        "told": outcome.told,
        "counts": dict(outcome.counts),
        "places": [asdict(place) for place in outcome.places],
        "seconds": round(one.seconds, 1),
        "again": one.job.again,
        "command": list(one.job.command),
    }


def _write(
    args: argparse.Namespace, run_dir: RunDir, done: Sequence[Done], seconds: float, machine: str
) -> None:
    """The same for machines: into the run directory, and where it was asked for."""
    run_dir.run["seconds"] = round(seconds, 1)
    run_dir.run["verdict"] = told.verdict_of(done).value
    run_dir.save()
    page, report = told.markdown(done, seconds, machine), told.junit(done)
    run_dir.write_text("summary.md", page)
    run_dir.write_text("junit.xml", report)
    if args.junit:
        _keep(args.junit, report, "w")
    if summary := args.markdown or os.environ.get("GITHUB_STEP_SUMMARY"):
        _keep(Path(summary), page, "a")
    if os.environ.get("GITHUB_ACTIONS"):
        for line in told.workflow_commands(done):
            print(line, file=sys.stderr)


def _keep(path: Path, text: str, mode: str) -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}", hint="name a file you may write"
        ) from None
