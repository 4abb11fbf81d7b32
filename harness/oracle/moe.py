"""Qwen3-Next's feed-forward block: the top few of many experts, and a shared expert behind a sigmoid gate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.oracle.functions import Array, Ints, sigmoid, silu, softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """A gated feed-forward network: down(silu(gate x) * up x)."""

    gate: Array  # [width, hidden]
    up: Array  # [width, hidden]
    down: Array  # [hidden, width]

    def __call__(self, x: Array) -> Array:
        return (silu(x @ self.gate.T) * (x @ self.up.T)) @ self.down.T


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Router, E routed experts, and the shared one with its gate."""

    router: Array  # [E, hidden]
    routed: tuple[Expert, ...]  # E of them
    shared: Expert
    shared_gate: Array  # [1, hidden]
    top_k: int
    renormalise: bool  # the chosen experts' weights sum to one


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which experts each token used, and by what margin: across a tiny gap rounding may route otherwise."""

    experts: Ints  # [T, top_k], largest weight first; equal weights go to the smaller id
    gap: Array  # [T] probability of the last expert in minus that of the first one out; 1 if none is out


def mix(x: Array, layer: Experts) -> tuple[Array, Routing]:
    """x [T, hidden], normed -> the block's output [T, hidden] and its routing."""
    probability = softmax(x @ layer.router.T)  # [T, E]
    order = np.argsort(-probability, axis=-1, kind="stable")
    ranked = np.take_along_axis(probability, order, axis=-1)
    chosen, weight = order[:, : layer.top_k], ranked[:, : layer.top_k]
    if layer.renormalise:
        weight = weight / weight.sum(axis=-1, keepdims=True)

    y = sigmoid(x @ layer.shared_gate.T) * layer.shared(x)
    for e in np.unique(chosen):
        token, rank = np.nonzero(chosen == e)
        y[token] += weight[token, rank, None] * layer.routed[e](x[token])

    out = layer.top_k < len(layer.routed)
    gap = ranked[:, layer.top_k - 1] - ranked[:, layer.top_k] if out else np.ones(len(x))
    return y, Routing(experts=chosen, gap=gap)
