"""The verbs that look at kernels of others: ``contract``, ``upstream-table`` and ``bisect``."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.bisect import Boundary, Symptoms, bisect, released
from harness.cases import REFERENCE_VARIANT, find_case, find_root, load_cases
from harness.console import console_of
from harness.errors import UsageError
from harness.lab import Lab
from harness.models.tiny import default_cache, ensure
from harness.run import Judge
from harness.rundir import RunDir, slug
from harness.scenario import Scenario
from harness.suspects import VLLM, EngineSuspect, MetadataSuspect, Suspect, Tell
from harness.targets.registry import EMBEDDED, TargetOptions, columns, left_out, open_target
from harness.targets.upstream.target import UpstreamTarget
from harness.upstream_native import Native
from harness.upstream_table import RELEASES, judge_once, judge_releases, markdown
from harness.upstream_workers import judge_ahead
from harness.verdict import Verdict

KERNELS = {
    "conv": "convolution update",
    "recurrence": "verify recurrence",
    "forward": "layer with its kernels and its metadata builder",
}
"""Suspects beside the metadata builder, by their names on the command line."""
ISSUES = ("24730", "24881", "24957")
"""The issues that are judged when nobody names others: those that the releases were about."""
USUAL = ("metadata", "conv", "recurrence")
"""The suspects that are judged when nobody names others."""


def contract(args: argparse.Namespace) -> dict[str, Any]:
    """Test the verify recurrence of a target alone, before any engine."""
    console = console_of(args)
    titles = columns(args.target, ["kernels"])
    if titles is None:
        raise UsageError(
            f"{EMBEDDED} has tests of its own", hint="specharness contract package.module:function"
        )
    options = TargetOptions(
        folder=ensure("narrow"),
        device=args.device,
        cache=default_cache(os.environ).parent,
        tell=console.print,
    )
    target = open_target(args.target, options)(titles[0])
    assert isinstance(target, UpstreamTarget)
    for what, how in target.setting.items():
        console.print(f"{what}: {how}", highlight=False, soft_wrap=True)
    findings = target.contract()
    for line in findings or [f"{target.name} keeps the contract: its verify recurrence may be run"]:
        console.print(line, style="red" if findings else "green", highlight=False, soft_wrap=True)
    return {"verb": "contract", "target": args.target, "findings": findings, "exit": 1 if findings else 0}


def table(args: argparse.Namespace) -> dict[str, Any]:
    """Make the table release x scenario x suspect, and write it as Markdown."""
    console = console_of(args)
    root = args.cases or find_root()
    releases = args.releases or list(RELEASES)
    folder = _model(args)
    scenarios = _scenarios(root, folder, args.issues, args)
    setting = f"torch {version('torch')}, triton {version('triton')}, {_card(args.device)}seed {args.seed}"
    run_dir = _run_dir(args, root, "upstream-table", {**_setting(args, scenarios), "releases": releases})
    run_dir.run |= {"command": _command(args), "made_with": setting}
    native = None if args.native is None else Native.of(RunDir.resume(args.native))
    make, tell = partial(_suspects, _asked(args, folder)), _teller(console)
    if args.workers > 1:
        judge_ahead(make, releases, scenarios, run_dir, tell, args.workers)
    made = judge_releases(releases, scenarios, make(tell), run_dir, tell)
    path = args.out or root / "reports" / "baselines" / "upstream.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    section = "" if native is None else native.compared(made, _command(args))
    path.write_text(markdown(made, _command(args), setting, section), encoding="utf-8")
    decided, every = made.decided
    console.print(
        f"{decided} of {every} cells are PASS or FAIL; written to {path}", soft_wrap=True, highlight=False
    )
    cells = {
        f"{release} {suspect}": {name: cell.verdict.value for name, cell in cells.items()}
        for (suspect, release), cells in made.cells.items()
    }
    return {
        "verb": "upstream-table",
        "table": str(path),
        "cells": cells,
        "run_dir": str(run_dir.path),
        "exit": 0,
    }


def bisection(args: argparse.Namespace) -> dict[str, Any]:
    """Find the release that broke or repaired what an issue's scenarios show."""
    console = console_of(args)
    root = args.cases or find_root()
    folder = _model(args)
    scenarios = _scenarios(root, folder, [args.issue], args)
    setting = {**_setting(args, scenarios), "good": args.good, "bad": args.bad}
    run_dir = _run_dir(args, root, f"bisect-{slug(args.issue)}", setting)
    tell = _teller(console)
    suspects = _suspects(_asked(args, folder), tell)

    def judge(release: str) -> Symptoms | None:
        shown = _symptoms(release, scenarios, suspects, run_dir, tell)
        tell(
            f"{release}: {'cannot be judged' if shown is None else '; '.join(sorted(shown)) or 'nothing is wrong'}"
        )
        return shown

    releases = args.releases or released(VLLM, tell)
    found = bisect(releases, args.good, args.bad, judge, tell)
    console.print(f"\n{found}", soft_wrap=True, highlight=False)
    result: dict[str, Any] = {"verb": "bisect", "issue": args.issue, "run_dir": str(run_dir.path)}
    if isinstance(found, Boundary):
        for symptom in sorted(found.symptoms):
            console.print(f"  {symptom}", soft_wrap=True, highlight=False)
        result |= {"last": found.last, "first": found.first, "skipped": list(found.skipped)}
        return {**result, "symptoms": sorted(found.symptoms), "exit": found.exit_code}
    return {**result, "error": found, "exit": 125}


