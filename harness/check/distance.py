"""How far two tensors are apart: relative RMS, the one measure that a lagging state cannot hide from.

Element-wise tolerances as upstream's tests use them (rtol 3e-2, atol 5e-2) pass a state that lags by a whole token.
"""

from __future__ import annotations

import numpy as np

from harness.trace import Array


def relative_rms(actual: Array, expected: Array, axes: tuple[int, ...]) -> Array:
    """RMS of the difference over RMS of ``expected``, over ``axes``; infinite where only ``expected`` is zero."""
    difference = np.sqrt(np.mean(np.square(actual - expected), axis=axes, dtype=np.float64))
    size = np.sqrt(np.mean(np.square(expected), axis=axes, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(difference == 0, 0.0, difference / size)
    return np.asarray(np.where(np.isnan(error), np.inf, error))


def conv_error(actual: Array, expected: Array) -> Array:
    """Per linear layer ``[L]``, of convolution histories ``[L, W - 1, D]``."""
    return relative_rms(actual, expected, (1, 2))


def recurrent_error(actual: Array, expected: Array) -> Array:
    """Per linear layer and head ``[L, HV]``, of recurrent states ``[L, HV, V, K]``."""
    return relative_rms(actual, expected, (2, 3))


def logits_error(actual: Array, expected: Array) -> Array:
    """Per position ``[T]``, of logits ``[T, vocab]``."""
    return relative_rms(actual, expected, (1,))
