"""``repro`` against a server: alone (``--target live``), and as the last part of a reproduction."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cases import REFERENCE_VARIANT, Case, find_case, find_root, load_cases
from harness.codec import encode
from harness.errors import Unsupported
from harness.lab import Lab
from harness.layouts import require_in, variants_in
from harness.live.intent import intent
from harness.live.leg import LiveLeg, live_leg
from harness.models.tiny import default_cache, ensure
from harness.report.audit import failure, page
from harness.report.terminal import verdict_text
from harness.rundir import RunDir, slug
from harness.scenario import Scenario
from harness.targets.registry import LIVE


def repro_live(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Drive a case against the embedded server under each of its variants."""
    root = args.cases or find_root()
    case = find_case(load_cases(root), args.issue)
    folder = (
        Path(args.model) if args.model else ensure(args.preset or "peaked", cache=default_cache(os.environ))
    )
    named = args.variant or case.live or variants_in(args.layout, case)
    require_in(args.layout, named)
    variants = list(dict.fromkeys([*named, REFERENCE_VARIANT]))
    console.print(f"{case.ref}  {case.title}", style="bold", highlight=False)
    scenarios = list(case.scenarios(Lab(folder, root / "fixtures", args.seed)))
    run_dir = RunDir.create(
        args.reports or root / "reports", f"live-{slug(case.number)}", {"name": case.ref, "seed": args.seed}
    )
    leg, summary = drive(args, console, case, scenarios, variants, folder, run_dir)
    return {
        "verb": "repro",
        "issue": case.ref,
        "target": LIVE,
        **summary,
        "run_dir": str(run_dir.path),
        "exit": leg.exit_code,
    }


def drive(
    args: argparse.Namespace,
    console: Console,
    case: Case,
    scenarios: list[Scenario],
    variants: list[str],
    folder: Path,
    run_dir: RunDir,
) -> tuple[LiveLeg, dict[str, Any]]:
    """Serve and audit every variant; print what was found, and keep it in the run's directory."""
    wanted = intent(scenarios, args.layout)
    if not wanted.legs:
        raise Unsupported(f"{case.ref}: a server cannot be driven with any of its scenarios")
    console.print(
        f"live: specharness serve {' '.join(wanted.setting.arguments)}; {', '.join(wanted.driven)}",
        highlight=False,
        soft_wrap=True,
    )
    for name, why in wanted.left_out.items():
        console.print(f"live: not driven: {name}: {why}", highlight=False, soft_wrap=True)
    try:
        with console.status("") as status:
            leg = live_leg(
                wanted,
                variants,
                must_fail=case.live,
                reference=REFERENCE_VARIANT,
                folder=folder,
                seed=args.seed,
                run_path=run_dir.path,
                tell=lambda line: status.update(Text(line)),
            )
    except KeyboardInterrupt:
        kept = run_dir.path / "live-*.jsonl"
        print(f"interrupted: what was heard is judged by: specharness live --judge {kept}", file=sys.stderr)
        raise
    show(console, leg)
    summary = {
        "live": {variant: audit.verdict.value for variant, audit in leg.audits.items()},
        "live_unexpected": leg.unexpected,
    }
    run_dir.run["live"] = {variant: encode(audit) for variant, audit in leg.audits.items()}
    run_dir.save()
    for variant, audit in leg.audits.items():
        title = f"{case.ref} live: {variant}"
        setting = {"variant": variant, "serve": " ".join(wanted.setting.arguments)}
        run_dir.write_text(
            f"live-{slug(variant)}.html", page(title, audit, leg.transcripts[variant], setting)
        )
    return leg, summary


def show(console: Console, leg: LiveLeg) -> None:
    """Check x variant, the first failure of each variant, and what is not as it must be."""
    table = Table()
    table.add_column("live check")
    for variant in leg.audits:
        table.add_column(variant, overflow="fold")
    checks = dict.fromkeys(f.check for audit in leg.audits.values() for f in audit.findings)
    for check in checks:
        cells = []
        for audit in leg.audits.values():
            finding = next((f for f in audit.findings if f.check == check), None)
            cells.append(Text("-") if finding is None else verdict_text(finding.verdict))
        table.add_row(check, *cells)
    console.print(table)
    for variant, audit in leg.audits.items():
        if audit.failed:
            console.print(Text(f"{variant}, served:", "bold"))
            for line in failure(audit.failed[0]):
                console.print(line, soft_wrap=True, highlight=False)
    for unexpected in leg.unexpected:
        console.print(Text(f"UNEXPECTED: {unexpected}", "bold red"), soft_wrap=True, highlight=False)
