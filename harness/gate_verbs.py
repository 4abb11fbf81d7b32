"""What the verbs ``compare``, ``calibrate`` and ``gate`` do once their arguments are known."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.bench.history.history import History
from harness.bench.history.results import Found, read_all
from harness.bench.stats.calibrate import Calibration
from harness.bench.stats.calibrate import calibrate as floors_of
from harness.bench.stats.compare import compare as compared
from harness.bench.stats.design import Design
from harness.bench.stats.fingerprint import differences, identity
from harness.bench.stats.gate import GateReport
from harness.bench.stats.gate import gate as gated
from harness.bench.stats.judge import worst
from harness.bench.stats.of_result import GATED
from harness.bench.stats.run import Run
from harness.bench.stats.states import Acknowledgement, Change
from harness.bench.stats.summary import as_json, junit, markdown
from harness.bench.stats.table import table
from harness.console import console_of
from harness.errors import UsageError
from harness.history_verbs import acknowledged, changes_of, opened, words

Answer = TypeVar("Answer")


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Runs A against runs B, cell by cell; refuses runs of different settings."""
    console = console_of(args)
    cells = _pairs(args, *(read_all([one, *more]) for one, more in _sides(args)))
    design = _design(args, len(cells))
    reports = {}
    for name, (left, right) in cells.items():
        runs = [one.run for one in [*left, *right]]
        calibration = _calibration(args.calibration, runs[0], args.across)
        found = _named(
            f"{left[0].path} and {right[0].path}",
            compared,
            [one.run for one in left],
            [one.run for one in right],
            design,
            calibration,
            across=args.across,
        )
        reports[name] = GateReport.of(found)
        _show(console, name, reports[name])
    return {"verb": "compare", **_summary(console, reports)}


def calibrate(args: argparse.Namespace) -> dict[str, Any]:
    """Noise floors of every cell, one file each."""
    console = console_of(args)
    cells = read_all(args.runs)
    design = _design(args, len(cells))
    floors = {
        name: _named(name, floors_of, [one.run for one in runs], design) for name, runs in cells.items()
    }
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """Tonight's runs of one setting, and what was made of them."""

    report: GateReport
    changes: tuple[Change, ...]


def gate(args: argparse.Namespace) -> dict[str, Any]:
    """Tonight against past nights."""
    console = console_of(args)
    known = acknowledged(args)
    given = read_all(args.tonight, series=args.series)
    with opened(args.history) as history:
        past = history.runs(series=args.series)
        tonight = {name: [one.run for one in runs] for name, runs in given.items()} or _newest(past, args)
        design = _design(args, len(tonight))
        judged = {
            name: _named(name, _judge, history, runs, past, design, args, known)
            for name, runs in tonight.items()
        }
    reports = {name: one.report for name, one in judged.items()}
    for name, one in judged.items():
        _show(console, name, one.report)
        for change in one.changes:
            console.print(f"  {words(change)}", highlight=False, soft_wrap=True)
    summary = _summary(console, reports)
    if args.markdown:
        text = "\n".join(f"# {name}\n\n{markdown(one.report, one.changes)}" for name, one in judged.items())
        _write(args.markdown, text, appends=True)
    if args.junit:
        _write(args.junit, _suites(reports))
    return {
        "verb": "gate",
        **summary,
        "changes": {name: [words(one) for one in found.changes] for name, found in judged.items()},
    }


def _judge(
    history: History,
    tonight: Sequence[Run],
    past: Sequence[Run],
    design: Design,
    args: argparse.Namespace,
    known: Sequence[Acknowledgement],
) -> _Judged:
    setting = tonight[0].fingerprint
    fitting = [run for run in past if not differences(setting, run.fingerprint)]
    # Where none fits, the nearest setting of another night says what differs; tonight's other cells say nothing.
    night = tonight[0].time.date()
    nearest = min(
        (run for run in past if run.time.date() < night),
        key=lambda run: len(differences(setting, run.fingerprint)),
        default=None,
    )
    nights = fitting or ([nearest] if nearest else [])
    report = gated(tonight, nights, design, _calibration(args.calibration, tonight[0]))
    found = changes_of(history, setting, args.series, list(design.effects), known, design.effects)
    return _Judged(report=report, changes=found)


def _newest(past: Sequence[Run], args: argparse.Namespace) -> dict[str, list[Run]]:
    """The runs of the newest night by setting."""
    if not past:
        raise UsageError(
            f"history {args.history}: saw no run of series {args.series!r}",
            hint=f"specharness history list {args.history}",
        )
    night, found = past[-1].time.date(), dict[str, list[Run]]()
    for run in past:
        if run.time.date() == night:
            found.setdefault(identity(run.fingerprint), []).append(run)
    return found


def _sides(args: argparse.Namespace) -> tuple[tuple[Path, list[Path]], tuple[Path, list[Path]]]:
    return (args.baseline, args.more_a), (args.candidate, args.more_b)


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


def _design(args: argparse.Namespace, cells: int) -> Design:
    """Cells share alpha, so that more of them raise no more false alarms."""
    design = Design(effects=dict(GATED) | dict(args.effect), trim=args.trim)
    return replace(design, alpha=design.alpha / cells)


def _calibration(path: Path | None, run: Run, across: Sequence[str] = ()) -> Calibration | None:
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


def _named(what: str, asked: Callable[..., Answer], *values: Any, **more: Any) -> Answer:
    """The same answer; a refusal says which files or cell it is about."""
    try:
        return asked(*values, **more)
    except UsageError as error:
        raise type(error)(f"{what}: {error.args[0]}", hint=error.hint) from None


def _show(console: Console, name: str, report: GateReport) -> None:
    if report.results:
        console.print(table(report, f"{name}, against {report.against}"))
    for line in [*report.refused, *(f"another setting: {one}" for one in report.differs)]:
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    console.print(Text(f"{name}: {report.call.value}. {report.why}"), soft_wrap=True)


def _summary(console: Console, reports: Mapping[str, GateReport]) -> dict[str, Any]:
    call = worst(report.call for report in reports.values())
    if len(reports) > 1:
        console.print(f"all cells: {call.value}", highlight=False)
    return {
        "call": call.value,
        "cells": {name: as_json(report) for name, report in reports.items()},
        "exit": call.exit_code,
    }


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


def _suites(reports: Mapping[str, GateReport]) -> str:
    """One suite per cell. Changes of level are not in it, as they do not decide the exit code either."""
    root = ElementTree.Element("testsuites")
    for name, report in reports.items():
        suite = ElementTree.fromstring(junit(report))
        suite.set("name", f"benchmark gate: {name}")
        root.append(suite)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _write(path: Path, text: str, *, appends: bool = False) -> None:
    try:
        with path.open("a" if appends else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}", hint="name a file you may write"
        ) from None
