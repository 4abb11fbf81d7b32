"""Hierarchical bootstrap of a ratio: runs are drawn, then requests within them. For judging Welch, not for gating.

With a handful of runs its intervals are too narrow: n runs drawn from n have (n - 1) / n of the variance, and a
percentile interval has no t quantile. ``reports/baselines/bench.md`` has the figures that decided against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from harness.bench.stats.estimate import Array

Statistic = Callable[[Array], Array]
"""Requests ``[..., requests]`` -> a positive number each, ``[...]``."""


def bootstrap_shifts(
    baseline: Sequence[Array],
    candidate: Sequence[Array],
    statistic: Statistic,
    rng: np.random.Generator,
    draws: int = 1000,
) -> Array:
    """``[draws]`` log-ratios of candidate over baseline; each side holds one array of per-request values per run."""
    return _means(candidate, statistic, rng, draws) - _means(baseline, statistic, rng, draws)


def p_worse(shifts: Array) -> float:
    """One-sided p-value for 'larger': the share of draws that are not, never 0."""
    return float((shifts <= 0).sum() + 1) / (len(shifts) + 1)


def _means(runs: Sequence[Array], statistic: Statistic, rng: np.random.Generator, draws: int) -> Array:
    chosen = rng.integers(len(runs), size=(draws, len(runs)))
    logs = np.empty(chosen.shape)
    for at, requests in enumerate(runs):
        here = chosen == at
        picked = rng.integers(len(requests), size=(int(here.sum()), len(requests)))
        logs[here] = np.log(statistic(requests[picked]))
    means: Array = logs.mean(axis=1)
    return means
