"""Metrics of a history over the nights, with their changes of level, ready to be drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.bench.history.history import History
from harness.bench.stats.of_result import GATED
from harness.bench.stats.run import Direction
from harness.bench.stats.states import Acknowledgement, Change, Night, changes

USUAL_EFFECT = 0.05
"""The share that matters of a metric that is not gated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A metric of one setting, oldest night first; ``changes``: of this series, oldest first."""

    metric: str
    unit: str
    direction: Direction
    nights: Sequence[Night]
    changes: Sequence[Change]


def series_of(
    history: History,
    fingerprint: Mapping[str, str],
    series: str,
    metrics: Sequence[str],
    known: Sequence[Acknowledgement] = (),
) -> Iterator[Series]:
    """Those of the metrics that any night of a setting has. ``series``: the name of the nights."""
    for metric in metrics:
        direction, nights = history.nights(metric, fingerprint=fingerprint, series=series)
        if direction is None:
            continue
        (last,) = history.runs(fingerprint=fingerprint, metric=metric, series=series, limit=1)
        effect = GATED.get(metric, USUAL_EFFECT)
        yield Series(
            metric=metric,
            unit=last.values[metric].unit,
            direction=direction,
            nights=nights,
            changes=changes(metric, nights, direction, known, effect=effect),
        )