def _symptoms(
    release: str, scenarios: Sequence[Scenario], suspects: Sequence[Suspect], run_dir: RunDir, tell: Tell
) -> Symptoms | None:
    """What a release shows over all suspects; ``None`` where a suspect says that it cannot judge some scenario."""
    shown: set[str] = set()
    for suspect in suspects:
        for name, cell in judge_once(release, scenarios, suspect, run_dir, tell).items():
            if cell.verdict in (Verdict.UNSUPPORTED, Verdict.INCONCLUSIVE):
                tell(f"{release}  {suspect.name}  {name}: {cell.verdict.value}: {cell.summary}")
                return None
            shown |= {f"{suspect.name}, {name}: {symptom}" for symptom in cell.symptoms}
    return frozenset(shown)


def _scenarios(
    root: Path, folder: Path, issues: Sequence[str] | None, args: argparse.Namespace
) -> list[Scenario]:
    """The scenarios of some issues, told apart by the issue's number; ``--scenario`` keeps those that it begins."""
    cases = load_cases(root)
    lab_of = {case.ref: Lab(folder, root / "fixtures", args.seed) for case in cases}
    chosen = [find_case(cases, name) for name in issues or ISSUES]
    made = [
        _named(scenario, f"{case.number} {scenario.name}")
        for case in chosen
        for scenario in case.build(lab_of[case.ref])
    ]
    wanted = args.scenario or [""]
    kept = [
        scenario for scenario in made if any(scenario.name.partition(" ")[2].startswith(w) for w in wanted)
    ]
    if not kept:
        raise UsageError(
            f"saw --scenario {wanted}, expected the beginning of one of: {[s.name for s in made]}"
        )
    return kept


def _named(scenario: Scenario, name: str) -> Scenario:
    return replace(scenario, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which suspects, on what: all that a process needs to make them."""

    suspects: tuple[str, ...]
    folder: Path  # of the model
    device: str
    cache: Path
    natural: bool


def _asked(args: argparse.Namespace, folder: Path) -> Asked:
    return Asked(
        suspects=tuple(args.suspects),
        folder=folder,
        device=args.device,
        cache=_cache(),
        natural=args.natural,
    )


def _suspects(asked: Asked, tell: Tell) -> list[Suspect]:
    """The suspects that were asked for."""
    correct = open_target(EMBEDDED, TargetOptions(folder=asked.folder, kernels="naive"))(REFERENCE_VARIANT)
    judge = cache(lambda: Judge(asked.folder))
    options = TargetOptions(folder=asked.folder, device=asked.device, cache=asked.cache, tell=tell)

    def kernel(part: str) -> Suspect:
        return EngineSuspect(
            KERNELS[part],
            lambda release: open_target(f"{VLLM}=={release}", options)(part),
            lambda scenario: left_out(f"{VLLM}==", asked.device, scenario, natural=asked.natural),
            correct,
            judge(),
            tell,
        )

    return [
        MetadataSuspect(asked.cache, correct.run, tell) if name == "metadata" else kernel(name)
        for name in asked.suspects
    ]


def _cache() -> Path:
    return default_cache(os.environ).parent


def _model(args: argparse.Namespace) -> Path:
    """The tiny model to use: a narrow one where kernels are interpreted. Fills in what was not asked for."""
    args.suspects = args.suspects or list(USUAL)
    interpreted = args.device == "cpu" and set(args.suspects) & set(KERNELS)
    args.preset = args.preset or ("narrow" if interpreted else "peaked")
    return ensure(args.preset)


def _run_dir(args: argparse.Namespace, root: Path, name: str, setting: dict[str, Any]) -> RunDir:
    """A new run directory, or the one to go on with; UsageError where that is of another run."""
    if args.resume is None:
        return RunDir.create(args.reports or root / "reports", name, {"name": name, **setting, "cells": {}})
    run_dir = RunDir.resume(args.resume)
    differing = [key for key, value in setting.items() if run_dir.run.get(key) != value]
    if differing:
        raise UsageError(
            f"{args.resume}: is another run: {', '.join(differing)} differ",
            hint="resume with the same arguments",
        )
    return run_dir


def _setting(args: argparse.Namespace, scenarios: Sequence[Scenario]) -> dict[str, Any]:
    return {
        "seed": args.seed,
        "preset": args.preset,
        "device": args.device,
        "suspects": args.suspects,
        "natural": args.natural,
        "scenarios": [scenario.name for scenario in scenarios],
    }


def _card(device: str) -> str:
    """The GPU's name, as part of a sentence; nothing on a CPU."""
    if device != "cuda":
        return ""
    import torch

    return f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else "no GPU, "


def _teller(console: Console) -> Tell:
    return lambda line: console.print(line, soft_wrap=True, highlight=False, markup=False)


def _command(args: argparse.Namespace) -> str:
    words = ["specharness", "upstream-table"]
    for option in ("suspects", "releases", "issues", "scenario"):
        words += [word for name in getattr(args, option) or () for word in (f"--{option}", name)]
    words += ["--preset", args.preset, *(["--natural"] if args.natural else [])]
    words += ["--device", args.device] if args.device != "cpu" else []
    return shlex.join(words)
