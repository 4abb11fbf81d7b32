"""A recompile gate: a kernel whose compiled form depends on the lengths of a batch stops the engine to compile."""

from __future__ import annotations

from harness.scenario import Scenario
from harness.trace import Coordinate, Trace
from harness.verdict import Divergence, Evidence, Verdict


def check_recompile(scenario: Scenario, trace: Trace) -> Evidence:
    """Compiled variants per kernel over the whole run against what the scenario allows."""
    most = scenario.most_compilations
    if not trace.compilations:
        return Evidence(
            check="recompile", verdict=Verdict.INCONCLUSIVE, summary="the target counted no compilations"
        )
    found = [
        Divergence(
            kind="recompile",
            at=Coordinate(step=len(trace.steps) - 1, tensor=kernel),
            message=f"compiled {count} times over batches of changing lengths, {most} allowed",
        )
        for kernel, count in trace.compilations.items()
        if most is not None and count > most
    ]
    counted = ", ".join(f"{kernel} x {count}" for kernel, count in trace.compilations.items())
    verdict = Verdict.FAIL if found else Verdict.PASS
    return Evidence(
        check="recompile",
        verdict=verdict,
        summary=f"compiled: {counted}",
        divergences=tuple(found),
        compared=len(trace.steps),
    )
