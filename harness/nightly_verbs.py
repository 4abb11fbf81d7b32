"""What the verb ``nightly`` does: correctness, benchmark, history, gate; no speed of a run that is not correct."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.bench.history.dataset import Dataset
from harness.bench.history.filing import file_runs
from harness.bench.history.marks import Mark, keep
from harness.bench.history.results import read_all
from harness.bench.machine import hardware
from harness.bench.revision import Revision
from harness.bench.stats.fingerprint import identity
from harness.bench.stats.judge import Call
from harness.bench_asked import reports_folder, served
from harness.console import console_of
from harness.doctor import find_gpus
from harness.errors import UsageError
from harness.judging import require_writable, written
from harness.nightly_cli import CORE
from harness.nightly_report import BENCH, GATE, junit, markdown
from harness.nightly_steps import STEP_SUMMARY, Steps, are_steps
from harness.rundir import RunDir, alone, program

KEPT = (
    *("history", "series", "issues", "target", "base_url", "model", "tokenizer", "commit"),
    *("calibration", "known", "pairs", "no_measure", "bench"),
)
"""Arguments that a resumed night takes over."""
FOLDERS = ("tokenizer", "calibration", "known")


def nightly(args: argparse.Namespace) -> dict[str, Any]:
    """One night; the exit code is that of the first stage that was not right."""
    require_writable(args.markdown, args.junit)
    with ExitStack() as held:
        if args.resume is not None:
            held.enter_context(alone(args.resume))  # before anything of it is read
        run_dir, kept = _opened(args)
        if args.resume is None:
            held.enter_context(alone(run_dir.path))
        return _all(run_dir, kept)


def _all(run_dir: RunDir, args: argparse.Namespace) -> dict[str, Any]:
    steps = Steps(run_dir, console_of(args))
    try:
        verdict, code = _night(steps, args)
    except KeyboardInterrupt:
        print(
            f"interrupted: what is done is kept; go on with: {program()} nightly --resume {run_dir.path}",
            file=sys.stderr,
        )
        raise
    steps.say(f"nightly: {verdict}")
    return _reported(steps, args, verdict, code)


def _night(steps: Steps, args: argparse.Namespace) -> tuple[str, int]:
    checked = {name: steps.run(name, command) for name, command in _correctness(args, steps.run_dir.path)}
    if wrong := {name: line["exit"] for name, line in checked.items() if line["exit"]}:
        codes = set(wrong.values())
        code = 1 if 1 in codes else next(iter(codes - {125}), 125)
        return f"not shown to be correct ({', '.join(wrong)}): nothing was measured, nothing is filed", code
    bench = steps.run(BENCH, _benchmark(args, steps.run_dir.path))
    if bench["exit"]:
        return "the benchmark is not valid: nothing is filed, and no speed is told", bench["exit"]
    run = Path(bench["run_dir"])
    filed = file_runs(args.history, [run], series=args.series)
    steps.say(f"history {args.history}: {len(filed)} cells filed")
    gate = steps.run(GATE, _gate(args, steps.run_dir.path, run))
    _mark(steps.run_dir, args, run, gate)
    steps.run("page", _page(args, steps.run_dir.path))
    words = {
        0: "correct, and not slower",
        1: "correct, and slower",
        125: "correct; whether slower was not shown",
    }
    return words.get(gate["exit"], "correct; the gate could not be asked"), gate["exit"]


def _correctness(args: argparse.Namespace, folder: Path) -> list[tuple[str, list[str]]]:
    """Name and command of each step. A GPU has a gate of its own; a server of the user's is audited alone."""
    kept = ["--reports", str(folder)]
    if args.base_url:
        return [("live", ["live", *_server(args), *kept])]
    if find_gpus()[0] and args.gpu_gate():
        return [("gpu-gate", ["gpu-gate", *kept])]
    target = ["--target", args.target] if args.target else []
    issues = [(f"repro-{issue}", ["repro", issue, *target, *kept]) for issue in args.issues or CORE]
    return [*issues, ("live", ["live", *kept])]


def _benchmark(args: argparse.Namespace, folder: Path) -> list[str]:
    """A new one, or the one that a kill left."""
    left = sorted(path.parent for path in folder.glob("bench*/run.json"))
    if left:
        return ["bench", "--resume", str(left[-1])]
    commit = ["--commit", args.commit] if args.commit else []
    return ["bench", *_server(args), *commit, "--reports", str(folder), *args.bench]


def _server(args: argparse.Namespace) -> list[str]:
    told = {"--base-url": args.base_url, "--model": args.model, "--tokenizer": args.tokenizer}
    return [part for flag, value in told.items() if value is not None for part in (flag, str(value))]


