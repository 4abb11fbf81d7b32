"""What the verbs ``compare`` and ``calibrate`` do once their arguments are known."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.bench.history.results import Found, read_all
from harness.bench.importers.micro import effects_of, is_micro
from harness.bench.importers.runs import defined_by_both, is_imported, untold
from harness.bench.stats.calibrate import Calibration
from harness.bench.stats.calibrate import calibrate as floors_of
from harness.bench.stats.compare import compare as compared
from harness.bench.stats.design import Design
from harness.bench.stats.gate import GateReport
from harness.bench.stats.run import Run
from harness.console import console_of
from harness.errors import UsageError
from harness.judging import calibration_of, design_of, named, require_writable, show, summary_of, written
from harness.report.bench.verdicts import comparison


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Runs A against runs B, cell by cell; refuses runs of different settings."""
    require_writable(args.page)
    console = console_of(args)
    cells = _pairs(args, *(read_all([one, *more], imports=True) for one, more in _sides(args)))
    design = design_of(args, len(cells))
    for line in _notes(cells):
        console.print(line, highlight=False, soft_wrap=True)
    reports = {}
    for name, (left, right) in cells.items():
        runs = [one.run for one in [*left, *right]]
        calibration = calibration_of(args.calibration, runs[0], args.across)
        gated = design
        if is_micro(runs[0]):
            gated = replace(design, effects=effects_of(runs[0]) | dict(args.effect))
        if any(is_imported(run) for run in runs):
            gated = _told(console, name, [one.run for one in left], [one.run for one in right], design)
        found = named(
            f"{left[0].path} and {right[0].path}",
            compared,
            [one.run for one in left],
            [one.run for one in right],
            gated,
            calibration,
            across=args.across,
        )
        reports[name] = GateReport.of(found)
        show(console, name, reports[name], everything=args.all)
    summary = summary_of(console, reports)
    if args.page:
        written(args.page, comparison(f"{args.candidate.name} against {args.baseline.name}", reports))
        console.print(f"report: {args.page}", highlight=False, soft_wrap=True)
    return {"verb": "compare", **summary}


def calibrate(args: argparse.Namespace) -> dict[str, Any]:
    """Noise floors of every cell, one file each."""
    console = console_of(args)
    cells = read_all(args.runs)
    design = design_of(args, len(cells))
    floors = {name: named(name, floors_of, [one.run for one in runs], design) for name, runs in cells.items()}
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{args.out}: cannot be made: {error.strerror}", hint="pass --out FOLDER with one you may write"
        ) from None
    for name, found in floors.items():
        path = args.out / f"{name}.json"
        found.save(path)
        console.print(_floors(name, found, design))
        for metric in design.effects:
            if metric in found.skipped:
                console.print(f"{metric}: {found.skipped[metric]}", highlight=False, soft_wrap=True)
        console.print(f"written: {path}", highlight=False, soft_wrap=True)
    return {
        "verb": "calibrate",
        "files": {name: str(args.out / f"{name}.json") for name in floors},
        "cells": {
            name: {key: asdict(one) for key, one in found.floors.items()} for name, found in floors.items()
        },
        "exit": 0,
    }


def _sides(args: argparse.Namespace) -> tuple[tuple[Path, list[Path]], tuple[Path, list[Path]]]:
    return (args.baseline, args.more_a), (args.candidate, args.more_b)


def _notes(cells: Mapping[str, tuple[Sequence[Found], Sequence[Found]]]) -> list[str]:
    """How the words of other tools are meant, each once."""
    found = [one for sides in cells.values() for runs in sides for one in runs if is_imported(one.run)]
    lines = [f"{one.run.fingerprint['tool']}: {note}" for one in found for note in one.notes]
    return [*dict.fromkeys(lines), *(["of another tool's run nobody checked the answers"] if found else [])]


def _told(console: Console, name: str, left: Sequence[Run], right: Sequence[Run], design: Design) -> Design:
    """The design with the metrics that both tools define; what is left out or not known is said."""
    effects, reasons = named(name, defined_by_both, left, right, design.effects)
    lines = [*reasons, *(f"nobody says whether the {key} agrees" for key in untold(left[0], right[0]))]
    for line in lines:
        console.print(f"{name}: {line}", highlight=False, soft_wrap=True)
    return replace(design, effects=effects)


def _pairs(
    args: argparse.Namespace, left: Mapping[str, Sequence[Found]], right: Mapping[str, Sequence[Found]]
) -> dict[str, tuple[Sequence[Found], Sequence[Found]]]:
    """Cells of the same name; one cell on either side is a pair whatever the names are."""
    files = {found.run.id: found.path for runs in left.values() for found in runs}
    for again in (found for runs in right.values() for found in runs):
        if again.run.id in files:
            raise UsageError(
                f"{again.path} of B: is the same run as {files[again.run.id]} of A, expected different ones",
                hint="measure the candidate, or name its runs",
            )
    if args.cell is not None:
        for path, side in ((args.baseline, left), (args.candidate, right)):
            if args.cell not in side:
                raise UsageError(
                    f"{path}: saw cells {', '.join(side)}, and no {args.cell!r}", hint=f"ls {path}"
                )
        return {args.cell: (left[args.cell], right[args.cell])}
    if len(left) == len(right) == 1:
        (one, runs), (other, others) = next(iter(left.items())), next(iter(right.items()))
        return {one if one == other else f"{one} | {other}": (runs, others)}
    if set(left) != set(right):
        both = sorted(set(left) & set(right))
        raise UsageError(
            f"saw cells {', '.join(left)} in A and {', '.join(right)} in B, expected the same",
            hint=f"--cell {both[0]}" if both else "compare runs of one plan, or two result files",
        )
    return {name: (left[name], right[name]) for name in left}


def _floors(name: str, found: Calibration, design: Design) -> Table:
    shown = Table(title=Text(f"{name}: noise from run to run"), title_justify="left")
    for column in ("metric", "runs", "sd", "at most", "smallest change seen", "drift"):
        shown.add_column(column)
    for metric, floor in found.floors.items():
        if metric in design.effects:
            numbers = [f"{number:.2%}" for number in (floor.sd, floor.sd_high, floor.smallest)]
            drift = f"drifts (p = {floor.drift:.2g})" if floor.drifts else "none"
            shown.add_row(metric, str(floor.runs), *numbers, drift)
    return shown
