"""Name the mistake: a wrong state is held against states that known mistakes would have left.

Every hypothesis is built from the reference; nothing here knows which fault, if any, was injected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.check.distance import relative_rms
from harness.check.reference import Reference
from harness.oracle.model import State
from harness.trace import Array, Coordinate, LayerState, RowTrace, Trace

REACH = 8
"""How many tokens a lag or a lead is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A hypothesis, and how much of the wrong tensor it leaves unexplained (relative RMS)."""

    name: str
    residual: float


def diagnose(trace: Trace, reference: Reference, at: Coordinate, threshold: float) -> str | None:
    """The best explanation of a wrong state in words, with the next best; ``None`` if nothing fits."""
    row = _row(trace, at)
    if row is None or row.state is None or at.layer < 0:
        return None
    layer = trace.linear_layers.index(at.layer)
    seen = _pick(row.state, at.tensor, layer)
    if not np.isfinite(seen).all():
        return f"{np.count_nonzero(~np.isfinite(seen))} of {seen.size} numbers are NaN or infinite"
    ranked = sorted(
        (
            Explanation(name=name, residual=_residual(seen, _pick(state, at.tensor, layer)))
            for name, state in _hypotheses(trace, reference, row, at)
        ),
        key=lambda explanation: explanation.residual,
    )
    best = ranked[0]
    if best.residual > threshold:
        mixture = _mixture(trace, reference, row, at, threshold) if at.tensor == "conv" else None
        if mixture:
            return mixture
        return f"no known mistake fits; nearest: {best.name} (residual {best.residual:.2g})"
    other = next((e for e in ranked[1:] if e.name != best.name), None)
    beside = f"; next best: {other.name} ({other.residual:.2g})" if other else ""
    return f"{best.name} (residual {best.residual:.2g}{beside})"


def _hypotheses(
    trace: Trace, reference: Reference, row: RowTrace, at: Coordinate
) -> Iterator[tuple[str, State | LayerState]]:
    assert row.state is not None
    count = row.state.tokens_included
    around = range(max(count - REACH, 0), count + REACH + 1)
    states = reference.replay(row.request, also=around).states
    for other in around:
        if other in states and other != count:
            verb = "lags by" if other < count else "leads by"
            yield (
                f"the state {verb} {abs(other - count)} token{'s' * (abs(other - count) > 1)}",
                states[other],
            )
    zeros = State(conv=np.zeros_like(states[count].conv), recurrent=np.zeros_like(states[count].recurrent))
    yield "the state is zero", zeros
    yield from _of_rejected_drafts(reference, row, count)
    yield from _of_lost_tokens(trace, reference, row, at)
    for step in trace.steps:
        for stranger in step.rows:
            if stranger.request != row.request and stranger.state is not None and step.index == at.step:
                foreign = reference.replay(stranger.request).states
                if stranger.state.tokens_included in foreign:
                    yield (
                        f"the state belongs to request {stranger.request}",
                        foreign[stranger.state.tokens_included],
                    )


def _of_rejected_drafts(reference: Reference, row: RowTrace, count: int) -> Iterator[tuple[str, State]]:
    """The row's drafts beyond the accepted ones, folded in one by one."""
    rejected = reference.known(row.kept[row.accepted - 1 :]) if row.accepted else ()
    if not row.prompt_tokens and rejected:
        states = reference.fork(row.request, count, rejected).states
        for j in range(1, len(rejected) + 1):
            yield f"the state includes {j} rejected draft{'s' * (j > 1)}", states[count + j]


def _of_lost_tokens(
    trace: Trace, reference: Reference, row: RowTrace, at: Coordinate
) -> Iterator[tuple[str, State]]:
    """The row started from a state that lagged: the tokens accepted last are missing, this row's are there.

    Only the recurrence of the first linear layer can be told exactly: deeper inputs depend on its output. The history
    is folded without the lost tokens, which changes no input of the first layer but their own.
    """
    if row.prompt_tokens:
        return
    start = row.num_computed - row.accepted
    history = reference.histories[row.request]
    for lost in range(1, row.previous_accepted):
        kept = [*history[: start - lost], *history[start : row.num_computed]]
        fold = reference.fork(row.request, start - lost, history[start : row.num_computed])
        yield (
            f"the state lost the last {lost} accepted token{'s' * (lost > 1)} before this step",
            fold.states[len(kept)],
        )


def _mixture(
    trace: Trace, reference: Reference, row: RowTrace, at: Coordinate, threshold: float
) -> str | None:
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
    return (
        f"tokens of several rows are mixed: the columns hold {' '.join(held)}, expected {' '.join(expected)}"
    )


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


def _pick(state: State | LayerState, tensor: str, layer: int) -> Array:
    picked: Array = state.conv[layer] if tensor == "conv" else state.recurrent[layer]
    return picked


def _residual(seen: Array, hypothesis: Array) -> float:
    axes = tuple(range(seen.ndim))
    return float(relative_rms(hypothesis, seen, axes))
