"""Change points: where they are found, how soon, how seldom without a change, and what state they have."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cases.selfcheck.bench_runs import START
from harness.bench.stats.changepoints import change_points, energy
from harness.bench.stats.run import Direction
from harness.bench.stats.states import (
    Acknowledgement,
    Change,
    Night,
    State,
    changes,
    load_acknowledgements,
    unmatched,
)
from harness.errors import UsageError


def series(*parts: tuple[int, float], noise: float = 0.005, seed: int = 0) -> np.ndarray:
    """Stretches of (nights, level)."""
    levels = np.repeat([level for _, level in parts], [nights for nights, _ in parts])
    return levels * np.exp(np.random.default_rng(seed).normal(0, noise, len(levels)))


def nights(values: np.ndarray) -> list[Night]:
    return [
        Night(time=START + timedelta(days=at), commit=f"{at:07x}" + "0" * 33, value=float(value))
        for at, value in enumerate(values)
    ]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=3, max_size=9))
def test_the_energy_statistic_is_that_of_the_paper(values: list[float]) -> None:
    table = energy(np.array(values))
    for split in range(1, len(values)):
        for end in range(2, len(values) + 1):
            x, y = values[:split], values[split:end]
            if not y:
                assert table[split - 1, end - 2] == -np.inf
                continue
            across = np.mean([abs(a - b) for a in x for b in y])
            inside = sum(
                np.mean([abs(a - b) for i, a in enumerate(part) for b in part[i + 1 :]])
                for part in (x, y)
                if len(part) > 1
            )
            size = len(x) * len(y) / (len(x) + len(y))
            assert table[split - 1, end - 2] == pytest.approx(size * (2 * across - inside), abs=1e-9)


def test_steps_are_found_where_they_are() -> None:
    found = change_points(series((40, 10.0), (30, 11.0), (50, 10.5), (20, 12.0)))
    assert [point.index for point in found] == [40, 70, 120]
    assert [point.share for point in found] == pytest.approx([0.1, 10.5 / 11 - 1, 12 / 10.5 - 1], abs=0.01)


def test_a_step_of_last_year_does_not_hide_one_of_this_week() -> None:
    found = change_points(series((150, 10.0), (150, 20.0), (3, 21.0)))
    assert [point.index for point in found] == [150, 300]


def test_changes_that_came_back_do_not_hide_the_next_one() -> None:
    """Looked at as a whole, such a year has one level; windows see the step (in 98 %, without them in a third)."""
    bumps = [(100, 10.0), (4, 10.8)] * 3
    seen = [change_points(series(*bumps, noise=0.02, seed=seed)) for seed in range(40)]
    assert sum(any(abs(point.index - 308) < 2 for point in points) for points in seen) >= 32


def test_a_single_stray_night_leaves_no_change() -> None:
    values = series((60, 10.0), noise=0.01)
    values[30] *= 1.04
    assert change_points(values) == ()


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [3.0] * 50])
def test_short_and_constant_series_have_no_change(values: list[float]) -> None:
    assert change_points(values) == ()


def test_a_step_without_any_noise_is_found() -> None:
    assert [point.index for point in change_points([10.0] * 20 + [11.0] * 5)] == [20]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_value_without_a_logarithm_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="expected positive numbers"):
        change_points([1.0, 2.0, value])


def test_the_unit_does_not_matter() -> None:
    values = series((40, 10.0), (30, 11.0))
    assert [point.index for point in change_points(values)] == [
        point.index for point in change_points(values * 1e-3)
    ]


@pytest.mark.parametrize(
    ("noise", "step", "published"),
    [(0.01, 0.03, 2), (0.01, 0.05, 1), (0.02, 0.05, 2), (0.02, 0.10, 1), (0.04, 0.10, 2)],
)
def test_steps_are_flagged_as_soon_as_otava_does(noise: float, step: float, published: int) -> None:
    """Medians that Otava 0.8.0 reached after 30 quiet nights; 100 series know a median to about a night."""
    waits = []
    for seed in range(100):
        values = series((30, 1.0), (15, 1 + step), noise=noise, seed=seed)
        waits.append(
            next((n for n in range(1, 16) if any(p.index >= 25 for p in change_points(values[: 30 + n]))), 16)
        )
    assert np.median(waits) <= published + 1
    assert np.median(waits) >= published - 1


def test_quiet_series_raise_few_alarms() -> None:
    """5 % of 30 quiet nights is the most that Otava showed; 200 series with more than 23 are less likely than 1e-4."""
    most = int(stats.binom.isf(1e-4, 200, 0.05))
    alarms = sum(bool(change_points(series((30, 1.0), noise=0.02, seed=seed))) for seed in range(200))
    assert alarms <= most


def test_a_year_of_nights_takes_milliseconds() -> None:
    values = series((100, 10.0), (100, 10.5), (165, 11.0), noise=0.02)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        change_points(values)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.05


# States


def one_change(values: np.ndarray, direction: Direction = Direction.LOWER, **more: object) -> Change:
    (found,) = changes("tpot", nights(values), direction, **more)
    return found


def test_a_new_change_names_the_commits_to_suspect() -> None:
    found = one_change(series((40, 10.0), (10, 11.0)))
    assert found.state is State.NEW
    assert found.suspects == f"{nights(series((50, 1.0)))[39].commit}..{nights(series((50, 1.0)))[40].commit}"
    assert found.time == START + timedelta(days=40)


def test_noise_widens_the_range_of_suspects_and_the_culprit_stays_inside() -> None:
    inside, wide, seen = 0, 0, 0
    for seed in range(200):
        values = series((40, 10.0), (20, 10.4), noise=0.02, seed=seed)
        for point in change_points(values)[-1:]:
            seen += 1
            inside += point.nights[0] <= 40 <= point.nights[1]
            wide += point.nights[1] > point.nights[0]
    assert seen > 150
    assert inside > 0.85 * seen
    assert wide > 0.5 * seen


@pytest.mark.parametrize(
    ("direction", "state"), [(Direction.LOWER, State.BETTER), (Direction.HIGHER, State.NEW)]
)
def test_whether_a_change_is_bad_depends_on_the_metric(direction: Direction, state: State) -> None:
    assert one_change(series((40, 11.0), (10, 10.0)), direction).state is state


def test_an_acknowledged_change_is_known_and_only_that_one() -> None:
    values = series((40, 10.0), (20, 11.0), (20, 12.5))
    told = Acknowledgement(metric="tpot", commit=f"{40:07x}", reason="exact rollback costs this")
    first, second = changes("tpot", nights(values), Direction.LOWER, [told])
    assert (first.state, first.reason) == (State.KNOWN, told.reason)
    longer = Acknowledgement(metric="tpot", commit=f"{40:07x}" + "0" * 33, reason="in full")
    short = [replace(night, commit=night.commit[:8]) for night in nights(values)]
    assert changes("tpot", short, Direction.LOWER, [longer])[0].state is State.KNOWN
    assert second.state is State.NEW
    assert [one.state for one in changes("ttft", nights(values), Direction.LOWER, [told])] == [State.NEW] * 2


def test_a_change_that_came_back_is_fixed_and_names_what_fixed_it() -> None:
    first, second = changes("tpot", nights(series((40, 10.0), (20, 11.0), (20, 10.0))), Direction.LOWER)
    assert (first.state, second.state) == (State.FIXED, State.BETTER)
    assert first.fixed_by == nights(series((80, 1.0)))[60].commit


def test_half_a_repair_is_none() -> None:
    first, _ = changes("tpot", nights(series((40, 10.0), (20, 12.0), (20, 11.0))), Direction.LOWER)
    assert first.state is State.NEW


def test_an_acknowledgement_that_fits_nothing_is_reported() -> None:
    values = series((40, 10.0), (20, 11.0))
    right = Acknowledgement(metric="tpot", commit=f"{40:07x}", reason="known")
    stale = Acknowledgement(metric="tpot", commit="fffffff", reason="of last year")
    assert unmatched([right, stale], changes("tpot", nights(values), Direction.LOWER, [right, stale])) == (
        stale,
    )


def test_acknowledgements_are_read_and_bad_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    assert load_acknowledgements(path) == ()
    path.write_text('[[known]]\nmetric = "tpot"\ncommit = "abcdef0"\nreason = "rollback"\n')
    assert load_acknowledgements(path) == (
        Acknowledgement(metric="tpot", commit="abcdef0", reason="rollback"),
    )
    for text, complaint in {
        "known = 1": "expected",
        "[[know]]\n": "saw know",
        "[[known]]\nmetric = 'a'\n": "number 1: saw",
        "[[known]]\nmetric = 'a'\ncommit = 'abc'\nreason = 'x'\n": "7 digits",
        "[[known]]\nmetric = 'a'\ncommit = 1234567\nreason = 'x'\n": "as text",
        "[[": "cannot be read",
    }.items():
        path.write_text(text)
        with pytest.raises(UsageError, match=complaint):
            load_acknowledgements(path)
