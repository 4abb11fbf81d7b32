"""Runs with given values, for tests of statistics and history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from harness.bench.stats.run import Direction, Run, Validity, Value

SETTING = {"hardware": "H200", "model": "tiny", "flags": "--k 3"}
START = datetime(2026, 3, 1, 2, tzinfo=UTC)
VALID = Validity()


def ms(value: float | None, **more: float | int | None) -> Value:
    """A latency."""
    return Value(value=value, unit="ms", direction=Direction.LOWER, **more)


def per_second(value: float | None) -> Value:
    """A throughput."""
    return Value(value=value, unit="tok/s", direction=Direction.HIGHER)


def run(
    values: Mapping[str, Value],
    *,
    day: float = 0,
    setting: Mapping[str, str] = SETTING,
    commit: str = "a" * 40,
    validity: Validity = VALID,
    series: str = "nightly",
) -> Run:
    """A run ``day`` days after the first of March."""
    return Run(
        fingerprint=setting,
        values=values,
        time=START + timedelta(days=day),
        commit=commit,
        validity=validity,
        series=series,
    )


def runs(values: Sequence[float | None], metric: str = "tpot", first_day: float = 0) -> list[Run]:
    """One run a day, each with one latency."""
    return [run({metric: ms(value)}, day=first_day + day) for day, value in enumerate(values)]
