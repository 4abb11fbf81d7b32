"""Activations and norms in float64, each along the last axis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + np.exp(-x))


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), exact for large x too."""
    return np.logaddexp(0.0, x)


def softmax(x: Array) -> Array:
    """Entries of -inf get probability 0; a row needs at least one finite entry."""
    e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = e.sum(axis=-1, keepdims=True)
    return e / total


def l2_norm(x: Array, eps: float = 1e-6) -> Array:
    """x / sqrt(sum x^2 + eps): eps stands under the root, as in flash-linear-attention's kernels."""
    length: Array = np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps)
    return x / length


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / rms(x) * weight. Qwen3-Next's zero-centred norms come with their 1 already added."""
    rms: Array = np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return x / rms * weight
