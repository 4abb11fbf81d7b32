"""Thresholds are measured: noise from an A/A pair, signal from the least fault, and both where they should lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.check.distance import conv_error, logits_error, recurrent_error, relative_rms
from harness.check.gauge import FLOAT32_NOISE, LEAST_RATIO, MOST_ABOVE, PRECISE, Gauge, Gauges, measure
from harness.check.plain import plain_pair
from harness.lab import Lab, Plan
from harness.oracle.model import Oracle
from harness.run import Judge
from harness.scenario import Scenario
from harness.targets.embedded import EmbeddedTarget, under_each_variant
from harness.trace import Crash, RowTrace, Trace
from harness.verdict import Verdict

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One scenario of free and guided requests, the oracle, and a target per dtype of the state."""

    scenario: Scenario
    oracle: Oracle
    judge: Judge
    targets: dict[str, EmbeddedTarget]

    def run(self, dtype: str) -> tuple[Trace, Gauges]:
        trace = self.targets[dtype].run(self.scenario)
        return trace, self.judge.calibrate(self.targets[dtype], self.scenario, trace)

    @property
    def all_trusted(self) -> dict[str, int]:
        """No router tie anywhere."""
        return {name: len(tokens) for name, tokens in self.histories().items()}

    def histories(self) -> dict[str, list[int]]:
        assert self.scenario.script is not None
        return {
            request.id: [
                *request.prompt,
                *(token for turn in self.scenario.script[request.id] for token in turn.committed),
            ]
            for request in self.scenario.requests
        }


@pytest.fixture(scope="module")
def bench(peaked: Path) -> Bench:
    lab = Lab(peaked, FIXTURES)
    plans = {f"r{i}": Plan(guided=i == 1, prompt=5 + 4 * i, turns=lab.chain(8, k=3)) for i in range(3)}
    oracle = Oracle.load(peaked)
    return Bench(
        scenario=lab.forced("gauged", k=3, plans=plans),
        oracle=oracle,
        judge=Judge(peaked, oracle),
        targets={
            dtype: under_each_variant(peaked, kernels="naive", state_dtype=dtype)("fixed")
            for dtype in ("float32", "bfloat16")
        },
    )


@pytest.fixture(scope="module")
def float32(bench: Bench) -> tuple[Trace, Gauges]:
    return bench.run("float32")


@pytest.fixture(scope="module")
def bfloat16(bench: Bench) -> tuple[Trace, Gauges]:
    return bench.run("bfloat16")


def of_all(gauges: Gauges) -> list[Gauge]:
    return [gauges.conv, gauges.recurrent, gauges.logits]


def test_two_equal_runs_give_the_floor_and_never_zero(bench: Bench, float32: tuple[Trace, Gauges]) -> None:
    """A noise of zero would call any rounding a fault."""
    trace, _ = float32
    histories = bench.histories()
    used = [(len(request.prompt), histories[request.id]) for request in bench.scenario.requests]
    gauges = measure(bench.oracle, (trace, trace), used, bench.all_trusted)
    for gauge in of_all(gauges):
        assert set(gauge.noise) == {FLOAT32_NOISE}
        assert gauge.least_noise == FLOAT32_NOISE
        assert gauge.decides


def test_noise_is_kept_by_layer_and_head(bench: Bench, bfloat16: tuple[Trace, Gauges]) -> None:
    _, gauges = bfloat16
    layers, heads = len(bench.oracle.config.linear_layers), bench.oracle.config.value_heads
    assert len(gauges.conv.noise) == layers
    assert len(gauges.recurrent.noise) == layers * heads
    assert len(gauges.logits.noise) == 1
    assert len(set(gauges.recurrent.noise)) > layers


def test_in_float32_the_least_fault_is_a_thousand_times_the_noise(float32: tuple[Trace, Gauges]) -> None:
    _, gauges = float32
    assert gauges.state.ratio >= 1000
    assert gauges.logits.ratio >= 1000