def _gate(args: argparse.Namespace, folder: Path, run: Path) -> list[str]:
    for name in ("gate.md", "gate.xml"):
        (folder / name).unlink(missing_ok=True)  # the gate appends, and this one may be a second try
    told = {"--calibration": args.calibration, "--known": args.known}
    measured = [] if args.no_measure or args.base_url else ["--measure", "--pairs", str(args.pairs)]
    return [
        *("gate", "--history", args.history, "--series", args.series, str(run), *measured),
        *(part for flag, value in told.items() if value is not None for part in (flag, str(value))),
        *("--markdown", str(folder / "gate.md"), "--junit", str(folder / "gate.xml")),
    ]


def _page(args: argparse.Namespace, folder: Path) -> list[str]:
    told = ["--known", str(args.known)] if args.known is not None else []
    return [
        "history",
        "page",
        args.history,
        "--series",
        args.series,
        "--out",
        str(folder / "history.html"),
        *told,
    ]


def _mark(run_dir: RunDir, args: argparse.Namespace, run: Path, gate: Mapping[str, Any]) -> None:
    """The call, for the next night's baseline; once."""
    if "call" not in gate or run_dir.run.get("marked") == gate["call"]:
        return
    found = [one.run for cells in read_all([run], series=args.series).values() for one in cells]
    mark = Mark(
        time=datetime.now(UTC),
        commit=found[0].commit,
        series=args.series,
        settings=tuple(sorted({identity(one.fingerprint) for one in found})),
        call=Call(gate["call"]),
    )
    keep(Dataset(args.history), mark)
    run_dir.run["marked"] = gate["call"]
    run_dir.save()


def _reported(steps: Steps, args: argparse.Namespace, verdict: str, code: int) -> dict[str, Any]:
    run_dir = steps.run_dir
    told = markdown(run_dir.run, run_dir.path, verdict, code)
    run_dir.write_text("summary.md", told)
    xml = junit(run_dir.run, run_dir.path)
    run_dir.write_text("junit.xml", xml)
    summary = args.markdown or (Path(os.environ[STEP_SUMMARY]) if os.environ.get(STEP_SUMMARY) else None)
    if summary:
        written(summary, told, appends=True)
    if args.junit:
        written(args.junit, xml)
    run_dir.run["result"] = {"verdict": verdict, "exit": code}
    run_dir.save()
    steps.say(f"report: {run_dir.path / 'summary.md'}")
    return {
        "verb": "nightly",
        "verdict": verdict,
        "steps": {name: step["line"]["exit"] for name, step in steps.done.items()},
        "gate": steps.done.get(GATE, {}).get("line", {}).get("call") if code in (0, 1, 125) else None,
        "run_dir": str(run_dir.path),
        "exit": code,
    }


def _opened(args: argparse.Namespace) -> tuple[RunDir, argparse.Namespace]:
    """A new night, or the old one with the arguments that it began with; UsageError before anything is run."""
    if args.resume is not None:
        run_dir = RunDir.resume(args.resume)
        setting: Any = run_dir.run.get("setting")
        whole = (
            isinstance(setting, dict)
            and not set(KEPT) - set(setting)
            and are_steps(run_dir.run.get("steps", {}))
        )
        if run_dir.run.get("name") != "nightly" or not whole:
            raise UsageError(
                f"{args.resume}/run.json: is not of a night",
                hint="pass --resume a directory that nightly made",
            )
        return run_dir, argparse.Namespace(**vars(args) | {key: setting[key] for key in KEPT})
    revision = _require(args)
    setting = {key: getattr(args, key) for key in KEPT}
    setting |= {key: str(Path(setting[key]).resolve()) for key in FOLDERS if setting[key] is not None}
    about = {
        "name": "nightly",
        "started": datetime.now().isoformat(timespec="seconds"),
        "setting": setting,
        "revision": asdict(revision),
        "machine": hardware(),
    }
    return RunDir.create(args.reports or reports_folder(), "nightly", about), args


def _require(args: argparse.Namespace) -> Revision:
    """What is served; UsageError where an hour would be spent in vain."""
    if not args.history:
        raise UsageError("nightly: saw no --history, expected one", hint="make nightly HISTORY=history")
    revision = served(args)
    if revision is None:
        raise UsageError(
            "nightly: nobody knows the commit of what is served, and a night without one names no suspects",
            hint='--commit "$(git rev-parse HEAD)" of the engine that is served',
        )
    if args.pairs % 2 or args.pairs < 4:
        raise UsageError(f"--pairs {args.pairs}: expected an even number, 4 at least")
    for name in ("known", "calibration"):
        path = getattr(args, name)
        if path is not None and not path.exists():
            raise UsageError(f"--{name} {path}: there is no such file", hint="see docs/history-and-gate.md")
    _require_bench(args.bench)
    Dataset(args.history).require_writable()
    return revision


def _require_bench(arguments: Sequence[str]) -> None:
    ours = ("--history", "--resume", "--compare", "--reports", "--base-url", "--model", "--tokenizer")
    for one in arguments:
        if one.partition("=")[0] in ours:
            raise UsageError(
                f"-- {one}: is not for the benchmark alone",
                hint="say it before the --, or use specharness bench",
            )
