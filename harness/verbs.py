"""What the verbs do once their arguments are known."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable
from datetime import date, datetime
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from harness.cases import REFERENCE_VARIANT, STANDARD_VARIANTS, Case, find_case, find_root, load_cases
from harness.console import console_of
from harness.errors import CaseError, Unsupported, UsageError
from harness.expected import Expected, read_expected, settle
from harness.lab import Lab
from harness.layouts import require_in, scenario_in, variants_in
from harness.models.tiny import default_cache, ensure
from harness.report import html, proof
from harness.repro import Reproduction, reproduce
from harness.run import Judge
from harness.rundir import RunDir, slug
from harness.scenario import Scenario
from harness.targets.protocols import Capability
from harness.targets.registry import EMBEDDED, LIVE, TargetOptions, columns, interprets, left_out, open_target


def repro(args: argparse.Namespace) -> dict[str, Any]:
    """Reproduce an issue: every scenario of its case under every variant."""
    console = console_of(args)
    if args.target == LIVE:
        return _live().repro_live(args, console)
    known = read_expected(args.expected) if args.expected else None
    root = args.cases or find_root()
    case = find_case(load_cases(root), args.issue)
    folder = _model(args, console)
    console.print(f"{case.ref}  {case.title}", style="bold", highlight=False)
    scenarios = _fitting(args, console, case.scenarios(Lab(folder, root / "fixtures", args.seed)))
    variants = _chosen(args, variants_in(args.layout, case))
    reproduction, run_dir = _reproduce(
        args, console, root, f"repro-{slug(case.number)}", scenarios, variants, folder, case.needs
    )
    proof.show(console, f"{case.ref}  {case.title}", reproduction, run_dir)
    alone = args.bisect or args.target != EMBEDDED
    exit_code = _verdict_alone(args, reproduction) if alone else reproduction.exit_code
    served: dict[str, Any] = {}
    if case.live and not alone and not args.variant and args.device == "cpu":
        code, served = _served(args, console, case, scenarios, folder, run_dir)
        exit_code = exit_code or code
    return {
        "verb": "repro",
        "issue": case.ref,
        **_summary(args, reproduction, run_dir),
        **served,
        **_outcome(console, reproduction, known, exit_code),
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run one scenario file and judge it; red when any chosen variant fails."""
    console = console_of(args)
    known = read_expected(args.expected) if args.expected else None
    scenario = Scenario.read(args.scenario)
    root = _root(args)
    folder = _model(args, console)
    variants = _chosen(args, STANDARD_VARIANTS)
    scenarios = _fitting(args, console, [scenario])
    reproduction, run_dir = _reproduce(
        args, console, root, f"run-{slug(scenario.name)}", scenarios, variants, folder
    )
    proof.show(console, scenario.title or scenario.name, reproduction, run_dir)
    return {
        "verb": "run",
        "scenario": scenario.name,
        **_summary(args, reproduction, run_dir),
        **_outcome(console, reproduction, known, _verdict_alone(args, reproduction)),
    }


def _served(
    args: argparse.Namespace,
    console: Console,
    case: Case,
    scenarios: list[Scenario],
    folder: Path,
    run_dir: RunDir,
) -> tuple[int, dict[str, Any]]:
    """The live leg; where its packages are not installed, the reproduction stands without it."""
    try:
        drive = _live().drive
    except UsageError as error:
        console.print(f"live leg not run: {error}", highlight=False, soft_wrap=True)
        return 0, {"live": None}
    leg, summary = drive(args, console, case, scenarios, [*case.live, REFERENCE_VARIANT], folder, run_dir)
    return leg.exit_code, summary


def _live() -> ModuleType:
    """What drives servers; UsageError without its packages."""
    try:
        return import_module("harness.live_repro")
    except ImportError as error:
        raise UsageError(f"servers need {error.name}", hint="pip install 'specharness[live]'") from None


def _verdict_alone(args: argparse.Namespace, reproduction: Reproduction) -> int:
    """The exit code of what was asked for: red when any chosen variant fails, whether or not that was documented."""
    codes = [
        reproduction.verdict(name).exit_code
        for name in reproduction.variants
        if args.target != EMBEDDED or not args.variant or name in args.variant
    ]
    return 1 if 1 in codes else max(codes, default=125)


def _outcome(
    console: Console, reproduction: Reproduction, known: tuple[Expected, ...] | None, exit_code: int
) -> dict[str, Any]:
    """The exit code, which is that of what is left where failures are known (``--expected``)."""
    if known is None:
        return {"exit": exit_code}
    cells = {(r.scenario.name, name): j for r in reproduction.results for name, j in r.judgements.items()}
    found = settle(known, cells, date.today())
    for line in found.known:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
    for line in found.red:
        console.print(line, style="red", highlight=False, soft_wrap=True, markup=False)
    return {"known": found.known, "red": found.red, "exit": found.exit_code}