def test_a_bfloat16_state_is_noisier_and_still_decides(
    float32: tuple[Trace, Gauges], bfloat16: tuple[Trace, Gauges]
) -> None:
    (_, exact), (_, coarse) = float32, bfloat16
    assert min(coarse.recurrent.noise) > 100 * max(exact.recurrent.noise)
    assert coarse.logits.largest_noise > exact.logits.largest_noise
    assert coarse.state.ratio >= 10
    assert coarse.state.ratio < exact.state.ratio


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_correct_run_passes_by_its_own_gauge_and_a_lag_of_one_token_does_not(
    bench: Bench, dtype: str, request: pytest.FixtureRequest
) -> None:
    trace, gauges = request.getfixturevalue(dtype)
    assert bench.judge.judge(bench.scenario, trace, gauges).verdict is Verdict.PASS
    history = bench.histories()["r0"]
    for step in trace.steps[1:]:
        (row,) = [row for row in step.rows if row.request == "r0"]
        count = row.num_computed
        stale = bench.oracle.fold().extend(history[: count - 1], keep_states_at={count - 1}).states[count - 1]
        assert row.state is not None
        lagging = replace(row.state, conv=stale.conv, recurrent=stale.recurrent)
        steps = [
            replace(s, rows=tuple(replace(r, state=lagging) if r is row else r for r in s.rows))
            for s in trace.steps
        ]
        first = bench.judge.judge(bench.scenario, replace(trace, steps=tuple(steps)), gauges).first
        assert first is not None
        assert (first.kind, first.at.step, first.at.request) == ("state", step.index, "r0")


def test_a_bfloat16_state_fails_by_the_gauge_of_float32(
    bench: Bench, float32: tuple[Trace, Gauges], bfloat16: tuple[Trace, Gauges]
) -> None:
    """The gauges belong to what they were measured on: this is how much more a float32 run sees."""
    judgement = bench.judge.judge(bench.scenario, bfloat16[0], float32[1])
    assert judgement.verdict is Verdict.FAIL
    assert judgement.first is not None
    assert judgement.first.at.tensor == "recurrent"


def test_thresholds_lie_between_noise_and_signal_and_never_far_above_the_noise() -> None:
    gauge = Gauge(noise=(1e-6, 1e-6, 4e-3, 1e-2, np.inf), signal=(1e-2, 9e-6, 1e0, 4e-2, 1e0))
    assert gauge.ratios == pytest.approx([1e4, 9, 250, 4, 0])
    middle = 3e-6  # noise 1e-6, signal 9e-6
    assert gauge.thresholds == pytest.approx([PRECISE, middle, MOST_ABOVE * 4e-3, np.inf, np.inf])
    assert (gauge.ratio, gauge.least_noise, gauge.least_signal) == (pytest.approx(1e4), 1e-6, 1e-2)
    assert gauge.blind == 2
    assert gauge.largest_noise == np.inf
    assert gauge.decides


@pytest.mark.parametrize(
    ("signal", "noise", "decides"),
    [(LEAST_RATIO, 1.0, True), (0.99 * LEAST_RATIO, 1.0, False), (0.1, 1.0, False), (1.0, np.inf, False)],
)
def test_a_signal_under_five_times_the_noise_decides_nothing(
    signal: float, noise: float, decides: bool
) -> None:
    gauge = Gauge(noise=(noise,), signal=(signal,))
    assert gauge.decides is decides
    assert gauge.blind == (not decides)
    assert gauge.thresholds >= noise  # never so low that noise itself would be called a fault


def test_the_gauge_that_decides_less_well_speaks_for_the_state() -> None:
    weak = Gauge(noise=(1.0,), signal=(2.0,))
    strong = replace(weak, signal=(9.0,))
    assert Gauges(conv=weak, recurrent=strong, logits=strong).state is weak
    assert Gauges(conv=strong, recurrent=weak, logits=strong).state is weak


@pytest.mark.parametrize("place", [(), (1, 2, 3, 4)], ids=["everywhere", "one number"])
def test_where_a_target_yields_nan_it_has_no_finite_noise_and_decides_nothing(
    bench: Bench, float32: tuple[Trace, Gauges], place: tuple[int, ...]
) -> None:
    trace, _ = float32
    rows = [row for step in trace.steps for row in step.rows]
    spoiled = rows[5].state
    assert spoiled is not None
    nan = replace(spoiled, recurrent=spoiled.recurrent.copy())
    nan.recurrent[place] = np.nan
    steps = [
        replace(step, rows=tuple(replace(r, state=nan) if r is rows[5] else r for r in step.rows))
        for step in trace.steps
    ]
    used = [(5, bench.histories()["r0"])]
    gauges = measure(bench.oracle, (trace, replace(trace, steps=tuple(steps))), used, bench.all_trusted)
    assert gauges.recurrent.blind == (1 if place else len(gauges.recurrent.noise))
    assert gauges.recurrent.decides is bool(place)
    assert gauges.conv.blind == 0


