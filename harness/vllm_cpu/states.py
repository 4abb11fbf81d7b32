"""Recorded states of a live vLLM beside the float64 oracle's, on the same weights and the same tokens.

The threshold is measured as everywhere (``check/gauge.py``), except that one run without speculation is the noise: its
distance to the oracle is what bf16 activations cost, experts that flip at a near tie in the router included. Signal is
a state that lags by one token, as the oracle sees it in the place where it shows least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from harness.check.distance import relative_rms
from harness.check.gauge import LEAST_RATIO, Gauge
from harness.oracle.model import Oracle, State
from harness.trace import Array, Coordinate
from harness.verdict import Divergence, Verdict
from harness.vllm_cpu.recording import Recording, Row

LEAST_STEPS = 20
"""Steps with unequal rows and mixed accepted counts that a recording must hold to say anything."""
MOST_NOISE = 2.0**-4
"""Relative RMS that bf16 activations excuse: 16 of its rounding steps; measured are 0.002 to 0.021."""
_PLACES = 4  # of each answer, where a lag is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check came to: a verdict, a sentence for people, and the figures behind it."""

    verdict: Verdict
    text: str
    figures: Mapping[str, float | int | str | None] = field(default_factory=dict)
    divergences: tuple[Divergence, ...] = ()  # earliest first


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGauges:
    """What is allowed: convolution by layer, recurrence by layer and head."""

    conv: Gauge
    recurrent: Gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What a recording holds, counted over speculative rows whose outcome a later row shows."""

    steps: int
    unequal: int  # steps whose rows have different lengths
    mixed: int  # steps in which different numbers of tokens were accepted
    both: int
    rolled_back: int  # rows that committed less than they fed
    outgrown: (
        int  # rows shorter than the accepted count they start from, which is what kills vLLM as released
    )


def measure(plain: Recording, oracle: Oracle) -> StateGauges:
    """Gauges from a run without speculation."""
    noises = [errors for _, errors in _compared(plain, oracle)]
    signals = [
        _errors(*states[count - 1], *states[count])
        for name in plain.by_request()
        for states, count in _lags(plain.histories[name], oracle, plain.every)
    ]

    def gauge(part: int) -> Gauge:
        noise = np.max([errors[part] for errors in noises], axis=0).ravel()
        signal = np.min([errors[part] for errors in signals], axis=0).ravel()
        return Gauge(noise=tuple(noise.tolist()), signal=tuple(signal.tolist()))

    return StateGauges(conv=gauge(0), recurrent=gauge(1))


def judge_plain(gauges: StateGauges) -> Finding:
    """Whether vLLM without speculation agrees with the oracle as far as its precision goes."""
    most = max(gauges.conv.largest_noise, gauges.recurrent.largest_noise)
    verdict = Verdict.PASS if most <= MOST_NOISE else Verdict.FAIL
    text = f"without speculation, states differ from the oracle by at most {most:.2g} (bf16 excuses {MOST_NOISE:.2g})"
    return Finding(verdict=verdict, text=text, figures=_figures(gauges))


def judge(recording: Recording, gauges: StateGauges, oracle: Oracle) -> Finding:
    """Every recorded state against the oracle, every accepted count against the tokens in cache."""
    found = _count_divergences(recording)
    largest, compared = {"conv": 0.0, "recurrent": 0.0}, 0
    allowed = {"conv": gauges.conv.thresholds, "recurrent": gauges.recurrent.thresholds}
    for row, errors in _compared(recording, oracle):
        compared += 1
        for tensor, error in zip(allowed, errors, strict=True):
            largest[tensor] = max(largest[tensor], float(error.max()))
            found += _over(row, recording.layers, tensor, error, allowed[tensor].reshape(error.shape))
    found.sort(key=lambda divergence: divergence.at)
    seen = coverage(recording)
    figures = _figures(gauges) | {
        "states compared": compared,
        "rows dropped": recording.dropped,
        "steps with speculative rows": seen.steps,
        "steps with unequal rows": seen.unequal,
        "steps with mixed accepted counts": seen.mixed,
        "steps with both": seen.both,
        "rows rolled back": seen.rolled_back,
        "rows shorter than their accepted count": seen.outgrown,
        "largest convolution error": largest["conv"],
        "largest recurrent error": largest["recurrent"],
    }
    return Finding(
        verdict=_verdict(found, seen, gauges),
        text=_text(found, seen, gauges, compared),
        figures=figures,
        divergences=tuple(found),
    )


def judge_power(shifted: Recording, gauges: StateGauges, oracle: Oracle) -> Finding:
    """Whether the check sees an accepted count that was shifted on purpose, in the very step that reads by it."""
    first = next((d for d in judge(shifted, gauges, oracle).divergences if d.kind == "state"), None)
    figures = {"step of the shift": shifted.shifted, "step found": first.at.step if first else None}
    if shifted.shifted is None:
        text = "no row could be told a smaller accepted count, so the check was not put to the test"
        return Finding(verdict=Verdict.INCONCLUSIVE, text=text, figures=figures)
    if first is None or first.at.step != shifted.shifted:
        text = f"an accepted count shifted on purpose in step {shifted.shifted} was not seen there"
        return Finding(verdict=Verdict.INCONCLUSIVE, text=text, figures=figures)
    told = f"{first.told}, {first.error:.2g} where {first.threshold:.2g} is allowed"
    text = f"an accepted count shifted on purpose is caught: {told}"
    return Finding(verdict=Verdict.PASS, text=text, figures=figures | {"error found": first.error})


def coverage(recording: Recording) -> Coverage:
    """How much of what is to be tested a recording holds."""
    outcomes = defaultdict(list)  # step -> (tokens of the row, tokens committed by it)
    for rows in recording.by_request().values():
        for row, after in pairwise(rows):
            if row.speculative:
                outcomes[row.step].append((row.tokens, after.accepted))
    unequal = {step for step, rows in outcomes.items() if len({tokens for tokens, _ in rows}) > 1}
    mixed = {step for step, rows in outcomes.items() if len({accepted for _, accepted in rows}) > 1}
    return Coverage(
        steps=len(outcomes),
        unequal=len(unequal),
        mixed=len(mixed),
        both=len(unequal & mixed),
        rolled_back=sum(accepted < tokens for rows in outcomes.values() for tokens, accepted in rows),
        outgrown=sum(row.accepted > row.tokens for row in recording.rows),
    )


def _compared(recording: Recording, oracle: Oracle) -> Iterator[tuple[Row, tuple[Array, Array]]]:
    """Every row with its errors, by request; a row that claims tokens which are not there is left to the counts."""
    for name, rows in recording.by_request().items():
        history = recording.histories[name]
        there = [row for row in rows if row.computed <= len(history)]
        states = _states(history, {row.computed for row in there}, oracle, recording.every)
        for row in there:
            yield row, _errors(row.conv, row.recurrent, *states[row.computed])


def _states(
    tokens: tuple[int, ...], counts: set[int], oracle: Oracle, every: int
) -> dict[int, tuple[Array, Array]]:
    """The oracle's histories and states after so many tokens, as much of them as was recorded."""
    states = oracle.fold().extend(tokens, keep_states_at=counts).states
    return {count: _sample(state, every) for count, state in states.items()}


