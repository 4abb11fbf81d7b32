"""What padding to a captured size costs: rows that are launched and empty; and whether graphs were replayed for it.

No verdict rests on it.
"""

from __future__ import annotations

from harness.trace import Trace
from harness.verdict import Evidence, Verdict


def show_padding(trace: Trace) -> Evidence:
    """Empty rows and tokens beside the real ones, over the steps that were padded."""
    captured = [step for step in trace.steps if step.padded_rows or step.padded_tokens or step.replayed]
    real = sum(len(step.rows) for step in captured)
    empty = sum(step.padded_rows for step in captured)
    tokens = sum(step.padded_tokens for step in captured)
    missing = f"{-empty} lost" if empty < 0 else f"{empty} empty"
    replayed = [step for step in captured if step.replayed]
    with_rows = sum(step.padded_rows > 0 for step in replayed)
    graphs = (
        f"{len(replayed)} graph replays, {with_rows} of them with padded rows" if replayed else "no graphs"
    )
    summary = (
        f"{len(captured)} steps at a captured size: {real} rows, {missing}; {tokens} empty tokens; {graphs}"
    )
    return Evidence(check="padding", verdict=Verdict.PASS, summary=summary, compared=len(captured))
