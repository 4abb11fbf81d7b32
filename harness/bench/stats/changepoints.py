"""Where a series of nights changed its level: E-divisive with a t-test, then a merge of what proved weak.

The algorithm of Hunter (Fleming et al. 2023; Apache Otava), after Matteson and James (2014): candidates come from the
energy statistic inside sliding windows, so that a year-old step does not hide today's; each is tested against its
neighbours, and the weakest are removed one by one until all hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import special

from harness.errors import UsageError

Array = NDArray[np.float64]
P_VALUE = 0.0015
"""What the usual 0.001 of Hunter and Otava is: they hand a t-test of samples the deviation of a population (over n)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """``index`` is the first night of the new level; ``nights`` are the indices where the change may have happened.

    ``before`` and ``after``: mean logarithm of the stretch on either side. ``p_value``: two-sided t-test of the two.
    """

    index: int
    before: float
    after: float
    p_value: float
    nights: tuple[int, int]

    @property
    def share(self) -> float:
        """The change of the level: 0.1 is 10 % more."""
        return float(np.exp(self.after - self.before)) - 1


def change_points(
    values: Sequence[float] | Array, *, p_value: float = P_VALUE, window: int = 50, smallest: float = 0.0
) -> tuple[ChangePoint, ...]:
    """Change points of a series of positive values, oldest first.

    ``p_value``: of a change that stays. ``window``: nights that are looked at together. ``smallest``: least change of
    level (share). UsageError for a value that has no logarithm.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(numbers).all() and (numbers > 0).all()):
        wrong = numbers[~(np.isfinite(numbers) & (numbers > 0))][0]
        raise UsageError(f"change points: saw {wrong:g}, expected positive numbers; leave such nights out")
    logs = np.log(numbers)
    found = _merged(_split(logs, window, p_value * 10), logs, p_value, smallest)
    ends = [0, *found, len(logs)]
    return tuple(_change_point(logs, ends[at], ends[at + 1], ends[at + 2]) for at in range(len(found)))


def energy(series: Array) -> Array:
    """Energy statistic of every split and every end (Matteson and James 2014, alpha = 1); ``[n - 1, n - 1]``.

    Entry ``[t - 1, e - 2]`` holds X = series[:t], of l nights, against Y = series[t:e], of m nights:
    l m / (l + m) (2 mean|x - y| - mean|x - x'| - mean|y - y'|), the last two over distinct pairs; -inf without a Y.
    The end is free so that a second change further on does not blur the first.
    """
    n = len(series)
    distance = np.abs(series[:, None] - series[None, :])
    corner = distance.cumsum(0).cumsum(1)  # [n, n]; corner[i, j] is the sum of distance[:i + 1, :j + 1]
    split, end = np.arange(1, n)[:, None], np.arange(2, n + 1)[None, :]
    left, right = split, np.maximum(end - split, 1)
    within_left = corner.diagonal()[:-1, None]  # every pair twice, as in within_right
    across = corner[:-1, 1:] - within_left
    within_right = corner.diagonal()[None, 1:] - within_left - 2 * across
    # A stretch of one night has no distinct pair, and its sum is 0.
    mean_left = within_left / np.maximum(left * (left - 1), 1)
    mean_right = within_right / np.maximum(right * (right - 1), 1)
    statistic = left * right / (left + right) * (2 * across / (left * right) - mean_left - mean_right)
    return np.where(end > split, statistic, -np.inf)


def _split(logs: Array, window: int, p_value: float) -> list[int]:
    """Candidates from windows that begin at the last candidate, or half a window on."""
    found: list[int] = []
    start = 0
    while start < len(logs):
        inside = [start + at for at in _bisected(logs[start : start + window], p_value)]
        found += [index for index in inside if index not in found]
        start = max(max(inside, default=0), start + window // 2)
    return sorted(found)


def _bisected(series: Array, p_value: float) -> list[int]:
    """Top-down: the strongest split of all stretches, as long as it is significant."""
    ends = [0, len(series)]
    while True:
        best = max(
            (split for a, b in pairwise(ends) if (split := _strongest(series, a, b))),
            default=None,
        )
        if best is None:
            return ends[1:-1]
        _, index = best
        after = next(at for at, end in enumerate(ends) if end > index)
        if _p_value(series, ends[after - 1], index, ends[after]) > p_value:
            return ends[1:-1]
        ends.insert(after, index)


def _strongest(series: Array, start: int, end: int) -> tuple[float, int] | None:
    if end - start < 2:
        return None
    statistic = energy(series[start:end])
    at = int(statistic.max(axis=1).argmax())
    return float(statistic[at].max()), start + at + 1


def _merged(found: list[int], logs: Array, p_value: float, smallest: float) -> list[int]:
    """Without the weakest, one by one, each time with the stretches that its removal joined."""
    kept = list(found)
    while kept:
        ends = [0, *kept, len(logs)]
        p_values = [_p_value(logs, *ends[at : at + 3]) for at in range(len(kept))]
        weakest = int(np.argmax(p_values))
        if p_values[weakest] < p_value:
            levels = [float(logs[a:b].mean()) for a, b in pairwise(ends)]
            steps = np.abs(np.expm1(np.diff(levels)))
            weakest = int(steps.argmin())
            if steps[weakest] >= smallest:
                return kept
        del kept[weakest]
    return kept


def _p_value(logs: Array, start: int, index: int, end: int) -> float:
    """Two-sided t-test with one variance for both stretches, so that a single new night can be tested."""
    left, right = logs[start:index], logs[index:end]
    df = len(left) + len(right) - 2
    if df < 1:
        return 1.0
    spread = float(((left - left.mean()) ** 2).sum() + ((right - right.mean()) ** 2).sum())
    step = abs(float(right.mean() - left.mean()))
    se = sqrt(spread / df * (1 / len(left) + 1 / len(right)))
    if se <= 1e-12 * max(1.0, abs(float(left.mean()))):
        return 0.0 if step > se else 1.0
    return 2 * float(special.stdtr(df, -step / se))


def _change_point(logs: Array, start: int, index: int, end: int) -> ChangePoint:
    return ChangePoint(
        index=index,
        before=float(logs[start:index].mean()),
        after=float(logs[index:end].mean()),
        p_value=_p_value(logs, start, index, end),
        nights=_plausible(logs, start, index, end),
    )


def _plausible(logs: Array, start: int, index: int, end: int) -> tuple[int, int]:
    """First and last index around the split whose likelihood is within a factor exp(-1.92) of the best (95 %)."""
    stretch = logs[start:end]
    sizes = np.arange(1, len(stretch))
    sums = stretch.cumsum()[:-1]
    total, squares = float(stretch.sum()), float((stretch**2).sum())
    left_over = squares - sums**2 / sizes - (total - sums) ** 2 / (len(stretch) - sizes)
    limit = max(left_over.min(), 0.0) * np.exp(2 * 1.92 / len(stretch)) + 1e-15 * squares
    inside = np.flatnonzero(left_over <= limit) + start + 1
    return min(int(inside.min()), index), max(int(inside.max()), index)
