"""How far two tensors are apart: relative RMS, the one measure that a lagging state cannot hide from.

Element-wise tolerances as upstream's tests use them (rtol 3e-2, atol 5e-2) pass a state that lags by a whole token.
"""

from __future__ import annotations

import numpy as np

from harness.trace import Array


def rms(values: Array, axes: tuple[int, ...]) -> Array:
    """Root of the mean square over ``axes``, in float64."""
    return np.asarray(np.sqrt(np.mean(np.square(values), axis=axes, dtype=np.float64)))


def relative_rms(actual: Array, expected: Array, axes: tuple[int, ...], least: Array | float = 0.0) -> Array:
    """RMS of the difference over RMS of ``expected``, or over ``least`` where that is more; over ``axes``.

    Infinite where both are zero and the difference is not.
    """
    difference, size = rms(actual - expected, axes), np.maximum(rms(expected, axes), least)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(difference == 0, 0.0, difference / size)
    return np.asarray(np.where(np.isnan(error), np.inf, error))


def conv_error(actual: Array, expected: Array) -> Array:
    """Per linear layer ``[L]``, of convolution histories ``[L, W - 1, D]``."""
    return relative_rms(actual, expected, (1, 2))


def recurrent_error(actual: Array, expected: Array, least: Array | float = 0.0) -> Array:
    """Per linear layer and head ``[L, HV]``, of recurrent states ``[L, HV, V, K]``; ``least`` has that shape."""
    return relative_rms(actual, expected, (2, 3), least)


def logits_error(actual: Array, expected: Array) -> Array:
    """Per position ``[T]``, of logits ``[T, vocab]``."""
    return relative_rms(actual, expected, (1,))
