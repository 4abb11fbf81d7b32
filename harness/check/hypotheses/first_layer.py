"""The first linear layer by itself: it reads embeddings, so mistakes in what it is fed are told exactly and cheaply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.oracle import gdn
from harness.oracle.functions import Array, rms_norm
from harness.oracle.gdn import DeltaNet, Inputs
from harness.oracle.model import Oracle


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLayer:
    """Layer 0 of a model that begins with a linear layer."""

    oracle: Oracle
    mixer: DeltaNet

    @staticmethod
    def of(oracle: Oracle) -> FirstLayer | None:
        """The layer; ``None`` where the model begins with attention."""
        mixer = oracle.weights.layers[0].mixer
        return FirstLayer(oracle=oracle, mixer=mixer) if isinstance(mixer, DeltaNet) else None

    def read(self, tokens: Sequence[int], conv: Array) -> Inputs:
        """What ``tokens`` [T] bring to the recurrence, after a convolution history [W - 1, D]."""
        return gdn.read(self._normed(tokens), self.mixer, conv)

    def columns(self, tokens: Sequence[int]) -> Array:
        """The convolution inputs of tokens, ``[T, D]``."""
        return self._normed(tokens) @ self.mixer.qkv.T

    def fold(self, recurrent: Array, fed: Inputs) -> Array:
        """The recurrent state after all of ``fed``."""
        for t in range(len(fed.k)):
            recurrent = self.step(recurrent, fed, t)
        return recurrent

    def step(self, recurrent: Array, fed: Inputs, t: int) -> Array:
        """The recurrent state after token t of ``fed`` too."""
        return gdn.delta_rule(recurrent, fed.q[t], fed.k[t], fed.v[t], fed.g[t], fed.beta[t])[0]

    def after(self, tokens: Sequence[int], conv: Array, recurrent: Array) -> tuple[Array, Array]:
        """Convolution history and recurrent state after ``tokens``."""
        fed = self.read(tokens, conv)
        return fed.window[len(tokens) :], self.fold(recurrent, fed)

    def _normed(self, tokens: Sequence[int]) -> Array:
        weights = self.oracle.weights
        x = weights.embedding[np.asarray(tokens, dtype=np.int64).reshape(-1)]
        return rms_norm(x, weights.layers[0].input_norm, weights.config.eps)


def pick(fed: Inputs, order: Sequence[int]) -> Inputs:
    """The inputs of tokens in another order, or of some of them; the window stays."""
    index = list(order)
    return replace(fed, q=fed.q[index], k=fed.k[index], v=fed.v[index], g=fed.g[index], beta=fed.beta[index])


def join(parts: Sequence[Inputs]) -> Inputs:
    """The inputs of several rows behind one another; the window is the first's."""
    return replace(
        parts[0],
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("q", "k", "v", "g", "beta")
        },
    )
