"""The gate: past nights, interleaved pairs, what it refuses, and what it leaves for people and machines."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from cases.bench.gate_nights import DESIGN, MODES, Mode, bounds, tally
from cases.selfcheck.bench_runs import SETTING, START, ms, run, runs
from harness.bench.stats.design import Design
from harness.bench.stats.gate import GateReport, gate
from harness.bench.stats.judge import Call
from harness.bench.stats.run import Direction, Run, Validity
from harness.bench.stats.simulate import Night as Simulated
from harness.bench.stats.simulate import Noise
from harness.bench.stats.states import Acknowledgement, Night, changes
from harness.bench.stats.summary import as_json, junit, markdown

TPOT = Design(effects={"tpot": 0.05})
PAST = list(10 * np.exp(np.random.default_rng(4).normal(0, 0.005, 20)))
BROKEN = Validity(correct=False, why="answers differ")


def never(baseline_first: bool) -> tuple[Run, Run]:
    raise AssertionError("nothing had to be measured")


class Pairs:
    """Interleaved pairs whose candidate is slower by a factor; counts them."""

    def __init__(self, factor: float) -> None:
        self.factor, self.count = factor, 0

    def __call__(self, baseline_first: bool) -> tuple[Run, Run]:
        self.count += 1
        wobble = 1 + 0.001 * (self.count % 3)
        return run({"tpot": ms(10 * wobble)}), run({"tpot": ms(10 * wobble * self.factor)})


def tonight(value: float | None, **more: object) -> list[Run]:
    return [run({"tpot": ms(value)}, day=40, **more)]


def test_a_night_like_the_others_passes_without_another_measurement() -> None:
    report = gate(tonight(10.0), runs(PAST), TPOT, measure=never)
    assert (report.exit_code, report.nights, report.pairs) == (0, 20, 0)


@pytest.mark.parametrize(("value", "code"), [(11.5, 1), (8.5, 0), (10.45, 125)])
def test_nights_alone_decide_where_nothing_can_be_measured(value: float, code: int) -> None:
    assert gate(tonight(value), runs(PAST), TPOT).exit_code == code


@pytest.mark.parametrize(("factor", "call"), [(1.0, Call.PASS), (1.2, Call.REGRESSION)])
def test_pairs_have_the_last_word(factor: float, call: Call) -> None:
    """The night was slow; whether the commit is, only a baseline of the same night can tell."""
    pairs = Pairs(factor)
    report = gate(tonight(11.5), runs(PAST), TPOT, measure=pairs)
    assert report.call is call
    assert (report.nights, report.pairs, pairs.count) == (20, TPOT.first_pairs, TPOT.first_pairs)


def test_stalled_nights_hide_nothing_where_nights_are_trimmed() -> None:
    past = runs([value * (1.5 if at in (5, 12) else 1) for at, value in enumerate(PAST)])
    assert gate(tonight(11.5), past, TPOT).exit_code == 125
    assert gate(tonight(11.5), past, dataclasses.replace(TPOT, trim=0.2)).exit_code == 1


def test_too_few_nights_are_no_baseline() -> None:
    report = gate(tonight(20.0), runs(PAST[:7]), TPOT)
    assert report.exit_code == 125
    assert "7 past nights" in report.why
    assert gate(tonight(20.0), runs(PAST[:7]), TPOT, measure=Pairs(1.0)).exit_code == 0


def test_nights_before_a_step_are_no_baseline() -> None:
    """Twelve nights at the new level: tonight is one of them, and not a regression from the nights before."""
    past = runs([*PAST[:8], *(1.2 * value for value in PAST[8:])])
    report = gate(tonight(12.0), past, TPOT)
    assert (report.exit_code, report.nights) == (0, 12)


def test_the_newest_nights_are_the_baseline() -> None:
    past = runs([10.0, 10.1] * 4 + [10.2, 10.3] * 4)
    report = gate(tonight(10.2), past, Design(effects={"tpot": 0.05}, window=8))
    assert (report.nights, report.results[0].seen.baseline) == (8, pytest.approx(10.25))


def test_runs_of_one_night_count_once() -> None:
    """Eight nights of five equal runs know no more than eight nights."""
    past = [
        dataclasses.replace(one, id=f"{one.id}{again}", time=one.time + timedelta(minutes=again))
        for one in runs(PAST[:8])
        for again in range(5)
    ]
    one, five = (gate(tonight(10.2), nights, TPOT) for nights in (runs(PAST[:8]), past))
    assert five.nights == 8
    estimates = [report.results[0].seen.estimate for report in (one, five)]
    assert estimates[0] is not None
    assert estimates[1] is not None
    assert estimates[1].se == pytest.approx(estimates[0].se)


def test_nights_of_another_gpu_are_no_baseline_and_the_keys_are_named() -> None:
    other = [dataclasses.replace(one, fingerprint={**SETTING, "hardware": "L40S"}) for one in runs(PAST)]
    report = gate(tonight(20.0), other, TPOT)
    assert report.exit_code == 125
    assert [str(one) for one in report.differs] == ["hardware: H200 | L40S"]
    assert "L40S" in markdown(report)


def test_invalid_nights_are_no_baseline() -> None:
    past = [dataclasses.replace(one, validity=BROKEN) for one in runs(PAST)]
    assert gate(tonight(10.0), past, TPOT).exit_code == 125


@pytest.mark.parametrize("runs_of_tonight", [[], tonight(5.0, validity=BROKEN), tonight(None)])
def test_a_night_without_a_valid_number_passes_nothing(runs_of_tonight: list[Run]) -> None:
    report = gate(runs_of_tonight, runs(PAST), TPOT)
    assert report.exit_code == 125
    assert report.why


def test_neither_tonight_nor_what_came_after_it_is_a_baseline() -> None:
    night = tonight(10.0)
    later = runs(PAST, first_day=41)
    assert gate(night, [*runs(PAST[:7]), *night, *later], TPOT).exit_code == 125


# What it leaves


def report_with(name: str, *, why_broken: str = "") -> GateReport:
    design = Design(effects={name: 0.05})
    refused = [run({name: ms(1.0)}, validity=Validity(correct=False, why=why_broken))] if why_broken else []
    night = [run({name: ms(11.5)}, day=40), *refused]
    return gate(night, runs(PAST, name), design)


def test_markdown_shows_numbers_and_lets_nothing_out_of_its_cell() -> None:
    text = markdown(report_with("a|b<script>", why_broken="`x`\n| y \x1b[31m"))
    rows = [line for line in text.splitlines() if line.startswith("| ❌")]
    assert len(rows) == 1
    assert "a\\|b&lt;script&gt;" in rows[0]
    assert "\x1b" not in text
    assert rows[0].replace("\\|", "").count("|") == 9
    assert "- left out: run" in text


def test_junit_counts_what_failed_and_what_was_not_shown() -> None:
    suite = ElementTree.fromstring(junit(report_with("tpot\x00")))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("1", "1", "0")
    level = np.repeat([10.0, 11.0, 13.0], 20)
    points = [Night(time=START, commit=f"{at:08x}", value=float(v)) for at, v in enumerate(level)]
    told = Acknowledgement(metric="tpot", commit=f"{20:08x}", reason="wanted")
    found = changes("tpot", points, Direction.LOWER, [told])
    both = ElementTree.fromstring(junit(report_with("tpot"), found))
    assert (both.get("tests"), both.get("failures"), both.get("skipped")) == ("3", "2", "1")
    text = markdown(report_with("tpot"), found)
    assert "| known | tpot | +10.0% |" in text
    assert "| new | tpot | +18.2% |" in text
    assert f"{39:08x}..{40:08x}" in text
    empty = ElementTree.fromstring(junit(gate([], [], TPOT)))
    assert (empty.get("tests"), empty.get("failures"), empty.get("skipped")) == ("1", "0", "1")


def test_the_json_object_holds_every_metric() -> None:
    found = json.loads(json.dumps(as_json(report_with("tpot")), allow_nan=False))
    assert (found["exit"], found["call"]) == (1, "regression")
    assert (
        found["metrics"]["tpot"]["low"]
        < found["metrics"]["tpot"]["worse_by"]
        < found["metrics"]["tpot"]["high"]
    )


# Simulated nights: a small version of cases/bench/gate_nights.py

NIGHTS = 150
PAIRS_ONLY = next(mode for mode in MODES if mode.name == "pairs")


def test_unchanged_nights_are_called_regressions_no_more_often_than_alpha() -> None:
    """More than 8 of 150 has a chance below 1e-4 where each has one of 1 %; a naive rule on the same runs has 15."""
    most = int(stats.binom.isf(1e-4, NIGHTS, DESIGN.alpha))
    assert most < 9
    found = tally(NIGHTS, 1.0, Noise(run=0.02), 1, PAIRS_ONLY)
    assert found.calls[Call.REGRESSION] <= most
    assert found.calls[Call.PASS] >= 0.8 * NIGHTS
    assert naive_alarms(NIGHTS, Noise(run=0.02)) > most


def naive_alarms(nights: int, noise: Noise) -> int:
    """How often 'the mean of one run is more than 5 % above that of another' fires."""
    rng = np.random.default_rng(1)
    hits = 0
    for number in range(nights):
        night = Simulated(number, noise, rng)
        left, right = night.run().number("tpot_mean"), night.run().number("tpot_mean")
        assert left is not None
        assert right is not None
        hits += right > 1.05 * left
    return hits


@pytest.mark.parametrize(
    "mode", [PAIRS_ONLY, Mode(name="nights first", window=20)], ids=lambda mode: mode.name
)
def test_ten_percent_more_tpot_is_found(mode: Mode) -> None:
    """Fewer than this many has a chance below 1e-4 where each is found with 95 %."""
    nights = 60
    found = tally(nights, 1.1, Noise(run=0.02), 2, mode)
    assert found.calls[Call.REGRESSION] >= int(stats.binom.ppf(1e-4, nights, 0.95))
    assert found.calls[Call.PASS] == 0


def test_the_bounds_are_those_of_clopper_and_pearson() -> None:
    assert bounds(0, 100)[1] == pytest.approx(1 - 0.05 ** (1 / 100))
    low, high = bounds(50, 5000)
    exact = stats.binomtest(50, 5000).proportion_ci(0.90, method="exact")
    assert (low, high) == pytest.approx((exact.low, exact.high))
