"""Run-level statistics: estimates, calls, refusals, noise floors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cases.selfcheck.bench_runs import SETTING, START, ms, per_second, run, runs
from harness.bench.metrics.summary import summarise
from harness.bench.record import Chunk, Kind, Outcome, RequestRecord
from harness.bench.result import Setting, result
from harness.bench.stats.bootstrap import bootstrap_shifts
from harness.bench.stats.calibrate import Calibration, calibrate, smallest_detectable
from harness.bench.stats.compare import Comparison, compare, interleaved
from harness.bench.stats.design import Design, usual_effects
from harness.bench.stats.estimate import holm, prediction, ratio
from harness.bench.stats.fingerprint import Incomparable, identity
from harness.bench.stats.judge import Call, MetricResult
from harness.bench.stats.of_result import GATED, run_of
from harness.bench.stats.run import Direction, Run, Validity, Value
from harness.errors import UsageError

TPOT = Design(effects={"tpot": 0.05})
QUIET = [10.0, 10.1, 9.9, 10.05, 9.95, 10.02]
BROKEN = Validity(correct=False, why="2 of 10 streams were cut")


def only(found: Comparison, metric: str = "tpot") -> MetricResult:
    (result,) = [one for one in found.results if one.seen.metric == metric]
    return result


def worse(values: list[float], factor: float) -> list[float]:
    return [value * factor for value in values]


# Estimates


def test_welch_on_logarithms_agrees_with_scipy() -> None:
    left, right = np.array([10.0, 11, 9, 10.5]), np.array([12.0, 11, 13, 12.5, 14])
    ours = ratio(left, right, worse=1, confidence=0.9)
    theirs = stats.ttest_ind(np.log(right), np.log(left), equal_var=False, alternative="greater")
    both = stats.ttest_ind(np.log(right), np.log(left), equal_var=False).confidence_interval(0.9)
    assert ours is not None
    assert ours.p_worse == pytest.approx(theirs.pvalue, rel=1e-9)
    assert ours.p_worse + ours.p_better == pytest.approx(1)
    assert (ours.low, ours.high) == pytest.approx((both.low, both.high), rel=1e-9)


def test_one_night_against_many_is_the_t_test_of_a_single_new_value() -> None:
    nights, tonight = np.array([10.0, 11, 9, 10.5, 10.2]), np.array([12.5])
    ours = prediction(nights, tonight, worse=1, confidence=0.95)
    theirs = stats.ttest_ind(np.log(tonight), np.log(nights), alternative="greater")
    assert ours is not None
    assert ours.p_worse == pytest.approx(theirs.pvalue, rel=1e-9)


def test_repeats_of_one_night_do_not_make_the_past_better_known() -> None:
    nights = np.array([10.0, 11, 9, 10.5, 10.2])
    one = prediction(nights, np.array([12.5]), worse=1, confidence=0.95)
    many = prediction(nights, np.array([12.5] * 9), worse=1, confidence=0.95)
    assert one is not None
    assert many is not None
    assert many.se == pytest.approx(one.se)


def test_trimmed_runs_are_compared_as_yuen_does() -> None:
    left, right = np.array([10.0, 11, 9, 10.5, 30, 10.2]), np.array([12.0, 11, 13, 12.5, 1, 12.2])
    ours = ratio(left, right, worse=1, confidence=0.95, trim=0.2)
    theirs = stats.ttest_ind(np.log(right), np.log(left), equal_var=False, trim=0.2, alternative="greater")
    assert ours is not None
    assert ours.p_worse == pytest.approx(theirs.pvalue, rel=1e-9)


def test_a_stalled_run_does_not_hide_a_regression_where_runs_are_trimmed() -> None:
    left, right = [*QUIET, 10.0, 15.0], [*worse(QUIET, 1.1), 11.0, 16.5]
    assert compare(runs(left), runs(right), TPOT).call is Call.INCONCLUSIVE
    trimmed = dataclasses.replace(TPOT, trim=0.2)
    assert compare(runs(left), runs(right), trimmed).call is Call.REGRESSION
    floor = calibrate(runs(left), trimmed).floors["tpot"]
    assert floor.sd < 0.02 < calibrate(runs(left), TPOT).floors["tpot"].sd


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(0.1, 1e6), min_size=2, max_size=6),
    st.lists(st.floats(0.1, 1e6), min_size=2, max_size=6),
    st.floats(0.01, 100),
)
def test_units_do_not_matter_and_direction_mirrors(
    left: list[float], right: list[float], unit: float
) -> None:
    a, b = np.array(left), np.array(right)
    found = ratio(a, b, worse=1, confidence=0.95)
    scaled = ratio(a * unit, b * unit, worse=1, confidence=0.95)
    mirrored = ratio(a, b, worse=-1, confidence=0.95)
    assert found is not None
    assert scaled is not None
    assert mirrored is not None
    assert scaled.shift == pytest.approx(found.shift, abs=1e-9)
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low), abs=1e-9)


def test_holm_adjusts_in_steps_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_the_bootstrap_draws_runs_and_then_requests() -> None:
    rng = np.random.default_rng(1)
    wide = [np.full(400, level) for level in (8.0, 10.0, 12.5)]  # all the spread is between runs
    shifts = bootstrap_shifts(wide, wide, lambda x: x.mean(-1), rng, draws=2000)
    between = np.log([8.0, 10.0, 12.5]).var() * 2 / 3
    assert shifts.std() == pytest.approx(np.sqrt(between), rel=0.06)


# Calls


@pytest.mark.parametrize(
    ("factor", "call", "code"),
    [
        (1.1, Call.REGRESSION, 1),
        (0.9, Call.IMPROVEMENT, 0),
        (1.0, Call.PASS, 0),
        (1.049, Call.INCONCLUSIVE, 125),
    ],
)
def test_a_change_of_every_run_gets_its_call(factor: float, call: Call, code: int) -> None:
    found = compare(runs(QUIET), runs(worse(QUIET, factor)), TPOT)
    assert (found.call, found.call.exit_code) == (call, code)
    estimate = only(found).seen.estimate
    assert estimate is not None
    assert estimate.change[0] == pytest.approx(factor - 1)


def test_a_change_that_is_certain_and_does_not_matter_passes() -> None:
    found = only(compare(runs(QUIET), runs(worse(QUIET, 1.02)), TPOT))
    assert found.p_adjusted is not None
    assert found.p_adjusted < 0.01
    assert found.call is Call.PASS


def test_less_throughput_is_worse_and_less_latency_is_better() -> None:
    design = Design(effects={"rate": 0.05, "tpot": 0.05})
    left = [run({"rate": per_second(100 * v), "tpot": ms(v)}) for v in QUIET]
    right = [run({"rate": per_second(80 * v), "tpot": ms(0.8 * v)}) for v in QUIET]
    found = compare(left, right, design)
    assert only(found, "rate").call is Call.REGRESSION
    assert only(found, "tpot").call is Call.IMPROVEMENT
    assert found.call is Call.REGRESSION


def test_runs_are_the_unit_however_many_requests_they_hold() -> None:
    """Two runs of each, 3 % apart by their run effects; a test over pooled requests would be sure of a change."""
    rng = np.random.default_rng(3)
    effects = [10.0, 10.4, 10.9, 11.3]
    samples = [tuple(effect * np.exp(rng.normal(0, 0.1, 5000))) for effect in effects]
    four = [
        dataclasses.replace(run({"tpot": ms(float(np.mean(one)))}), samples={"tpot": one}) for one in samples
    ]
    pooled = stats.mannwhitneyu(np.concatenate(samples[2:]), np.concatenate(samples[:2]))
    assert pooled.pvalue < 1e-50
    assert compare(four[:2], four[2:], TPOT).call is Call.INCONCLUSIVE


def test_one_run_a_side_proves_nothing() -> None:
    found = compare(runs([10.0]), runs([20.0]), TPOT)
    assert found.call is Call.INCONCLUSIVE
    assert "2 are needed" in only(found).why


@pytest.mark.parametrize("broken", [None, 0.0])
def test_nothing_measured_is_never_an_improvement(broken: float | None) -> None:
    """vLLM prints 0.00 for a run without a success, and a gate that reads it is pleased (bench.md e.18)."""
    candidates = [run({"ttft": ms(None)}, validity=BROKEN) for _ in QUIET]
    design = Design(effects={"ttft": 0.05})
    assert compare(runs(QUIET, "ttft"), candidates, design).call is Call.INCONCLUSIVE
    some = runs([*worse(QUIET, 0.5)[:-1], broken], "ttft")
    assert compare(runs(QUIET, "ttft"), some, design).call is (
        Call.INCONCLUSIVE if broken is None else Call.IMPROVEMENT
    )


def test_null_in_one_run_keeps_the_metric_from_being_compared() -> None:
    found = only(compare(runs(QUIET), runs([*worse(QUIET, 0.5)[:-1], None]), TPOT))
    assert found.call is Call.INCONCLUSIVE
    assert found.why == "not measured in 1 of 6 candidate runs"


def test_a_throughput_of_zero_is_a_regression() -> None:
    design = Design(effects={"rate": 0.05})
    left = [run({"rate": per_second(100 * value)}) for value in QUIET]
    right = [run({"rate": per_second(0.0)}) for _ in QUIET]
    found = compare(left, right, design)
    assert found.call is Call.REGRESSION
    estimate = only(found, "rate").seen.estimate
    assert estimate is not None
    assert estimate.change[0] == pytest.approx(1.0), "all of it is gone"


@pytest.mark.parametrize("validity", [BROKEN, Validity(client_bound=True, why="loop lag 41 ms")])
def test_invalid_runs_are_left_out_and_named(validity: Validity) -> None:
    bad = [run({"tpot": ms(1.0)}, validity=validity) for _ in range(3)]
    found = compare(runs(QUIET), [*runs(QUIET), *bad], TPOT)
    assert found.call is Call.PASS
    assert len(found.candidate) == len(QUIET)
    assert [validity.why in line for line in found.refused] == [True] * 3


def test_a_gated_metric_that_nobody_reports_is_inconclusive() -> None:
    found = compare(runs(QUIET), runs(QUIET), Design(effects={"tpot": 0.05, "tpto": 0.05}))
    assert only(found, "tpto").call is Call.INCONCLUSIVE
    assert found.call is Call.INCONCLUSIVE


def test_metrics_that_are_not_gated_are_only_observed() -> None:
    left = [run({"tpot": ms(v), "other": ms(v)}) for v in QUIET]
    right = [run({"tpot": ms(v), "other": ms(3 * v)}) for v in QUIET]
    found = compare(left, right, TPOT)
    assert only(found, "other").call is None
    assert found.call is Call.PASS


def test_a_metric_that_changed_its_unit_is_not_compared() -> None:
    right = [run({"tpot": dataclasses.replace(ms(v / 1000), unit="s")}) for v in QUIET]
    assert "do not agree" in only(compare(runs(QUIET), right, TPOT)).why


# Percentiles


def p99(values: list[float], count: int | None) -> list[Run]:
    return [run({"p99": ms(value, quantile=0.99, count=count)}) for value in values]


def test_p99_is_gated_only_with_ten_samples_beyond_it() -> None:
    design = Design(effects={"p99": 0.1})
    slow = worse(QUIET, 1.5)
    assert compare(p99(QUIET, 1000), p99(slow, 1000), design).call is Call.REGRESSION
    for count in (999, None):
        found = compare(p99(QUIET, count), p99(slow, count), design)
        assert only(found, "p99").call is None
        assert found.call is Call.INCONCLUSIVE, "nothing gated, nothing shown"


def test_p99_is_gated_only_where_its_interval_is_narrow() -> None:
    design = Design(effects={"p99": 0.1})
    wide = [10.0, 12.0, 8.0, 10.5, 9.0, 11.0]
    found = only(compare(p99(wide, 5000), p99(worse(wide, 1.5), 5000), design), "p99")
    assert found.call is None
    assert "10% is what matters" in found.why


def test_a_percentile_left_out_does_not_lower_the_bar_for_the_others() -> None:
    effects = {f"p99_{at}": 0.1 for at in range(9)} | {"tpot": 0.05}
    thin = {f"p99_{at}": ms(1.0, quantile=0.99, count=10) for at in range(9)}
    left = [run({"tpot": ms(v), **thin}) for v in QUIET]
    found = compare(left, left, Design(effects=effects))
    assert only(found).p_adjusted == 1.0


def test_a_run_in_the_middle_is_shown_and_not_an_average_of_percentiles() -> None:
    found = only(compare(p99([10.0, 10.0, 1000.0], 5000), p99([10.0] * 3, 5000), TPOT), "p99")
    assert found.seen.baseline == 10.0


# Fingerprints


def test_another_gpu_is_refused_and_every_difference_is_listed() -> None:
    other = {"hardware": "L40S", "flags": "--k 3", "seed": "1"}
    with pytest.raises(Incomparable) as refusal:
        compare(runs(QUIET), [run({"tpot": ms(9.0)}, setting=other)], TPOT)
    for line in ("hardware: H200 | L40S", "model: tiny | (absent)", "seed: (absent) | 1"):
        assert line in str(refusal.value)
    assert "flags" not in str(refusal.value).split("next:")[0]
    assert refusal.value.exit_code == 2


def test_what_is_meant_to_differ_may_differ() -> None:
    other = [run({"tpot": ms(v)}, setting={**SETTING, "flags": "--k 0"}) for v in QUIET]
    assert compare(runs(QUIET), other, TPOT, across=["flags"]).call is Call.PASS


def test_the_order_of_keys_is_no_difference() -> None:
    assert identity(SETTING) == identity(dict(reversed(SETTING.items())))
    assert identity(SETTING) != identity({**SETTING, "flags": "--k 2"})


# Noise floors


def noise(sd: float, count: int = 10) -> Calibration:
    logs = np.random.default_rng(5).normal(0, 1, count)
    logs = (logs - logs.mean()) / logs.std(ddof=1) * sd
    return calibrate(runs(list(10 * np.exp(logs))), TPOT)


def test_runs_that_agree_by_accident_prove_nothing_against_the_noise_floor() -> None:
    left, right = runs([10.0, 10.0, 10.001]), runs([10.6, 10.6, 10.601])
    assert compare(left, right, TPOT).call is Call.REGRESSION
    assert compare(left, right, TPOT, noise(0.05)).call is Call.INCONCLUSIVE


def test_calibration_finds_the_noise_and_what_can_be_seen_through_it() -> None:
    floor = noise(0.03).floors["tpot"]
    assert floor.sd == pytest.approx(0.03)
    assert floor.sd < floor.sd_high < 2 * floor.sd
    assert not floor.drifts
    assert noise(0.01).smallest_of("tpot") < floor.smallest < noise(0.06).smallest_of("tpot")


def test_the_smallest_detectable_change_is_found_as_often_as_it_says() -> None:
    design, rng = Design(effects={"tpot": 0.01}), np.random.default_rng(11)
    change = 1 + smallest_detectable(0.03, design)
    level = design.alpha_at(design.max_pairs)
    hits = 0
    for _ in range(1000):
        left, right = np.exp(rng.normal(0, 0.03, (2, design.max_pairs)))
        found = ratio(left, right * change, worse=1, confidence=0.95)
        hits += found is not None and found.p_worse <= level
    assert stats.binom.ppf(1e-4, 1000, 0.95) <= hits <= stats.binom.isf(1e-4, 1000, 0.96)


def test_a_pass_never_rests_on_twice_what_matters() -> None:
    result = only(compare(runs(QUIET), runs(QUIET), TPOT, noise(0.5)))
    assert result.margin == pytest.approx(0.1)
    assert result.call is Call.INCONCLUSIVE


def test_a_drift_during_calibration_is_seen() -> None:
    assert calibrate(runs([10 + 0.1 * at for at in range(10)]), TPOT).floors["tpot"].drifts


def test_a_calibration_comes_back_as_it_was(tmp_path: Path) -> None:
    made = calibrate([run({"tpot": ms(v), "none": ms(None)}, day=d) for d, v in enumerate(QUIET)], TPOT)
    made.save(tmp_path / "floors.json")
    assert Calibration.load(tmp_path / "floors.json") == made
    assert made.skipped == {"none": "not measured in 6 of 6 runs"}
    assert [path.name for path in tmp_path.iterdir()] == ["floors.json"]


def test_bad_calibrations_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "floors.json"
    with pytest.raises(UsageError, match="specharness calibrate"):
        Calibration.load(path)
    for text in ("", "[]", '{"schema": 1}', '{"schema": "x"}'):
        path.write_text(text)
        with pytest.raises(UsageError, match="holds no noise floors"):
            Calibration.load(path)
    noise(0.01).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 2}))
    with pytest.raises(UsageError, match="saw schema 2, expected 1"):
        Calibration.load(path)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda made: made[:3], "expected 4 at least"),
        (lambda made: [*made[:-1], dataclasses.replace(made[-1], commit="b" * 40)], "2 commits"),
        (lambda made: [*made[:-1], dataclasses.replace(made[-1], fingerprint={})], "not of one setting"),
        (
            lambda made: [*made[:3], dataclasses.replace(made[3], validity=BROKEN)],
            "saw 3 valid runs of 4(.|\n)*were cut",
        ),
    ],
)
def test_runs_that_are_not_equal_runs_calibrate_nothing(
    spoil: Callable[[list[Run]], list[Run]], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        calibrate(spoil(runs(QUIET)), TPOT)


def test_the_noise_of_another_setting_is_refused() -> None:
    other = dataclasses.replace(noise(0.01), fingerprint={**SETTING, "hardware": "L40S"})
    with pytest.raises(Incomparable, match=r"hardware: L40S \| H200"):
        compare(runs(QUIET), runs(QUIET), TPOT, other)


# Interleaved repeats


class Bench:
    """Measures pairs out of two streams of values; remembers the order."""

    def __init__(self, noise: float, factor: float = 1.0, bad: tuple[int, ...] = ()) -> None:
        self.rng, self.noise, self.factor, self.bad = np.random.default_rng(2), noise, factor, bad
        self.orders: list[bool] = []

    def __call__(self, baseline_first: bool) -> tuple[Run, Run]:
        self.orders.append(baseline_first)
        left, right = 10 * np.exp(self.rng.normal(0, self.noise, 2))
        validity = BROKEN if len(self.orders) in self.bad else Validity()
        return run({"tpot": ms(left)}), run({"tpot": ms(right * self.factor)}, validity=validity)


def test_a_clear_answer_takes_no_more_than_the_first_look_and_its_order_is_abba() -> None:
    bench = Bench(0.001, 1.2)
    found = interleaved(bench, TPOT)
    assert found.call is Call.REGRESSION
    assert bench.orders == [True, False, True, False]
    assert found.alpha == TPOT.alpha_at(4) < TPOT.alpha


def test_an_unclear_answer_is_repeated_and_the_repeats_are_bounded() -> None:
    bench = Bench(0.3, 1.2)
    assert interleaved(bench, TPOT).call is Call.INCONCLUSIVE
    assert len(bench.orders) == TPOT.max_pairs


def test_an_invalid_pair_is_measured_again_in_the_same_order() -> None:
    bench = Bench(0.001, bad=(2, 3))
    found = interleaved(bench, TPOT)
    assert bench.orders == [True, False, False, False, True, False]
    assert (found.call, len(found.refused)) == (Call.PASS, 2)


def test_a_bench_that_only_fails_ends_and_passes_nothing() -> None:
    bench = Bench(0.001, bad=tuple(range(4, 100)))
    found = interleaved(bench, TPOT)
    assert found.call is Call.INCONCLUSIVE
    assert len(bench.orders) <= TPOT.max_pairs + 1


def test_what_was_not_measured_is_not_repeated() -> None:
    orders: list[bool] = []

    def measure(baseline_first: bool) -> tuple[Run, Run]:
        orders.append(baseline_first)
        return run({"tpot": ms(10.0)}), run({"tpot": ms(None)})

    assert interleaved(measure, TPOT).call is Call.INCONCLUSIVE
    assert len(orders) == TPOT.first_pairs


def test_the_looks_share_one_level() -> None:
    design = Design(alpha=0.02, first_pairs=2, max_pairs=10)
    assert design.looks == (2, 4, 6, 8, 10)
    assert sum(map(design.alpha_at, design.looks)) == pytest.approx(0.02)
    assert min(map(design.alpha_at, design.looks)) > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_pairs": 3},
        {"first_pairs": 6, "max_pairs": 4},
        {"alpha": 0.0},
        {"trim": 0.3},
        {"confidence": 95},
        {"window": 5, "fewest": 8},
        {"effects": {"tpot": 0.0}},
    ],
)
def test_a_design_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Design(**wrong)


def test_usual_effects_allow_percentiles_more() -> None:
    assert usual_effects({"a": None, "b": 0.5, "c": 0.99}) == {"a": 0.05, "b": 0.05, "c": 0.1}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="finite"):
        Value(value=value, unit="ms", direction=Direction.LOWER)


# Results of a benchmark


def measured(records: list[RequestRecord]) -> dict[str, object]:
    found = result(Setting(model_id="tiny"), records, summarise(records))
    return json.loads(json.dumps(found, allow_nan=False))


def stream(at: float, outcome: Outcome = Outcome.COMPLETE) -> RequestRecord:
    times = (at + 0.1, at + 0.12, at + 0.14) if outcome is Outcome.COMPLETE else ()
    chunks = tuple(Chunk(at=when, kind=Kind.CONTENT, tokens=1) for when in times)
    return RequestRecord(
        id=str(at),
        scheduled=at,
        sent=at,
        closed=at + 0.2,
        outcome=outcome,
        chunks=chunks,
        prompt_tokens=5,
        completion_tokens=3,
    )


def test_a_result_becomes_a_run_with_units_directions_and_counts() -> None:
    found = run_of(measured([stream(1.0), stream(2.0)]), fingerprint=SETTING, commit="c", time=START)
    assert found.validity.comparable
    assert set(GATED) <= set(found.values), "every gated figure is one that a result has"
    ttft, rate = found.values["ttft.p99_ms"], found.values["throughput.output"]
    assert (ttft.value, ttft.quantile, ttft.count, ttft.direction) == (
        pytest.approx(100),
        0.99,
        2,
        Direction.LOWER,
    )
    assert rate.direction is Direction.HIGHER
    assert found.values["ttft.median_ms"].quantile == 0.5
    assert not [name for name in found.values if name.endswith((".n", ".std_ms")) or name == "failed"]


def test_a_result_of_dead_streams_is_no_improvement() -> None:
    dead = run_of(measured([stream(1.0, Outcome.CUT)]), fingerprint=SETTING, commit="c", time=START)
    assert dead.values["ttft.median_ms"].value is None
    assert not dead.validity.comparable
    assert "nothing was measured" in dead.validity.why
    good = run_of(measured([stream(1.0)]), fingerprint=SETTING, commit="c", time=START)
    assert compare([good] * 3, [dead] * 3, Design(effects=GATED)).call is Call.INCONCLUSIVE


def test_a_client_bound_result_says_why_and_another_tool_s_is_refused() -> None:
    found = measured([stream(1.0)])
    bound = run_of(found, fingerprint=SETTING, commit="c", time=START, client_bound="loop lag 41 ms")
    assert str(bound.validity) == "client-bound: loop lag 41 ms"
    with pytest.raises(UsageError, match="import other tools"):
        run_of({"completed": 3}, fingerprint=SETTING, commit="c", time=START)