def test_noise_is_taken_only_up_to_the_first_router_tie(bench: Bench, float32: tuple[Trace, Gauges]) -> None:
    """Behind it the two runs went through different experts, which is not rounding."""
    trace, _ = float32
    (row,) = [row for row in trace.steps[4].rows if row.request == "r0"]
    assert row.state is not None
    spoiled = replace(row, state=replace(row.state, recurrent=2 * row.state.recurrent))
    other = with_rows(trace, lambda r: spoiled if r is row else r)
    used = [(5, bench.histories()["r0"])]
    for trusted, quiet in [(row.num_computed - 1, True), (row.num_computed, False)]:
        gauges = measure(bench.oracle, (trace, other), used, {**bench.all_trusted, "r0": trusted})
        assert (gauges.recurrent.largest_noise == FLOAT32_NOISE) is quiet


def test_the_signal_is_that_of_the_place_which_shows_it_least(
    bench: Bench, float32: tuple[Trace, Gauges]
) -> None:
    trace, _ = float32
    used = [(len(bench.scenario.request(name).prompt), tokens) for name, tokens in bench.histories().items()]
    each = [measure(bench.oracle, (trace, trace), [one], bench.all_trusted).recurrent.signal for one in used]
    together = measure(bench.oracle, (trace, trace), used, bench.all_trusted).recurrent.signal
    assert together == tuple(np.min(each, axis=0))
    assert len(set(each)) == len(each)


def test_without_anything_to_measure_on_nothing_is_decided(
    bench: Bench, float32: tuple[Trace, Gauges]
) -> None:
    trace, _ = float32
    nothing = replace(trace, steps=())
    for pair, histories in [((nothing, nothing), [(5, bench.histories()["r0"])]), ((trace, trace), [])]:
        assert not any(
            gauge.decides for gauge in of_all(measure(bench.oracle, pair, histories, bench.all_trusted))
        )


def test_the_plain_pair_feeds_the_same_tokens_in_two_ways_and_without_drafts(bench: Bench) -> None:
    histories = bench.histories()
    together, pieces = plain_pair(bench.scenario, histories, 7)
    runs = [bench.targets["float32"].run(scenario) for scenario in (together, pieces)]
    assert (together.k, pieces.k) == (0, 0)
    for run in runs:
        assert run.crash is None
        assert not any(row.kept or row.proposed for step in run.steps for row in step.rows)
        for name, tokens in histories.items():
            last = [row for step in run.steps for row in step.rows if row.request == name][-1]
            assert last.num_computed == len(tokens) - 1
            assert last.committed == (tokens[-1],)
    tokens_a_step = [sum(row.tokens for row in step.rows) for step in runs[1].steps]
    assert max(tokens_a_step) <= 7
    assert all(row.tokens == 1 for step in runs[0].steps[1:] for row in step.rows)
    both = {(row.request, row.num_computed) for step in runs[0].steps for row in step.rows} & {
        (row.request, row.num_computed) for step in runs[1].steps for row in step.rows
    }
    assert len(both) > 5


def test_requests_without_an_answer_are_left_out_of_the_pair(bench: Bench) -> None:
    histories = bench.histories()
    histories["r1"] = list(bench.scenario.request("r1").prompt)
    for scenario in plain_pair(bench.scenario, histories, 7):
        assert [request.id for request in scenario.requests] == ["r0", "r2"]


# Without speculation.


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """The correct engine, whose plain runs are altered on their way out."""

    inner: EmbeddedTarget
    alter: Callable[[Trace], Trace]

    def run(self, scenario: Scenario, *, reverse_rows: bool = False) -> Trace:
        trace = self.inner.run(scenario, reverse_rows=reverse_rows)
        return self.alter(trace) if scenario.k == 0 else trace


def with_rows(trace: Trace, change: Callable[[RowTrace], RowTrace]) -> Trace:
    return replace(trace, steps=tuple(replace(s, rows=tuple(change(r) for r in s.rows)) for s in trace.steps))


def scaled(by: float) -> Callable[[Trace], Trace]:
    def change(row: RowTrace) -> RowTrace:
        assert row.state is not None
        return replace(row, state=replace(row.state, recurrent=np.float32(by) * row.state.recurrent))

    return lambda trace: with_rows(trace, change)


