"""What the verb ``history`` does once its arguments are known: add, list, changes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from harness.bench.history.dataset import Dataset
from harness.bench.history.filing import require_commits
from harness.bench.history.history import History
from harness.bench.history.results import read_all
from harness.bench.importers.micro import has_micro
from harness.bench.stats.fingerprint import identity
from harness.bench.stats.of_result import GATED
from harness.bench.stats.states import Acknowledgement, Change, State, load_acknowledgements, unmatched
from harness.bench.stats.states import changes as changes_in
from harness.console import console_of
from harness.errors import UsageError

SHOWN = ("ttft.median_ms", "tpot.mean_ms", "throughput.output")


def add(args: argparse.Namespace) -> dict[str, Any]:
    """Append runs; all files are read before the first is added."""
    console = console_of(args)
    cells = read_all(args.runs, commit=args.commit, series=args.series)
    found = [one for runs in cells.values() for one in runs]
    require_commits(found)
    dataset, added = Dataset(args.url), {}
    for one in found:
        added[str(one.path)] = dataset.append(one.run)
        console.print(f"{one.cell} {one.run.id}: {one.run.validity}", highlight=False, soft_wrap=True)
    return {"verb": "history add", "added": added, "exit": 0}


def list_runs(args: argparse.Namespace) -> dict[str, Any]:
    """Runs and settings that a history holds."""
    console = console_of(args)
    with opened(args.url) as history:
        runs = history.runs(commit=args.commit, series=args.series, limit=args.limit)
        settings = history.settings()
    table = Table()
    for column in ("time (UTC)", "run", "commit", "series", "setting", *SHOWN, "may be compared"):
        table.add_column(column)
    for run in runs:
        values = [run.values.get(name) for name in SHOWN]
        numbers = [
            "-" if one is None or one.value is None else f"{one.value:.4g} {one.unit}" for one in values
        ]
        words = [f"{run.time:%Y-%m-%d %H:%M}", run.id, run.commit[:10], run.series, identity(run.fingerprint)]
        table.add_row(*(Text(word) for word in (*words, *numbers, str(run.validity))))
    console.print(table)
    for one in settings:
        told = ", ".join(f"{key}: {value}" for key, value in one.fingerprint.items())
        console.print(f"{one.id}, {one.runs} runs: {told}", highlight=False, soft_wrap=True)
    return {
        "verb": "history list",
        "runs": [
            {
                "run": run.id,
                "time": run.time.isoformat(),
                "commit": run.commit,
                "series": run.series,
                "setting": identity(run.fingerprint),
                "valid": run.validity.comparable,
            }
            for run in runs
        ],
        "settings": {one.id: dict(one.fingerprint) for one in settings},
        "exit": 0,
    }


def changes(args: argparse.Namespace) -> dict[str, Any]:
    """Changes of level of every setting; red where one for the worse is new."""
    console, known = console_of(args), acknowledged(args)
    found: dict[str, tuple[Change, ...]] = {}
    with opened(args.url) as history:
        seen = {name for run in history.runs(series=args.series) for name in run.values}
        metrics = args.metric or [*GATED, *sorted(has_micro(seen))]
        for setting in history.settings():
            found[setting.id] = changes_of(history, setting.fingerprint, args.series, metrics, known)
    for name in args.metric or ():
        if name not in seen:
            raise UsageError(
                f"--metric {name}: no run of series {args.series!r} has it; some that they have: "
                f"{', '.join(sorted(seen)[:8]) or 'none'}",
                hint=f"specharness history list {args.url}",
            )
    flat = [change for one in found.values() for change in one]
    outdated = [one for one in unmatched(known, flat) if args.metric is None or one.metric in metrics]
    for setting_id, here in found.items():
        for change in here:
            console.print(f"{setting_id}: {words(change)}", highlight=False, soft_wrap=True)
    for one in outdated:
        told = f"outdated: no change of {one.metric} has {one.commit} among its suspects: {one.reason}"
        console.print(told, highlight=False, soft_wrap=True)
    new = sum(change.state is State.NEW for change in flat)
    console.print(f"{len(flat)} changes, {new} of them new and for the worse", highlight=False)
    return {
        "verb": "history changes",
        "changes": [
            {
                "setting": setting_id,
                "metric": change.metric,
                "state": change.state.value,
                "share": change.point.share,
                "since": change.time.isoformat(),
                "suspects": change.suspects,
                "fixed_by": change.fixed_by,
                "reason": change.reason,
            }
            for setting_id, here in found.items()
            for change in here
        ],
        "outdated": [{"metric": one.metric, "commit": one.commit, "reason": one.reason} for one in outdated],
        "exit": int(new > 0),
    }


def opened(url: str) -> History:
    """A history that has runs: asking one that has none would make an empty one, and a misspelt URL pass."""
    if not Dataset(url).names():
        raise UsageError(
            f"history {url}: holds no runs", hint=f"specharness history add {url} RUN --commit SHA"
        )
    return History(url)


def acknowledged(args: argparse.Namespace) -> tuple[Acknowledgement, ...]:
    """What ``--known`` holds; UsageError where the file is not there."""
    if args.known is None:
        return ()
    if not args.known.is_file():
        raise UsageError(f"{args.known}: there is no such file", hint="see docs/history-and-gate.md")
    return load_acknowledgements(args.known)


def changes_of(
    history: History,
    setting: Mapping[str, str],
    series: str,
    metrics: Sequence[str],
    known: Sequence[Acknowledgement],
    effects: Mapping[str, float] = GATED,
) -> tuple[Change, ...]:
    """Changes of the metrics of one setting; ``effects``: the share that matters, 5 % where none is given."""
    found: list[Change] = []
    for metric in metrics:
        direction, nights = history.nights(metric, fingerprint=setting, series=series)
        if direction is not None:
            found += changes_in(metric, nights, direction, known, effect=effects.get(metric, 0.05))
    return tuple(found)


def words(change: Change) -> str:
    """A change in a line."""
    note = f", fixed by {change.fixed_by}" if change.fixed_by else ""
    note += f" ({change.reason})" if change.reason else ""
    return (
        f"{change.state.value}: {change.metric} {change.point.share:+.1%} since {change.time:%Y-%m-%d}, "
        f"suspects {change.suspects}{note}"
    )
