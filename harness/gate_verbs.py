"""What the verb ``gate`` does once its arguments are known."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from xml.etree import ElementTree

from harness.bench.history.history import History
from harness.bench.history.marks import last_good, marks
from harness.bench.history.results import read_all
from harness.bench.importers.micro import effects_of, is_micro
from harness.bench.stats.compare import Measure
from harness.bench.stats.design import Design
from harness.bench.stats.fingerprint import differences, identity
from harness.bench.stats.gate import GateReport
from harness.bench.stats.gate import gate as gated
from harness.bench.stats.of_result import GATED
from harness.bench.stats.run import Run
from harness.bench.stats.states import Acknowledgement, Change
from harness.bench.stats.summary import junit, markdown
from harness.console import console_of
from harness.errors import UsageError
from harness.gate_measure import Pairs, pairs_of
from harness.history_verbs import acknowledged, changes_of, opened, words
from harness.judging import calibration_of, design_of, named, require_writable, show, summary_of, written


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """Tonight's runs of one setting, and what was made of them."""

    report: GateReport
    changes: tuple[Change, ...]


def gate(args: argparse.Namespace) -> dict[str, Any]:
    """Tonight against past nights; and with ``--measure`` against its baseline, where those leave it open."""
    require_writable(args.markdown, args.junit)
    console = console_of(args)
    known = acknowledged(args)
    given = read_all(args.tonight, series=args.series)
    if given and all(is_micro(one.run) for runs in given.values() for one in runs):
        args.series = next(iter(given.values()))[0].run.series  # one of their own
    with opened(args.history) as history, ExitStack() as measuring:
        past = history.runs(series=args.series)
        tonight = {name: [one.run for one in runs] for name, runs in given.items()} or _newest(past, args)
        design = replace(design_of(args, len(tonight)), max_pairs=args.pairs)
        pairs = measuring.enter_context(_pairs(history, tonight, past, known, args)) if args.measure else None
        baseline = pairs and pairs.commit
        if pairs is not None:
            console.print(f"baseline: commit {pairs.commit}", highlight=False, soft_wrap=True)
        elif args.measure:
            console.print(
                "baseline: no earlier night of this setting with a commit as it is, so nothing is measured again"
            )
        judged = {
            name: named(name, _judge, history, runs, past, design, args, known, pairs and pairs.of(name))
            for name, runs in tonight.items()
        }
    reports = {name: one.report for name, one in judged.items()}
    for name, one in judged.items():
        show(console, name, one.report, everything=args.all)
        for change in one.changes:
            console.print(f"  {words(change)}", highlight=False, soft_wrap=True)
    summary = summary_of(console, reports)
    if args.markdown:
        text = "\n".join(f"# {name}\n\n{markdown(one.report, one.changes)}" for name, one in judged.items())
        written(args.markdown, text, appends=True)
    if args.junit:
        written(args.junit, _suites(reports))
    return {
        "verb": "gate",
        **summary,
        "baseline": baseline,
        "changes": {name: [words(one) for one in found.changes] for name, found in judged.items()},
    }


def _judge(
    history: History,
    tonight: Sequence[Run],
    past: Sequence[Run],
    design: Design,
    args: argparse.Namespace,
    known: Sequence[Acknowledgement],
    measure: Measure | None,
) -> _Judged:
    setting = tonight[0].fingerprint
    if is_micro(tonight[0]):
        design = replace(design, effects=effects_of(tonight[0]) | dict(args.effect))
    fitting = [run for run in past if not differences(setting, run.fingerprint)]
    # Where none fits, the nearest setting of another night says what differs; tonight's other cells say nothing.
    night = tonight[0].time.date()
    nearest = min(
        (run for run in past if run.time.date() < night),
        key=lambda run: len(differences(setting, run.fingerprint)),
        default=None,
    )
    nights = fitting or ([nearest] if nearest else [])
    report = gated(tonight, nights, design, calibration_of(args.calibration, tonight[0]), measure)
    found = changes_of(history, setting, args.series, list(design.effects), known, design.effects)
    return _Judged(report=report, changes=found)


@contextmanager
def _pairs(
    history: History,
    tonight: Mapping[str, Sequence[Run]],
    past: Sequence[Run],
    known: Sequence[Acknowledgement],
    args: argparse.Namespace,
) -> Iterator[Pairs | None]:
    """What measures beside the baseline; ``None`` where no night gives one."""
    if len(args.tonight) != 1 or not args.tonight[0].is_dir():
        raise UsageError(
            f"--measure: saw {len(args.tonight)} runs, expected the run directory of one benchmark: it says what to "
            "measure again",
            hint=f"specharness gate --history {args.history} --measure reports/bench-...",
        )
    first = [runs[0] for runs in tonight.values()]
    changes = [
        change
        for run in first
        for change in changes_of(history, run.fingerprint, args.series, list(GATED), known)
    ]
    commit = args.baseline or last_good(
        past,
        marks(history.dataset, args.series),
        {identity(run.fingerprint) for run in first},
        min(run.time for run in first),
        changes,
    )
    if commit is None:
        yield None
        return
    with pairs_of(args.tonight[0], commit, args) as pairs:
        yield pairs


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


def _suites(reports: Mapping[str, GateReport]) -> str:
    """One suite per cell. Changes of level are not in it, as they do not decide the exit code either."""
    root = ElementTree.Element("testsuites")
    for name, report in reports.items():
        suite = ElementTree.fromstring(junit(report))
        suite.set("name", f"benchmark gate: {name}")
        root.append(suite)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
