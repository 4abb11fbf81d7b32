"""Name the mistake: a wrong state is held against states that known mistakes would have left.

Nothing here knows which fault, if any, was injected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.check.distance import relative_rms
from harness.check.hypotheses import REACH, Hypothesis, Scene, hypotheses
from harness.check.reference import Reference
from harness.trace import Array, Coordinate, LayerState, RowTrace, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The class of the mistake (``None``: none fits) and how it reads, with the next best explanation."""

    cause: str | None
    words: str


def diagnose(trace: Trace, reference: Reference, at: Coordinate, threshold: float) -> Diagnosis | None:
    """The best explanation of a wrong state; ``None`` where the coordinate names no state."""
    row = _row(trace, at)
    if row is None or row.state is None or at.layer < 0:
        return None
    layer = trace.linear_layers.index(at.layer)
    seen = _pick(row.state, at.tensor, layer)
    if not np.isfinite(seen).all():
        words = f"{np.count_nonzero(~np.isfinite(seen))} of {seen.size} numbers are NaN or infinite"
        return Diagnosis(cause="not finite", words=words)
    scene = Scene(trace=trace, reference=reference, step=at.step, row=row)
    ranked = sorted(
        ((_residual(seen, _pick(h, at.tensor, layer)), i, h) for i, h in enumerate(hypotheses(scene))),
        key=lambda entry: entry[:2],
    )
    residual, _, best = ranked[0]
    if residual > threshold:
        mixture = _mixture(trace, reference, row, at, threshold) if at.tensor == "conv" else None
        words = f"no known mistake fits; nearest: {best.words} (residual {residual:.2g})"
        return mixture or Diagnosis(cause=None, words=words)
    other = next((e for e in ranked[1:] if e[2].cause != best.cause), None)
    beside = f"; next best: {other[2].words} ({other[0]:.2g})" if other else ""
    return Diagnosis(cause=best.cause, words=f"{best.words} (residual {residual:.2g}{beside})")


def _mixture(
    trace: Trace, reference: Reference, row: RowTrace, at: Coordinate, threshold: float
) -> Diagnosis | None:
    """A convolution history whose columns are inputs of several requests' tokens: which column holds whose."""
    assert row.state is not None
    layer = trace.linear_layers.index(at.layer)
    library = {
        f"{name}[{index}]": column
        for name in sorted(
            {other.request for step in trace.steps if step.index == at.step for other in step.rows}
        )
        for index, column in _inputs(trace, reference, name, at.step, layer)
    }
    columns = row.state.conv[layer]  # [W - 1, D]
    count, width = row.state.tokens_included, len(columns)
    expected = [f"{row.request}[{index}]" for index in range(count - width, count)]
    held = []
    for column, right in zip(columns, expected, strict=True):
        # equal tokens have equal inputs in the first layer: of several that fit, the right one is meant
        residual, _, name = min((_residual(column, c), n != right, n) for n, c in library.items())
        if residual > threshold:
            return None
        held.append(name)
    words = (
        f"tokens of several rows are mixed: the columns hold {' '.join(held)}, expected {' '.join(expected)}"
    )
    return Diagnosis(cause="rows mixed", words=words)


def _inputs(
    trace: Trace, reference: Reference, request: str, step: int, layer: int
) -> Iterator[tuple[int, Array]]:
    """(place in the request's tokens, convolution input ``[D]``) of its last tokens up to a step, drafts included."""
    row = _row(trace, Coordinate(step=step, request=request))
    if row is None:
        return
    count = row.num_computed
    states = reference.replay(request, also=range(max(count - REACH, 0), count + 1)).states
    for index in range(max(count - REACH, 0), count):
        yield index, states[index + 1].conv[layer][-1]
    rejected = reference.known(row.kept[row.accepted - 1 :]) if row.accepted and not row.prompt_tokens else ()
    if rejected:
        fork = reference.fork(request, count, rejected).states
        for j in range(1, len(rejected) + 1):
            yield count + j - 1, fork[count + j].conv[layer][-1]


def _row(trace: Trace, at: Coordinate) -> RowTrace | None:
    rows = (
        row for step in trace.steps if step.index == at.step for row in step.rows if row.request == at.request
    )
    return next(rows, None)


def _pick(state: Hypothesis | LayerState, tensor: str, layer: int) -> Array:
    picked: Array = state.conv[layer] if tensor == "conv" else state.recurrent[layer]
    return picked


def _residual(seen: Array, hypothesis: Array) -> float:
    axes = tuple(range(seen.ndim))
    return float(relative_rms(hypothesis, seen, axes))
