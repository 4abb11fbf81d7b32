"""What a reproduction proves: the first screen, line by line, and the same for a machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.check.gauge import FLOAT32_NOISE
from harness.report import terminal
from harness.repro import REFERENCE_VARIANT, Reproduction, Result
from harness.rundir import RunDir
from harness.verdict import Verdict


def show(console: Console, title: str, reproduction: Reproduction, run_dir: RunDir) -> None:
    """Print the table, the first failure of each variant, and what was proven."""
    rows = [
        (result.scenario.name, {name: j.verdict for name, j in result.judgements.items()})
        for result in reproduction.results
    ]
    lines: list[Any] = ["", Text(title, "bold"), terminal.matrix(reproduction.variants, rows)]
    lines += [Text(f"UNEXPECTED: {line}", "bold red") for line in reproduction.unexpected]
    for name, result, judgement in reproduction.first_failures():
        replay = run_dir.replay(result.scenario.name, name)
        lines += ["", *terminal.failure(name, judgement, replay)]
    for line in [*lines, "", *proven(reproduction), f"report: {run_dir.path / 'index.html'}"]:
        console.print(line, soft_wrap=isinstance(line, (str, Text)), highlight=False)


def proven(reproduction: Reproduction) -> list[str]:
    """What a stranger may conclude, line by line."""
    lines = (
        [f"reproduced: {_said(reproduction.reproduced)}; fixed: {_fixed(reproduction)}"]
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
    lines += [f"undecided: {line}" for line in undecided]
    lines.append("signal of the least fault over noise: " + "; ".join(_gauges(reproduction)))
    return lines


def _gauges(reproduction: Reproduction) -> Iterator[str]:
    """For each kind of tensor, the gauge that decides least well of all scenarios."""
    for kind in ("conv", "recurrent", "logits"):
        gauge = min((getattr(r.gauges, kind) for r in reproduction.results), key=lambda one: float(one.ratio))
        floor = " (the float32 floor)" if gauge.least_noise == FLOAT32_NOISE else ""
        yield f"{kind} {gauge.least_signal:.2g} / {gauge.least_noise:.2g}{floor} = {gauge.ratio:,.0f}"


def _verdict(result: Result, variant: str) -> Verdict | None:
    judgement = result.judgements.get(variant)
    return judgement.verdict if judgement else None


def _said(reproduced: bool | None) -> str:
    return {None: "nothing is documented for what ran", True: "yes", False: "NO"}[reproduced]


def _fixed(reproduction: Reproduction) -> str:
    if reproduction.fixed:
        return "yes"
    return "NO" if reproduction.verdict(REFERENCE_VARIANT) is Verdict.FAIL else "undecided"


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
        "unexpected": reproduction.unexpected,
        "noise": reproduction.gauge.least_noise,
        "signal": reproduction.gauge.least_signal,
    }
