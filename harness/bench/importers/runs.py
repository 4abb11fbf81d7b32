"""Results of other tools as runs that can be held against each other, as far as the tool says what they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from harness.bench.importers.content import Content
from harness.bench.importers.imported import Imported
from harness.bench.importers.reading import import_content
from harness.bench.stats.of_result import values_of
from harness.bench.stats.run import Run, Validity
from harness.errors import UsageError

MOST_FAILED = 0.01
"""Share of the requests, as for our own runs: a server that drops requests is not fast."""
PER_REQUEST = ("ttft", "e2el", "until_closed")
"""Clocks of which every completed request has one sample."""
UNTOLD = "not told"


def runs_of(content: Content) -> tuple[tuple[str, Run, Imported], ...]:
    """(cell, run, what was read) of every run in a file; cells are named by their load.

    UsageError where the file is no result of a known tool.
    """
    digest, found = content.digest[:12], import_content(content)
    written = datetime.fromtimestamp(content.path.stat().st_mtime, UTC)
    return tuple(
        (one.load if len(found) > 1 else "imported", _run(one, f"{digest}-{place}", written), one)
        for place, one in enumerate(found)
    )


def _run(found: Imported, name: str, written: datetime) -> Run:
    completed = found.metrics.get("completed")
    counts = {f"{clock}.n": completed for clock in PER_REQUEST}
    why = _why(found.metrics)
    return Run(
        fingerprint={
            "tool": found.tool,
            "version": found.version or UNTOLD,
            "model": found.model or UNTOLD,
            "load": found.load,
            "data": _data(found.result),
        },
        values=values_of({**found.metrics, **counts}),
        time=_time(found.result.get("date"), written),
        commit="unknown",
        validity=Validity(correct=not why, why=why),
        id=name,
    )


def _why(metrics: Mapping[str, float | None]) -> str:
    """Why its speed means nothing; empty where nothing speaks against it. Nobody checked its answers."""
    completed, failed = metrics.get("completed") or 0, metrics.get("failed") or 0
    if not completed:
        return "nothing was completed"
    if failed > MOST_FAILED * (completed + failed):
        return f"{failed:g} of {completed + failed:g} requests failed"
    return ""


def _data(result: Mapping[str, Any]) -> str:
    """The same prompts have the same number of tokens; that is all that a result keeps of them."""
    prompts, requests = result.get("total_input_tokens"), result.get("completed")
    return UNTOLD if prompts is None else f"{prompts:g} prompt tokens in {requests} requests"


def _time(told: object, written: datetime) -> datetime:
    """vLLM writes local time; of the others the file's own."""
    try:
        return datetime.strptime(str(told), "%Y%m%d-%H%M%S").astimezone(UTC)
    except (ValueError, OverflowError):
        return written


def is_imported(run: Run) -> bool:
    """Whether another tool measured it."""
    return "tool" in run.fingerprint


def defined_by_both(
    left: Sequence[Run], right: Sequence[Run], effects: Mapping[str, float]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Of the gated metrics those that both sides define, and why the others are left out.

    A metric that a tool does not have is missing whatever is measured; one that is null was not measured. UsageError
    where none is left.
    """
    kept, reasons = dict(effects), []
    for side, runs in (("A", left), ("B", right)):
        for name in effects:
            if name in kept and not any(name in run.values for run in runs):
                del kept[name]
                tool = runs[0].fingerprint.get("tool", "specharness")
                reasons.append(f"{name} is not compared: {tool} of {side} has nothing of this definition")
    if not kept:
        raise UsageError(
            f"runs {left[0].id} and {right[0].id}: no gated metric is defined by both: {', '.join(effects)}",
            hint="--effect METRIC=SHARE gates another one",
        )
    return kept, tuple(reasons)


def untold(left: Run, right: Run) -> tuple[str, ...]:
    """Keys of which neither side says anything, so that nobody knows whether they agree."""
    return tuple(
        key for key, value in left.fingerprint.items() if value == UNTOLD == right.fingerprint.get(key)
    )