def _sample(state: State, every: int) -> tuple[Array, Array]:
    """``[L, (W - 1) D / every]`` and ``[L, HV, V K / every]``."""
    layers, heads = state.recurrent.shape[:2]
    return state.conv.reshape(layers, -1)[:, ::every], state.recurrent.reshape(layers, heads, -1)[
        :, :, ::every
    ]


def _lags(
    tokens: tuple[int, ...], oracle: Oracle, every: int
) -> Iterator[tuple[dict[int, tuple[Array, Array]], int]]:
    counts = {int(count) for count in np.linspace(2, len(tokens) - 1, _PLACES)} if len(tokens) > 2 else set()
    states = _states(tokens, counts | {count - 1 for count in counts}, oracle, every)
    yield from ((states, count) for count in sorted(counts))


def _errors(conv: Array, recurrent: Array, conv_then: Array, recurrent_then: Array) -> tuple[Array, Array]:
    """Relative RMS by layer ``[L]``, and by layer and head ``[L, HV]``."""
    return relative_rms(conv, conv_then, (1,)), relative_rms(recurrent, recurrent_then, (2,))


def _over(
    row: Row, layers: tuple[int, ...], tensor: str, error: Array, allowed: Array
) -> Iterator[Divergence]:
    """The layers in which a row exceeds what is allowed, each with its worst head."""
    for index, layer in enumerate(layers):
        ratios = np.atleast_1d(error[index] / allowed[index])
        head = int(ratios.argmax())
        if ratios[head] > 1:
            yield Divergence(
                kind="state",
                at=Coordinate(
                    step=row.step,
                    layer=layer,
                    tensor=tensor,
                    request=row.request,
                    head=head if tensor == "recurrent" else -1,
                ),
                message=f"after {row.computed} tokens, read by an accepted count of {row.accepted}",
                error=float(np.atleast_1d(error[index])[head]),
                threshold=float(np.atleast_1d(allowed[index])[head]),
            )


def _count_divergences(recording: Recording) -> list[Divergence]:
    """Rows whose accepted count is not what the request has gained in tokens since its last row."""
    found = []
    for name, rows in recording.by_request().items():
        for row, after in pairwise(rows):
            gained = after.computed - row.computed
            fed = after.accepted if row.speculative else row.tokens
            if gained != fed or after.computed > len(recording.histories[name]):
                where = Coordinate(step=after.step, tensor="accepted", request=name)
                message = f"{gained} tokens more in cache, but the layers were told {fed}"
                found.append(Divergence(kind="ledger", at=where, message=message))
    return found


def _verdict(found: list[Divergence], seen: Coverage, gauges: StateGauges) -> Verdict:
    if found:
        return Verdict.FAIL
    enough = seen.both >= LEAST_STEPS and gauges.conv.decides and gauges.recurrent.decides
    return Verdict.PASS if enough else Verdict.INCONCLUSIVE


def _text(found: list[Divergence], seen: Coverage, gauges: StateGauges, compared: int) -> str:
    told = f"{compared} states compared, {seen.both} steps with unequal rows and mixed accepted counts"
    if found:
        first = found[0]
        size = "" if first.error is None else f" ({first.error:.2g}, allowed {first.threshold:.2g})"
        return f"{told}; {first.told} differs{size}: {first.message}"
    if seen.both < LEAST_STEPS:
        return f"{told}, but at least {LEAST_STEPS} are needed"
    for name, gauge in (("convolution", gauges.conv), ("recurrence", gauges.recurrent)):
        if not gauge.decides:
            return f"{told}; signal of the {name} is only {gauge.ratio:.1f} times its noise ({LEAST_RATIO} are needed)"
    return f"{told}; none differs from the oracle by more than its noise allows"


def _figures(gauges: StateGauges) -> dict[str, float | int | str | None]:
    figures: dict[str, float | int | str | None] = {}
    for name, gauge in (("convolution", gauges.conv), ("recurrent", gauges.recurrent)):
        figures |= {
            f"{name} noise, largest": gauge.largest_noise,
            f"{name} signal, least": min(gauge.signal),
            f"{name} signal over noise, best": gauge.ratio,
            f"{name} gates that judge": len(gauge.noise) - gauge.blind,
            f"{name} gates that are too noisy": gauge.blind,
        }
    return figures
