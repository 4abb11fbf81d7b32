"""What ``compare``, ``calibrate`` and ``gate`` share: the design asked for, calibrations, how answers are shown."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from harness.bench.stats.calibrate import Calibration
from harness.bench.stats.design import Design
from harness.bench.stats.fingerprint import differences
from harness.bench.stats.gate import GateReport
from harness.bench.stats.judge import worst
from harness.bench.stats.of_result import GATED
from harness.bench.stats.run import Run
from harness.bench.stats.summary import as_json
from harness.bench.stats.table import table
from harness.errors import UsageError

Answer = TypeVar("Answer")


def design_of(args: argparse.Namespace, cells: int) -> Design:
    """Cells share alpha, so that more of them raise no more false alarms."""
    design = Design(effects=dict(GATED) | dict(args.effect), trim=args.trim)
    return replace(design, alpha=design.alpha / cells)


def calibration_of(path: Path | None, run: Run, across: Sequence[str] = ()) -> Calibration | None:
    """Of a folder the one that fits; a file is taken as it is."""
    if path is None:
        return None
    if not path.is_dir():
        return Calibration.load(path)
    files = sorted(path.glob("*.json"))
    found = [Calibration.load(file) for file in files]
    for one in found:
        if not differences(one.fingerprint, run.fingerprint, across):
            return one
    raise UsageError(
        f"{path}: none of its {len(files)} calibrations is of the setting of run {run.id}: {dict(run.fingerprint)}",
        hint=f"specharness calibrate RUN RUN RUN RUN --out {path}",
    )


def named(what: str, asked: Callable[..., Answer], *values: Any, **more: Any) -> Answer:
    """The same answer; a refusal says which files or cell it is about."""
    try:
        return asked(*values, **more)
    except UsageError as error:
        raise type(error)(f"{what}: {error.args[0]}", hint=error.hint) from None


def show(console: Console, name: str, report: GateReport, *, everything: bool = False) -> None:
    """A table, what was left out, and the call."""
    if report.results:
        console.print(table(report, f"{name}, against {report.against}", everything=everything))
    for line in [*report.refused, *(f"another setting: {one}" for one in report.differs)]:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    console.print(Text(f"{name}: {report.call.value}. {report.why}"), soft_wrap=True)


def summary_of(console: Console, reports: Mapping[str, GateReport]) -> dict[str, Any]:
    """The worst call, every cell's answer, and the exit code."""
    call = worst(report.call for report in reports.values())
    if len(reports) > 1:
        console.print(f"all cells: {call.value}", highlight=False)
    return {
        "call": call.value,
        "cells": {name: as_json(report) for name, report in reports.items()},
        "exit": call.exit_code,
    }


def require_writable(*paths: Path | None) -> None:
    """UsageError where a file that the user named could not be written in the end: known before all the work."""
    for path in filter(None, paths):
        there = path.exists()
        written(path, "", appends=True)
        if not there:
            path.unlink(missing_ok=True)


def written(path: Path, text: str, *, appends: bool = False) -> None:
    """Write a file that the user named; UsageError where that cannot be."""
    try:
        with path.open("a" if appends else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        hint = f"mkdir -p {shlex.quote(str(path.parent))}, or name" if not path.parent.exists() else "name"
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}", hint=f"{hint} a file you may write"
        ) from None
