"""What the gate's answers are worth: simulated nights whose truth is known.

python -m cases.bench.gate_nights                       every table of reports/baselines/bench.md
python -m cases.bench.gate_nights nights --nights 500   one of them, smaller
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from scipy import stats

from harness.bench.stats.bootstrap import bootstrap_shifts, p_worse
from harness.bench.stats.calibrate import Calibration, calibrate
from harness.bench.stats.changepoints import ChangePoint, change_points
from harness.bench.stats.design import Design, usual_effects
from harness.bench.stats.estimate import ratio
from harness.bench.stats.gate import gate
from harness.bench.stats.judge import Call
from harness.bench.stats.simulate import Night, Noise, past_nights

METRICS = {
    "ttft_median": 0.5,
    "ttft_p99": 0.99,
    "tpot_mean": None,
    "tpot_p99": 0.99,
    "e2el_mean": None,
    "output_throughput": None,
}
DESIGN = Design(effects=usual_effects(METRICS))
RUN_EFFECTS = (0.01, 0.02, 0.03)
CALIBRATION_RUNS = 10


@dataclass(frozen=True, kw_only=True)
class Mode:
    """How the gate is used. ``main`` modes get all nights, the others a fifth of them."""

    name: str
    window: int
    calibrated: bool = True
    pairs: bool = True
    stalls: float = 0.0
    trim: float = 0.0
    main: bool = False


MODES = (
    Mode(name="20 nights, then pairs", window=20, main=True),
    Mode(name="pairs", window=0, main=True),
    Mode(name="pairs, not calibrated", window=0, calibrated=False),
    Mode(name="pairs, 5 % of runs stall", window=0, stalls=0.05),
    Mode(name="the same, trimmed", window=0, stalls=0.05, trim=0.2),
    Mode(name="pairs, trimmed", window=0, trim=0.2),
    Mode(name="20 nights, nothing measured", window=20, pairs=False),
)


@dataclass
class Tally:
    """Calls of many nights, the pairs they took, and how often each metric was called a regression."""

    calls: Counter[Call] = field(default_factory=Counter)
    pairs: list[int] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)

    @property
    def nights(self) -> int:
        """How many were counted."""
        return self.calls.total()

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.calls + other.calls, self.pairs + other.pairs, self.found + other.found)


def bounds(hits: int, trials: int) -> tuple[float, float]:
    """Clopper-Pearson: the 95 % lower and the 95 % upper bound of a rate, each one-sided."""
    low = float(stats.beta.ppf(0.05, hits, trials - hits + 1)) if hits else 0.0
    high = float(stats.beta.ppf(0.95, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


def tally(nights: int, tpot: float, noise: Noise, seed: int, mode: Mode) -> Tally:
    """Independent nights: each has its own calibration, past nights and tonight, all under one noise."""
    result = Tally()
    rng = np.random.default_rng(seed)
    design = replace(DESIGN, trim=mode.trim)
    for _ in range(nights):
        floors = _calibration(noise, design, rng) if mode.calibrated else None
        past = past_nights(mode.window, noise, rng)
        tonight = Night(mode.window, noise, rng)
        measure = tonight.measure(tpot=tpot) if mode.pairs else None
        report = gate([tonight.run(tpot=tpot)], past, design, floors, measure)
        result.calls[report.call] += 1
        result.pairs.append(report.pairs)
        result.found.update(one.seen.metric for one in report.results if one.call is Call.REGRESSION)
    return result


def _calibration(noise: Noise, design: Design, rng: np.random.Generator) -> Calibration:
    night = Night(0, noise, rng)
    return calibrate([night.run() for _ in range(CALIBRATION_RUNS)], design)


def nights_table(nights: int, seed: int, only: str | None = None) -> Iterator[str]:
    """False alarms and power of the gate, by mode, truth and noise; `all` is every noise together."""
    yield "| mode | TPOT | run effect | nights | regression | 95 % bound | TPOT itself | pass | inconclusive | pairs |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for mode in (mode for mode in MODES if only in (None, mode.name)):
        for tpot in (1.0, 1.1, 1.05) if mode.main else (1.0, 1.1):
            parts = []
            for at, effect in enumerate(RUN_EFFECTS):
                wanted = nights if mode.main and tpot != 1.05 else nights // 5
                count = wanted * (at + 1) // 3 - wanted * at // 3
                part = tally(count, tpot, Noise(run=effect, stalls=mode.stalls), seed + at, mode)
                parts.append(part)
                yield _row(mode.name, tpot, f"{effect:.0%}", part)
            yield _row(mode.name, tpot, "all", sum(parts[1:], parts[0]))


def _row(mode: str, tpot: float, effect: str, found: Tally) -> str:
    n, hits = found.nights, found.calls[Call.REGRESSION]
    low, high = bounds(hits, n)
    bound = f"at most {high:.2%}" if tpot == 1.0 else f"at least {low:.1%}"
    passed = (found.calls[Call.PASS] + found.calls[Call.IMPROVEMENT]) / n
    cells = [
        mode,
        f"{tpot - 1:+.0%}",
        effect,
        str(n),
        f"{hits} ({hits / n:.2%})",
        bound,
        f"{found.found['tpot_mean'] / n:.1%}",
        f"{passed:.1%}",
        f"{found.calls[Call.INCONCLUSIVE] / n:.1%}",
        f"{np.mean(found.pairs):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def methods_table(trials: int, seed: int) -> Iterator[str]:
    """One-sided tests at 1 % of the mean of 500 log-normal requests, unchanged and 10 % slower, in ABBA order.

    The run effect is 2 %; requests with a spread of 0.5 add 2.4 % to a run's mean, with one of 0.1 they add 0.4 %.
    """
    yield "| | | | false alarms | | | | +10 % found | | |"
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    yield "| runs each | spread | drift | Welch | paired t | blocks | bootstrap | Welch | paired t | blocks |"
    for runs in (4, 8):
        for spread, drift in ((0.5, 0.0), (0.1, 0.0), (0.5, 0.1)):
            rng = np.random.default_rng(seed)
            hits: Counter[str] = Counter()
            for _ in range(trials):
                left, right = _abba(runs, spread, drift, rng)
                p_values = _p_values(left, right)
                shifts = bootstrap_shifts(left, right, lambda x: x.mean(-1), rng, draws=400)
                p_values["bootstrap"] = p_worse(shifts)
                hits.update(name for name, p in p_values.items() if p <= 0.01)
                changed = _p_values(left, [1.1 * run for run in right])
                hits.update(f"{name}+" for name, p in changed.items() if p <= 0.01)
            alarms = [hits[name] / trials for name in ("welch", "paired", "blocks", "bootstrap")]
            power = [hits[f"{name}+"] / trials for name in ("welch", "paired", "blocks")]
            cells = [f"{share:.1%}" for share in alarms] + [f"{share:.0%}" for share in power]
            yield f"| {runs} | {spread} | {drift:.0%} | {' | '.join(cells)} |"


def _abba(
    runs: int, spread: float, drift: float, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for at in range(2 * runs):
        side = (at % 4) in (1, 2)
        effect = rng.normal(0, 0.02) + drift * at / (2 * runs)
        sides[side].append(np.exp(effect + rng.normal(0, spread, 500)))
    return sides


def _p_values(left: list[np.ndarray], right: list[np.ndarray]) -> dict[str, float]:
    a, b = (np.array([run.mean() for run in side]) for side in (left, right))
    welch = ratio(a, b, worse=1, confidence=0.95)
    assert welch is not None  # means of positive numbers
    pairs = np.log(b) - np.log(a)
    blocks = pairs.reshape(-1, 2).mean(1)
    return {"welch": welch.p_worse, "paired": _one_sided(pairs), "blocks": _one_sided(blocks)}


def _one_sided(shifts: np.ndarray) -> float:
    return float(stats.ttest_1samp(shifts, 0, alternative="greater").pvalue)


def changes_table(series: int, seed: int) -> Iterator[str]:
    """Nights until a step after 30 quiet nights is flagged, as bench.md d.7 counts them, and alarms on quiet series."""
    yield "| noise | step | median nights until flagged | never within 15 | exact | among suspects | alarms, 45 quiet |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for noise in (0.01, 0.02, 0.04):
        rng = np.random.default_rng(seed)
        quiet = sum(bool(change_points(np.exp(rng.normal(0, noise, 45)))) for _ in range(series))
        for step in (0.03, 0.05, 0.10):
            waits, exact, inside = [], 0, 0
            for _ in range(series):
                logs = rng.normal(0, noise, 45)
                logs[30:] += np.log1p(step)
                wait, point = _wait(np.exp(logs))
                waits.append(wait)
                exact += point is not None and point.index == 30
                inside += point is not None and point.nights[0] <= 30 <= point.nights[1]
            flagged = [wait for wait in waits if wait <= 15]
            cells = [
                f"{noise:.0%}",
                f"{step:.0%}",
                f"{np.median(waits):.0f}" if np.median(waits) <= 15 else "more than 15",
                f"{1 - len(flagged) / series:.0%}",
                f"{exact / max(1, len(flagged)):.0%}",
                f"{inside / max(1, len(flagged)):.0%}",
                f"{quiet / series:.1%}",
            ]
            yield f"| {' | '.join(cells)} |"


def _wait(values: np.ndarray) -> tuple[int, ChangePoint | None]:
    for nights in range(1, 16):
        for point in change_points(values[: 30 + nights]):
            if point.index >= 25:
                return nights, point
    return 16, None


def speed_lines() -> Iterator[str]:
    """Milliseconds for a year of nights with three steps; the median of 20."""
    rng = np.random.default_rng(0)
    steps = [0, 90, 180, 270, 365]
    logs = np.concatenate([rng.normal(0.05 * at, 0.02, b - a) for at, (a, b) in enumerate(pairwise(steps))])
    times = []
    for _ in range(20):
        start = time.perf_counter()
        change_points(np.exp(logs))
        times.append(time.perf_counter() - start)
    yield f"365 nights with three steps: {1000 * float(np.median(times)):.1f} ms"


def main() -> None:
    """Print the tables asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "table", nargs="?", choices=["all", "nights", "methods", "changes", "speed"], default="all"
    )
    parser.add_argument("--mode", help="of the nights, only this one")
    parser.add_argument("--nights", type=int, default=5000)
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--series", type=int, default=400)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    tables = {
        "nights": lambda: nights_table(asked.nights, asked.seed, asked.mode),
        "methods": lambda: methods_table(asked.trials, asked.seed),
        "changes": lambda: changes_table(asked.series, asked.seed),
        "speed": speed_lines,
    }
    for name, table in tables.items():
        if asked.table in ("all", name):
            start = time.perf_counter()
            print(f"\n### {name}\n", flush=True)
            for line in table():
                print(line, flush=True)
            print(f"\n({time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