def from_log(args: argparse.Namespace) -> dict[str, Any]:
    """Turn an engine's scheduler dump into a scenario file."""
    from harness.fromlog import read_dump

    console = console_of(args)
    dump = read_dump(args.log)
    scenario = dump.scenario(Lab(ensure(args.preset, cache=default_cache(os.environ)), Path("fixtures")))
    path = args.out or args.log.with_suffix(".scenario.json")
    try:
        path.write_text(scenario.to_json(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}", hint="pass --out FILE") from None
    console.print(f"{dump}\nwritten to {path}; run it with: specharness run {path}", soft_wrap=True)
    return {"verb": "from-log", "scenario": str(path), "rows": dump.row_lengths, "exit": 0}


def _root(args: argparse.Namespace) -> Path:
    """Where reports go when no case is needed: the checkout, or the current folder outside of one."""
    try:
        return Path(args.cases or find_root())
    except CaseError:
        return Path.cwd()


def _model(args: argparse.Namespace, console: Console) -> Path:
    if args.model:
        console.print(f"model: {args.model}", highlight=False)
        return Path(args.model)
    args.preset = args.preset or ("narrow" if interprets(args.target, args.device) else "peaked")
    folder = ensure(args.preset, cache=default_cache(os.environ))
    console.print(f"model: tiny Qwen3-Next, preset {args.preset} ({folder})", highlight=False, soft_wrap=True)
    return folder


def _chosen(args: argparse.Namespace, shipped: tuple[str, ...]) -> list[str]:
    """The variants to run; of our engine the correct one always, since noise is measured on it."""
    of_target = columns(args.target, args.variant)
    return list(dict.fromkeys(of_target or [*(args.variant or shipped), "fixed"]))


def _fitting(args: argparse.Namespace, console: Console, scenarios: Iterable[Scenario]) -> list[Scenario]:
    """The scenarios that can be run on the target; what is left out, and why, is said."""
    fitting, args.left_out = [], {}
    for scenario in scenarios:
        if reason := left_out(args.target, args.device, scenario):
            args.left_out[scenario.name] = reason
            console.print(f"not run: {scenario.name}: {reason}", soft_wrap=True, highlight=False)
        else:
            fitting.append(scenario_in(args.layout, scenario))
    if not fitting:
        raise Unsupported(f"{args.target} can run none of these scenarios", hint="specharness list issues")
    return fitting


def _reproduce(
    args: argparse.Namespace,
    console: Console,
    root: Path,
    name: str,
    scenarios: list[Scenario],
    variants: list[str],
    folder: Path,
    needs: frozenset[Capability] = frozenset(),
) -> tuple[Reproduction, RunDir]:
    options = TargetOptions(
        folder=folder,
        kernels=args.kernels,
        device=args.device,
        graphs=args.graphs == "on",
        state_dtype=args.state_dtype,
        layout=args.layout,
        cache=default_cache(os.environ).parent,
        tell=lambda line: console.print(line, soft_wrap=True, highlight=False),
    )
    open_variant = open_target(args.target, options)
    require_in(args.layout, variants)
    targets = [open_variant(variant) for variant in variants]  # a wrong name must not cost a run
    if lacking := sorted(one.value for one in needs - targets[0].capabilities):
        raise Unsupported(f"{args.target} cannot do what the case needs: {', '.join(lacking)}")
    for what, how in targets[0].setting.items():
        console.print(f"{what}: {how}", highlight=False, soft_wrap=True)
    setting = {
        "name": name,
        "seed": args.seed,
        "target": args.target,
        "kernels": args.kernels,
        "device": args.device,
        "graphs": args.graphs,
        "state_dtype": args.state_dtype,
        "layout": args.layout,
        "preset": args.preset,
        "model": None if args.model is None else str(args.model.resolve()),
        "variants": variants,
    }
    run_dir = _run_dir(args, root, name, setting)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=args.json) as progress:
        task = progress.add_task("loading the oracle")
        judge = Judge(folder)

        cells = count(1)

        def tell(scenario: str, variant: str) -> None:
            place = f"{next(cells)} of {len(scenarios) * len(variants)}"
            progress.update(task, description=f"{place}  {scenario}  {variant}")
            if not console.is_terminal:
                console.print(f"{place}: {scenario} on {variant}", soft_wrap=True, highlight=False)

        try:
            reproduction = reproduce(scenarios, variants, open_variant, judge, run_dir, tell)
        except KeyboardInterrupt:
            print(
                f"interrupted: the same command with --resume {run_dir.path} goes on from there",
                file=sys.stderr,
            )
            raise
    run_dir.run.update(setting=targets[0].setting, result=proof.summary(reproduction))
    run_dir.save()
    run_dir.write_text("index.html", html.page(name, reproduction, run_dir.run))
    return reproduction, run_dir


def _run_dir(args: argparse.Namespace, root: Path, name: str, setting: dict[str, Any]) -> RunDir:
    if args.resume is None:
        return RunDir.create(
            args.reports or root / "reports",
            name,
            {
                **setting,
                "started": datetime.now().isoformat(timespec="seconds"),
                "versions": _versions(),
                "gauges": {},
                "cells": {},
            },
        )
    run_dir = RunDir.resume(args.resume)
    if differing := run_dir.differing(setting):
        seen = ", ".join(differing)
        raise UsageError(f"{args.resume}: is another run ({seen})", hint="resume with the same arguments")
    return run_dir


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("specharness", "torch", "triton", "xgrammar", "numpy", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _summary(args: argparse.Namespace, reproduction: Reproduction, run_dir: RunDir) -> dict[str, Any]:
    return {
        **proof.summary(reproduction),
        "seed": args.seed,
        "left_out": args.left_out,
        "run_dir": str(run_dir.path),
    }