def died(trace: Trace) -> Trace:
    crash = Crash(step=2, kind="RuntimeError", message="no such kernel", where="x.py:1 f")
    return replace(trace, steps=trace.steps[:2], crash=crash)


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (scaled(1.001), "differs from the oracle without any speculation"),
        (scaled(np.nan), "differs from the oracle without any speculation"),
        (died, "dies without speculation too: RuntimeError: no such kernel"),
    ],
)
def test_a_target_that_is_wrong_without_speculation_fails_and_sets_no_threshold(
    bench: Bench, float32: tuple[Trace, Gauges], alter: Callable[[Trace], Trace], said: str
) -> None:
    """Both plain runs are wrong alike, so their difference alone would say that all is well."""
    trace, _ = float32
    target: Any = Altered(inner=bench.targets["float32"], alter=alter)
    gauges = bench.judge.calibrate(target, bench.scenario, trace)
    judgement = bench.judge.judge(bench.scenario, trace, gauges)
    assert judgement.verdict is Verdict.FAIL
    assert judgement.first is not None
    assert judgement.first.kind == "plain"
    assert said in judgement.first.message


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_correct_target_is_right_without_speculation(dtype: str, request: pytest.FixtureRequest) -> None:
    _, gauges = request.getfixturevalue(dtype)
    assert gauges.plain is None


@pytest.mark.parametrize("seen", [-1, 10**6])
@pytest.mark.parametrize("field", ["num_computed", "tokens_included"])
def test_counts_beyond_all_reason_without_speculation_break_nothing(
    bench: Bench, float32: tuple[Trace, Gauges], field: str, seen: int
) -> None:
    def change(row: RowTrace) -> RowTrace:
        if field == "num_computed":
            return replace(row, num_computed=seen)
        assert row.state is not None
        return replace(row, state=replace(row.state, tokens_included=seen))

    trace, _ = float32
    target: Any = Altered(inner=bench.targets["float32"], alter=lambda plain: with_rows(plain, change))
    gauges = bench.judge.calibrate(target, bench.scenario, trace)
    verdict = bench.judge.judge(bench.scenario, trace, gauges).verdict
    assert verdict is (Verdict.FAIL if field == "tokens_included" else Verdict.INCONCLUSIVE)


# Distance.


def test_distance_is_relative_and_root_mean_square() -> None:
    expected = np.array([[3.0, 4.0], [30.0, 40.0]])
    assert relative_rms(1.1 * expected, expected, (1,)) == pytest.approx([0.1, 0.1])
    assert relative_rms(expected + np.array([1.0, 0.0]), expected, (0, 1)) == pytest.approx(
        np.sqrt(2 / (5**2 + 50**2))
    )


def test_distance_from_zero_is_infinite_and_from_itself_zero() -> None:
    zero, one = np.zeros((2, 3)), np.ones((2, 3))
    assert relative_rms(zero, zero, (1,)).tolist() == [0.0, 0.0]
    assert relative_rms(one, zero, (1,)).tolist() == [np.inf, np.inf]
    assert relative_rms(zero, one, (1,)).tolist() == [1.0, 1.0]
    assert relative_rms(np.nan * one, one, (1,)).tolist() == [np.inf, np.inf]


def test_each_kind_of_tensor_keeps_its_coordinates() -> None:
    layers, heads, positions = 3, 4, 5
    assert conv_error(np.ones((layers, 3, 8)), np.ones((layers, 3, 8))).shape == (layers,)
    assert recurrent_error(np.ones((layers, heads, 6, 7)), np.ones((layers, heads, 6, 7))).shape == (
        layers,
        heads,
    )
    assert logits_error(np.ones((positions, 9)), np.ones((positions, 9))).shape == (positions,)


def test_a_tolerance_by_element_would_pass_a_state_that_lags_by_a_token(bench: Bench) -> None:
    """Why thresholds are relative: the tolerances of upstream's tests do not see the commonest mistake."""
    history = bench.histories()["r2"]
    states = bench.oracle.fold().extend(history, keep_states_at=range(2, len(history) + 1)).states
    lags = [
        (stale, live, float(error))
        for count in range(3, len(history) + 1)
        for before, after in [(states[count - 1].recurrent, states[count].recurrent)]
        for stale, live, error in zip(
            before.reshape(-1, *before.shape[2:]),
            after.reshape(-1, *after.shape[2:]),
            recurrent_error(before, after).ravel(),
            strict=True,
        )
    ]
    passed = [error for stale, live, error in lags if np.allclose(stale, live, rtol=3e-2, atol=5e-2)]
    assert max(passed) > 0.5
