"""The threshold, measured: above the noise of the target, below the smallest fault.

Noise is an A/A run: the same committed tokens go through the target twice without speculation, in two batch
compositions (one token a step, all requests together; in pieces of a prompt), so neither run touches what is judged.
It is kept per layer and head, since a head that remembers for hundreds of tokens rounds differently from one that
forgets at once. Signal is the smallest fault there is, a state that lags by one token, as the oracle itself sees it on
the same tokens, in the place where it shows least. A layer or head that cannot tell the two apart judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from harness.check.distance import conv_error, logits_error, recurrent_error, rms
from harness.oracle.model import Oracle
from harness.trace import Array, RowTrace, Trace
from harness.verdict import Divergence

PRECISE = 1e-5
"""No threshold asks for more than this: what float32 engines reach against the float64 oracle."""
MOST_ABOVE = 10.0
"""Nor does any allow more than this many times the noise: a fault may be much smaller than a lost token."""
LEAST_RATIO = 5.0
"""A gate whose signal is less than this much above its noise decides nothing."""
FLOAT32_NOISE = 1e-6
"""No noise is taken to be less: float32 against the float64 oracle differs by up to 9.7e-7 even where two float32
runs agree bit for bit (measured: 16 natural requests of 96 tokens, every layer and head)."""
LEAST_SIZE = 0.1
"""A state smaller than this share of its head's usual one is held against that: what cancelled on the way to it leaves
its rounding error behind (measured: 1.05e-5 after one token in a state of 1/50 of the usual size, 1.6e-7 of that)."""
NEAR_TIE = 10.0
"""Two choices that differ by less than this many times the noise are a near tie."""
AFTERMATH = 4
"""Tokens over which a lagging state is looked for in the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """What one kind of tensor is judged by, as relative RMS: noise and signal of each layer, or layer and head.

    ``signal`` is the effect of the least fault in the place where that coordinate shows it least.
    """

    noise: tuple[float, ...]
    signal: tuple[float, ...]

    @property
    def ratios(self) -> Array:
        """Signal over noise by coordinate; 0 where the noise is not finite."""
        noise = np.asarray(self.noise)
        return np.where(np.isfinite(noise), np.asarray(self.signal) / noise, 0.0)

    @property
    def ratio(self) -> float:
        """Signal over noise of the coordinate that decides best."""
        return float(self.ratios.max())

    @property
    def decides(self) -> bool:
        """Whether any coordinate can be judged by."""
        return self.ratio >= LEAST_RATIO

    @property
    def blind(self) -> int:
        """Coordinates that are too noisy to judge by."""
        return int(np.sum(self.ratios < LEAST_RATIO))

    @property
    def thresholds(self) -> Array:
        """What is allowed at each coordinate: the middle of noise and signal, and never far above the noise."""
        noise = np.asarray(self.noise)
        middle = noise * np.sqrt(np.maximum(self.ratios, 1.0))
        allowed = np.minimum(middle, np.maximum(PRECISE, MOST_ABOVE * noise))
        return np.where(self.ratios >= LEAST_RATIO, allowed, np.inf)

    @property
    def least_noise(self) -> float:
        """Noise where the gauge decides best."""
        return self.noise[int(self.ratios.argmax())]

    @property
    def least_signal(self) -> float:
        """Signal there."""
        return self.signal[int(self.ratios.argmax())]

    @property
    def largest_noise(self) -> float:
        """Noise of the noisiest coordinate."""
        return max(self.noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """One for each kind of tensor."""

    conv: Gauge  # by layer
    recurrent: Gauge  # by layer and head
    logits: Gauge  # one coordinate
    usual: tuple[float, ...] = (0.0,)  # RMS of the oracle's recurrent states by layer and head: the median
    plain: Divergence | None = None  # where the target leaves the oracle without any speculation

    @property
    def least(self) -> Array:
        """Below it a recurrent state is too small to be its own measure, by layer and head."""
        return LEAST_SIZE * np.asarray(self.usual)

    @property
    def state(self) -> Gauge:
        """The one of the two state gauges that decides less well."""
        return min(self.conv, self.recurrent, key=lambda gauge: gauge.ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative RMS of a row: convolution by layer ``[L]``, recurrence by layer and head ``[L, HV]``, last logits."""

    conv: Array
    recurrent: Array
    logits: float


def measure(
    oracle: Oracle,
    pair: tuple[Trace, Trace],
    histories: Iterable[tuple[int, Sequence[int]]],
    trusted: Mapping[str, int],
) -> Gauges:
    """Gauges from an A/A pair of traces, and from (tokens of the prompt, all tokens) of the same requests.

    ``trusted`` is, for each request, the number of tokens up to which no router tie sets the two runs apart.

    Where there is nothing to measure on, a suspect that died early, the gauges decide nothing.
    """
    noises = list(_differences(*pair, trusted))
    found = [
        _lag(oracle, tokens, count) for prompt, tokens in histories for count in _places(prompt, len(tokens))
    ]
    if not noises or not found:
        return unmeasured(oracle)
    lags, sizes = zip(*found, strict=True)
    return Gauges(
        conv=_gauge([e.conv for e in noises], [e.conv for e in lags]),
        recurrent=_gauge([e.recurrent for e in noises], [e.recurrent for e in lags]),
        logits=_gauge([np.array([e.logits]) for e in noises], [np.array([e.logits]) for e in lags]),
        usual=tuple(np.median(sizes, axis=0).ravel().tolist()),
    )


def unmeasured(oracle: Oracle) -> Gauges:
    """Gauges without a measurement: nothing is known of the noise, so nothing is decided."""

    def blind(coordinates: int) -> Gauge:
        return Gauge(noise=(inf,) * coordinates, signal=(0.0,) * coordinates)

    layers = len(oracle.config.linear_layers)
    return Gauges(conv=blind(layers), recurrent=blind(layers * oracle.config.value_heads), logits=blind(1))


def _gauge(noises: Sequence[Array], effects: Sequence[Array]) -> Gauge:
    noise = np.maximum(np.max(noises, axis=0), FLOAT32_NOISE).ravel()
    signal = np.min(effects, axis=0).ravel()
    return Gauge(noise=tuple(noise.tolist()), signal=tuple(signal.tolist()))


def _differences(first: Trace, second: Trace, trusted: Mapping[str, int]) -> Iterable[Errors]:
    """Errors between two traces at equal (request, tokens in cache)."""
    rows = {(row.request, row.num_computed): row for row in _rows(first)}
    for row in _rows(second):
        twin = rows.get((row.request, row.num_computed))
        if twin is None or twin.state is None or row.state is None or row.num_computed > trusted[row.request]:
            continue
        both = twin.logits is not None and row.logits is not None
        yield Errors(
            conv=conv_error(row.state.conv, twin.state.conv),
            recurrent=recurrent_error(row.state.recurrent, twin.state.recurrent),
            logits=float(logits_error(row.logits[-1:], twin.logits[-1:]).max()) if both else 0.0,  # type: ignore[index]
        )


def _places(prompt: int, end: int, samples: int = 4) -> list[int]:
    """Where in an answer a lag is tried: evenly, where a token comes before and after."""
    first, last = max(prompt, 2), end - 1
    return (
        sorted({first + i * (last - first) // max(samples - 1, 1) for i in range(samples)})
        if last >= first
        else []
    )


def _lag(oracle: Oracle, tokens: Sequence[int], count: int) -> tuple[Errors, Array]:
    """What it does to the state after ``count`` tokens, and to the logits soon after, to have missed the last one.

    And the recurrent state's RMS, ``[L, HV]``: the oracle's, since no suspect sets the size that it is held against.
    """
    fold = oracle.fold()
    states = fold.extend(tokens[:count], keep_states_at={count - 1, count}).states
    stale, live = states[count - 1], states[count]
    ahead = tokens[count : count + AFTERMATH]
    lagging = fold.with_state(stale).extend(ahead).logits
    errors = Errors(
        conv=conv_error(stale.conv, live.conv),
        recurrent=recurrent_error(stale.recurrent, live.recurrent),
        logits=float(logits_error(lagging, fold.copy().extend(ahead).logits).max()),
    )
    return errors, rms(live.recurrent, (2, 3))


def _rows(trace: Trace) -> list[RowTrace]:
    return [row for step in trace.steps for row in step.rows]
