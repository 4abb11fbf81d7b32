"""The engine's own metrics against what its rows say: none is ever negative, each is the sum of what it counts."""

from __future__ import annotations

from collections.abc import Iterator

from harness.check.ledger import entries
from harness.scenario import Scenario
from harness.trace import Coordinate, Trace
from harness.verdict import Divergence, Evidence, Verdict


def check_counters(scenario: Scenario, trace: Trace) -> Evidence:
    """Every counter that the target keeps and that the rows tell too."""
    found = [*_negative(trace), *([] if trace.crash else _wrong_sums(scenario, trace))]
    verdict = Verdict.FAIL if found else Verdict.PASS if trace.counters else Verdict.INCONCLUSIVE
    summary = f"{len(trace.counters)} counters, {len(found)} wrong" if trace.counters else "no counters"
    return Evidence(
        check="counters",
        verdict=verdict,
        summary=summary,
        divergences=tuple(found),
        compared=len(trace.counters),
    )


def expected_counters(scenario: Scenario, trace: Trace) -> dict[str, int]:
    """What the rows add up to; a discarded row counts for nothing."""
    lines = list(entries(scenario, trace))
    verified = [line.row for line in lines if not line.row.prompt_tokens and not line.row.discarded]
    admitted = [line for line in lines if line.fresh]
    counted = {
        "num_drafts": len(verified),
        "num_draft_tokens": sum(token >= 0 for row in verified for token in row.kept),
        "num_accepted_tokens": sum(row.accepted - 1 for row in verified),
        "preemptions": sum(len(step.preempted) for step in trace.steps),
        "slots_leaked": 0,  # when all requests are over, nobody owns memory
        "blocks_leaked": 0,
    }
    lost = any(step.preempted or step.aborted for step in trace.steps)
    if scenario.regime == "trim" or not lost:  # else an admission may have ended before it had a row
        counted["prefix_hits"] = sum(line.row.cached for line in admitted)
    if scenario.prefix_caching and "prefix_hits" in counted:
        counted["prefix_queries"] = sum(line.before for line in admitted)
    return counted


def _negative(trace: Trace) -> Iterator[Divergence]:
    for name, value in trace.counters.items():
        if value < 0:
            yield _divergence(trace, name, "counter negative", f"{name} is {value}")


def _wrong_sums(scenario: Scenario, trace: Trace) -> Iterator[Divergence]:
    for name, expected in expected_counters(scenario, trace).items():
        value = trace.counters.get(name, expected)
        if value != expected and value >= 0:
            yield _divergence(
                trace, name, "counter wrong", f"{name} is {value}, the rows add up to {expected}"
            )


def _divergence(trace: Trace, name: str, cause: str, message: str) -> Divergence:
    return Divergence(
        kind="ledger",
        at=Coordinate(step=max((step.index for step in trace.steps), default=0), tensor=name),
        message=message,
        cause=cause,
        diagnosis=f"{cause}: {message}",
    )
