"""What a reproduction proves: the first screen, line by line, and the same for a machine."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from harness.report import terminal
from harness.repro import Reproduction, Result
from harness.rundir import RunDir
from harness.verdict import Verdict


def show(console: Console, title: str, reproduction: Reproduction, run_dir: RunDir) -> None:
    """Print the table, the first failure of each variant, and what was proven."""
    rows = [
        (result.scenario.name, {name: j.verdict for name, j in result.judgements.items()})
        for result in reproduction.results
    ]
    lines: list[Any] = ["", f"[bold]{title}[/bold]", terminal.matrix(reproduction.variants, rows)]
    for name, result, judgement in reproduction.first_failures():
        replay = run_dir.replay(result.scenario.name, name)
        lines += ["", *terminal.failure(name, judgement, replay)]
    for line in [*lines, "", *proven(reproduction), f"report: {run_dir.path / 'index.html'}"]:
        console.print(line, soft_wrap=isinstance(line, (str, Text)), highlight=False)


def proven(reproduction: Reproduction) -> list[str]:
    """What a stranger may conclude, line by line."""
    reproduced = (
        "no failure is documented" if reproduction.reproduced is None else _yes(reproduction.reproduced)
    )
    lines = (
        [f"reproduced: {reproduced}; fixed: {_yes(reproduction.fixed)}"]
        if reproduction.has_reference
        else [f"{name}: {reproduction.verdict(name).value}" for name in reproduction.variants]
    )
    for name in reproduction.variants:
        failing = [r.scenario.name for r in reproduction.results if _verdict(r, name) is Verdict.FAIL]
        if failing:
            lines.append(f"{name} fails: {'; '.join(failing)}")
    lines += [
        f"tokens in {r.scenario.name!r} on {name}: {evidence.power}"
        for r in reproduction.results
        for name, judgement in r.judgements.items()
        for evidence in judgement.evidence
        if evidence.power
    ]
    lines += [
        f"{evidence.check} in {r.scenario.name!r} on {name}: {evidence.summary}"
        for r in reproduction.results
        for name, judgement in r.judgements.items()
        for evidence in judgement.evidence
        if evidence.check in ("padding", "recompile") and evidence.compared
    ]
    undecided = [
        f"{r.scenario.name} on {name}: " + "; ".join(e.summary for e in j.evidence if e.verdict is j.verdict)
        for r in reproduction.results
        for name, j in r.judgements.items()
        if j.verdict in (Verdict.INCONCLUSIVE, Verdict.UNSUPPORTED)
    ]
    gauge = reproduction.gauge
    lines += [f"undecided: {line}" for line in undecided]
    lines.append(
        f"noise {gauge.least_noise:.2g}, signal of the least fault {gauge.least_signal:.2g}: "
        f"{gauge.ratio:,.0f} times the noise"
    )
    return lines


def _verdict(result: Result, variant: str) -> Verdict | None:
    judgement = result.judgements.get(variant)
    return judgement.verdict if judgement else None


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


def summary(reproduction: Reproduction) -> dict[str, Any]:
    """The part of the JSON line that every reproduction has."""
    return {
        "reproduced": reproduction.reproduced,
        "fixed": reproduction.fixed,
        "variants": {
            name: {
                "verdict": reproduction.verdict(name).value,
                "scenarios": {
                    r.scenario.name: r.judgements[name].verdict.value
                    for r in reproduction.results
                    if name in r.judgements
                },
            }
            for name in reproduction.variants
        },
        "noise": reproduction.gauge.least_noise,
        "signal": reproduction.gauge.least_signal,
    }
