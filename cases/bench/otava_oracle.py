"""Our change points beside those of Apache Otava, on the same series.

    pip download apache-otava==0.8.0 --no-deps -d otava && unzip -d otava otava/*.whl
    python -m cases.bench.otava_oracle otava

Otava pins numpy and brings clients of four services, so it is no dependency: only its analysis is read, from a folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from harness.bench.stats.changepoints import P_VALUE, change_points

Finder = Callable[[np.ndarray], Sequence[int]]
QUIET, LONGEST = 30, 15


def nights_until(find: Finder, values: np.ndarray) -> int:
    """Nights after the step until one change point lies near it; LONGEST + 1 where none did."""
    for nights in range(1, LONGEST + 1):
        if any(index >= QUIET - 5 for index in find(values[: QUIET + nights])):
            return nights
    return LONGEST + 1


def main() -> None:
    """Print medians, and how often a quiet series raised an alarm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the wheel was unpacked")
    parser.add_argument("--series", type=int, default=200)
    asked = parser.parse_args()
    sys.path.append(str(asked.folder))
    from otava.analysis import compute_change_points

    finders: dict[str, Finder] = {
        "Otava, p 0.001": lambda values: [
            point.index for point in compute_change_points(list(values), 50)[0]
        ],
        "ours, p 0.001": lambda values: [point.index for point in change_points(values, p_value=0.001)],
        f"ours, p {P_VALUE}": lambda values: [point.index for point in change_points(values)],
    }
    rng = np.random.default_rng(1)
    print(f"| noise | step | {' | '.join(finders)} |\n|---:|---:|{'---:|' * len(finders)}")
    for noise, step in ((0.01, 0.03), (0.02, 0.03), (0.02, 0.05), (0.02, 0.1), (0.04, 0.05), (0.04, 0.1)):
        waits: dict[str, list[int]] = {name: [] for name in finders}
        for _ in range(asked.series):
            logs = rng.normal(0, noise, QUIET + LONGEST)
            logs[QUIET:] += np.log1p(step)
            for name, find in finders.items():
                waits[name].append(nights_until(find, np.exp(logs)))
        cells = [f"{np.median(found):g} (mean {np.mean(found):.1f})" for found in waits.values()]
        print(f"| {noise:.0%} | {step:.0%} | {' | '.join(cells)} |", flush=True)
    quiet = [np.exp(rng.normal(0, 0.02, QUIET + LONGEST)) for _ in range(5 * asked.series)]
    rates = [sum(bool(find(values)) for values in quiet) / len(quiet) for find in finders.values()]
    print(f"| 2% | alarms | {' | '.join(f'{rate:.1%}' for rate in rates)} |")


if __name__ == "__main__":
    main()
