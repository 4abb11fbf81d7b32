"""The threshold, measured: above the noise of the target, below the smallest fault.

Noise is an A/A run: the same committed tokens go through the target twice without speculation, in two batch
compositions (one token a step, all requests together; in pieces of a prompt), so neither run touches what is judged.
Signal is the smallest fault there is, a state that lags by one token, as the oracle itself sees it on the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from harness.check.distance import conv_error, logits_error, recurrent_error
from harness.oracle.model import Oracle
from harness.scenario import Request, Scenario, Turn
from harness.trace import RowTrace, Trace

LEAST_RATIO = 5.0
"""A gate whose signal is less than this much above its noise decides nothing."""
FLOAT32_STEP = 2.0**-24
"""Two runs that agree bit for bit have still rounded: no noise is taken to be less than half a float32 step."""
NEAR_TIE = 10.0
"""Two choices that differ by less than this many times the noise are a near tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Noise and signal of one kind of tensor, as relative RMS."""

    noise: float
    signal: float

    @property
    def threshold(self) -> float:
        """The geometric middle of noise and signal."""
        return sqrt(self.noise * self.signal)

    @property
    def ratio(self) -> float:
        """Signal over noise."""
        return self.signal / self.noise

    @property
    def decides(self) -> bool:
        """Whether signal and noise are far enough apart to judge by."""
        return self.ratio >= LEAST_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What states and logits are judged by."""

    state: Gauge
    logits: Gauge


def plain_pair(scenario: Scenario, histories: dict[str, Sequence[int]], piece: int) -> tuple[Scenario, Scenario]:
    """Two drafts-free scenarios over the same histories: token by token together, and in pieces of ``piece`` tokens."""
    prompts = {request.id: len(request.prompt) for request in scenario.requests}
    used = [request for request in scenario.requests if len(histories[request.id]) > prompts[request.id]]
    longest = max(len(histories[request.id]) for request in used) + 1
    base = replace(
        scenario,
        k=0,
        script=None,
        capture_sizes=(),
        must_observe={},
        documented={},
        max_model_len=max(scenario.max_model_len, longest + 1),
    )
    together = replace(
        base,
        name=f"{scenario.name}: token by token",
        token_budget=max(scenario.token_budget, sum(prompts.values())),
        requests=tuple(_free(request, arrival=0) for request in used),
        script={
            request.id: tuple(Turn(token=token) for token in histories[request.id][prompts[request.id] :])
            for request in used
        },
    )
    pieces = replace(
        base,
        name=f"{scenario.name}: in pieces",
        token_budget=piece,
        requests=tuple(_free(request, arrival=0, prompt=histories[request.id][:-1]) for request in used),
        script={request.id: (Turn(token=histories[request.id][-1]),) for request in used},
    )
    return together, pieces


def noise(first: Trace, second: Trace) -> tuple[float, float]:
    """Largest state and logits difference of two traces at equal (request, tokens in cache)."""
    rows = {(row.request, row.num_computed): row for row in _rows(first)}
    pairs = [(row, rows[key]) for row in _rows(second) if (key := (row.request, row.num_computed)) in rows]
    state = max((_state_error(*pair) for pair in pairs), default=0.0)
    logits = max((_last_logits_error(*pair) for pair in pairs), default=0.0)
    return max(state, FLOAT32_STEP), max(logits, FLOAT32_STEP)


def lag_signal(oracle: Oracle, histories: Iterable[tuple[int, Sequence[int]]], samples: int = 4) -> tuple[float, float]:
    """Smallest effect, on state and on logits, of a state that lags by one token.

    ``histories`` are (tokens of the prompt, all tokens); each is looked at in ``samples`` places of its answer.
    """
    effects = [
        _lag_effect(oracle, tokens, count)
        for prompt, tokens in histories
        for count in sorted({prompt + 1 + i * (len(tokens) - prompt - 1) // samples for i in range(samples)})
        if 1 < count < len(tokens)
    ]
    return min(effect[0] for effect in effects), min(effect[1] for effect in effects)


def _lag_effect(oracle: Oracle, tokens: Sequence[int], count: int) -> tuple[float, float]:
    """Effect of missing token ``count`` on the state after it and on the logits of the token that follows."""
    fold = oracle.fold()
    replay = fold.extend(tokens[:count], keep_states_at={count - 1, count})
    stale, live = replay.states[count - 1], replay.states[count]
    conv = conv_error(stale.conv, live.conv).max()
    recurrent = recurrent_error(stale.recurrent, live.recurrent).max()
    lagging = fold.with_state(stale).push(tokens[count]).logits
    logits = logits_error(lagging[None], fold.copy().push(tokens[count]).logits[None]).max()
    return float(max(conv, recurrent)), float(logits)


def _free(request: Request, *, arrival: int, prompt: Sequence[int] | None = None) -> Request:
    tokens = tuple(request.prompt if prompt is None else prompt)
    return replace(request, arrival=arrival, prompt=tokens, grammar=None, ignore_eos=True, max_tokens=10**6)


def _rows(trace: Trace) -> list[RowTrace]:
    return [row for step in trace.steps for row in step.rows]


def _state_error(a: RowTrace, b: RowTrace) -> float:
    assert a.state is not None and b.state is not None
    conv = conv_error(a.state.conv, b.state.conv).max()
    return float(max(conv, recurrent_error(a.state.recurrent, b.state.recurrent).max()))


def _last_logits_error(a: RowTrace, b: RowTrace) -> float:
    if a.logits is None or b.logits is None:
        return 0.0
    return float(logits_error(a.logits[-1:], b.logits[-1:]).max())
