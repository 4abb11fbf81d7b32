"""What padding to a captured size costs: rows that are launched and empty. No verdict rests on it."""

from __future__ import annotations

from harness.trace import Trace
from harness.verdict import Evidence, Verdict


def show_padding(trace: Trace) -> Evidence:
    """Empty rows and tokens beside the real ones, over the steps that were padded."""
    padded = [step for step in trace.steps if step.padded_rows or step.padded_tokens]
    real = sum(len(step.rows) for step in padded)
    empty = sum(step.padded_rows for step in padded)
    tokens = sum(step.padded_tokens for step in padded)
    missing = f"{-empty} lost" if empty < 0 else f"{empty} empty"
    summary = f"{len(padded)} steps at a captured size: {real} rows, {missing}; {tokens} empty tokens"
    return Evidence(check="padding", verdict=Verdict.PASS, summary=summary, compared=len(padded))
