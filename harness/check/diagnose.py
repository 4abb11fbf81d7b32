"""Name the mistake: a wrong state is held against states that known mistakes would have left.

Nothing here knows which fault, if any, was injected.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.check.columns import read_columns
from harness.check.counts import reported_count, whose_count
from harness.check.crash import cause_of_crash
from harness.check.distance import relative_rms
from harness.check.gauge import Gauges
from harness.check.hypotheses import Hypothesis, Scene, hypotheses
from harness.check.logits import cause_of_logits
from harness.check.poison import unwritten
from harness.check.reference import Reference
from harness.oracle.model import State
from harness.trace import Array, Coordinate, LayerState, RowTrace, Trace
from harness.verdict import Divergence

AGES = ("lags", "leads", "zero", "stale snapshot", "row cut short")
"""Classes that say how old a state is."""
AS_GOOD = 1.05
"""Of hypotheses whose residuals differ by less than this factor, the simplest counts."""
SMALL = 1e-2
"""Relative RMS up to which an error may be one of precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The class of the mistake (``None``: none fits) and how it reads, with the next best explanation."""

    cause: str | None
    words: str


def name_it(first: Divergence, trace: Trace, reference: Reference, gauges: Gauges) -> Divergence:
    """The first divergence of a run with its cause, where its check has not said one."""
    found: Diagnosis | tuple[str, str] | None = None
    if first.cause is not None:
        return first
    if first.kind == "state" and first.threshold is not None:
        found = diagnose(trace, reference, first.at, first.threshold)
    elif first.kind == "logits":
        found = cause_of_logits(trace, reference, first.at, float(gauges.logits.thresholds[0]))
    elif first.kind == "crash" and trace.crash is not None:
        found = cause_of_crash(trace.crash)
    if found is None:
        return first
    cause, words = found if isinstance(found, tuple) else (found.cause, found.words)
    return replace(first, cause=cause, diagnosis=words)


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
    if (value := float(seen.flat[0])) and (seen == value).all():
        place = unwritten(value)
        slot = "" if place is None else f", the first content of slot {place}"
        words = f"all numbers are {value:g}{slot}: memory that nobody wrote"
        return Diagnosis(cause="unwritten memory", words=words)
    scene = Scene(trace=trace, reference=reference, step=at.step, row=row)
    ranked = [(_residual(seen, _pick(h, at.tensor, layer)), h) for h in hypotheses(scene)]
    least = min(residual for residual, _ in ranked)
    fitting = [entry for entry in ranked if entry[0] <= least * AS_GOOD]
    residual, best = next((e for e in fitting if _fits_both(row.state, e[1], layer, threshold)), fitting[0])
    if counted := reported_count(scene):
        return Diagnosis(
            cause=counted[0], words=f"{counted[1]}; nearest: {best.words} (residual {residual:.2g})"
        )
    if residual > threshold:
        return _otherwise(scene, at, layer, seen, threshold) or Diagnosis(
            cause=None, words=f"no known mistake fits; nearest: {best.words} (residual {residual:.2g})"
        )
    other = min(
        (entry for entry in ranked if entry[1].cause != best.cause), key=lambda entry: entry[0], default=None
    )
    beside = f"; next best: {other[1].words} ({other[0]:.2g})" if other else ""
    cause, words = _refined(scene, at, layer, best)
    return Diagnosis(cause=cause, words=f"{words} (residual {residual:.2g}{beside})")


def _fits_both(state: LayerState, hypothesis: Hypothesis, layer: int, threshold: float) -> bool:
    """Whether a hypothesis explains both tensors of a layer."""
    return all(
        _residual(_pick(state, tensor, layer), _pick(hypothesis, tensor, layer)) <= threshold
        for tensor in ("conv", "recurrent")
    )


def _refined(scene: Scene, at: Coordinate, layer: int, best: Hypothesis) -> tuple[str, str]:
    """What the rest of the state, or of the step, adds to the best explanation of one tensor."""
    if best.cause in AGES:
        state = scene.row.state
        assert state is not None
        other = "recurrent" if at.tensor == "conv" else "conv"
        names = {"conv": "convolution", "recurrent": "recurrence"}
        if _nearer(state, scene, best, other, layer):
            words = f"{best.words} in the {names[at.tensor]}, and the {names[other]} is right"
            return "convolution and recurrence disagree", words
        if layer and all(_nearer(state, scene, best, tensor, layer - 1) for tensor in names):
            return "layers disagree", f"{best.words} in layer {at.layer}, and the layer before is right"
    if best.used is not None and (whose := whose_count(scene, best.used)):
        return whose[0], f"{best.words}: {whose[1]}"
    return best.cause, best.words


def _nearer(state: LayerState, scene: Scene, best: Hypothesis, tensor: str, layer: int) -> bool:
    """Whether a tensor is nearer to the right one than to a hypothesis."""
    seen = _pick(state, tensor, layer)
    return _residual(seen, _pick(scene.live, tensor, layer)) < _residual(seen, _pick(best, tensor, layer))


def _otherwise(scene: Scene, at: Coordinate, layer: int, seen: Array, threshold: float) -> Diagnosis | None:
    """What can be said of a tensor that no hypothesis explains."""
    follows = at.layer - 1 in scene.trace.linear_layers  # and that one's states are right
    if at.tensor == "conv" and (read := read_columns(scene, layer, seen, threshold)):
        if follows:
            words = f"layer {at.layer - 1} is right, in layer {at.layer} {read[1]}"
            return Diagnosis(cause="layers disagree", words=words)
        return Diagnosis(cause=read[0], words=read[1])
    live = _pick(scene.live, at.tensor, layer)
    error = np.abs(seen - live)
    size = float(np.sqrt(np.mean(np.square(error))))
    whole = float(np.sqrt(np.mean(np.square(live))))
    if size < SMALL * whole and np.mean(error > size / 100) > 0.5:
        words = f"nearly right everywhere: off by {size / whole:.2g} of its size, as with less precision"
        return Diagnosis(cause="rounded", words=words)
    if layer:
        before = at.layer - 1
        what = f"linear layer {before}" if follows else f"attention layer {before}"
        words = f"the states of all layers before are right: what {what} put out is not, or was read wrongly"
        cause = "wrong inputs" if follows else "attention"
        return Diagnosis(cause=cause, words=words)
    return None


def _row(trace: Trace, at: Coordinate) -> RowTrace | None:
    rows = (
        row for step in trace.steps if step.index == at.step for row in step.rows if row.request == at.request
    )
    return next(rows, None)


def _pick(state: Hypothesis | LayerState | State, tensor: str, layer: int) -> Array:
    picked: Array = state.conv[layer] if tensor == "conv" else state.recurrent[layer]
    return picked


def _residual(seen: Array, hypothesis: Array) -> float:
    axes = tuple(range(seen.ndim))
    return float(relative_rms(hypothesis, seen, axes))
