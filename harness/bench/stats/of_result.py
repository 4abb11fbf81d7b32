"""The flat figures of a benchmark result as values with unit and direction: what the statistics can work with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from harness.bench.stats.run import Direction, Run, Validity, Value, new_id
from harness.errors import UsageError

NAMESPACE = "specharness"  # the part of a result that is ours
CLOCK = re.compile(r"(?P<name>[a-z0-9_]+)\.(?:mean|median|p(?P<percent>\d+(?:\.\d+)?))_ms")
BETTER_HIGH = MappingProxyType(
    {
        "throughput.request": "req/s",
        "throughput.output": "tok/s",
        "throughput.total": "tok/s",
        "throughput.computed": "tok/s",
        "throughput.output_peak": "tok/s",
        "steady.output": "tok/s",
        "steady.request": "req/s",
        "goodput.per_second": "req/s",
        "goodput.attainment": "share",
        "valid_goodput.per_second": "req/s",
        "valid_goodput.attainment": "share",
        "acceptance.rate": "share",
        "acceptance.length": "tok",
    }
)
GATED: Mapping[str, float] = MappingProxyType(
    {
        "ttft.median_ms": 0.05,
        "ttft.p99_ms": 0.10,
        "tpot.mean_ms": 0.05,
        "tpot.p99_ms": 0.10,
        "e2el.mean_ms": 0.05,
        "throughput.output": 0.05,
    }
)
"""What the gate looks at unless told otherwise, each with the smallest change that matters."""


def values_of(flat: Mapping[str, float | None]) -> dict[str, Value]:
    """Values for every figure whose better direction is known; counts, spreads and set quantities are left out.

    ``flat``: dotted names, as ``metrics.summary.flat`` has them; ``NAME.n`` is how many samples ``NAME.p99_ms`` has.
    """
    found = {}
    for name, number in flat.items():
        clock = CLOCK.fullmatch(name)
        if name in BETTER_HIGH:
            found[name] = Value(value=number, unit=BETTER_HIGH[name], direction=Direction.HIGHER)
        elif clock:
            percent = "50" if name.endswith(".median_ms") else clock["percent"]
            count = flat.get(f"{clock['name']}.n")
            found[name] = Value(
                value=number,
                unit="ms",
                direction=Direction.LOWER,
                quantile=float(percent) / 100 if percent else None,
                count=None if count is None else int(count),
            )
    return found


def run_of(
    result: Mapping[str, Any],
    *,
    fingerprint: Mapping[str, str],
    commit: str,
    time: datetime,
    series: str = "nightly",
    client_bound: str = "",
    run_id: str | None = None,
) -> Run:
    """A run from a result as ``bench.result`` makes it; ``client_bound`` says why, where the client was the limit.

    ``run_id``: a new one where not given.

    UsageError where the result has no figures of ours (another tool's: import it first).
    """
    ours = result.get(NAMESPACE)
    if not isinstance(ours, Mapping) or not isinstance(ours.get("metrics"), Mapping):
        raise UsageError(
            f"a result: saw no {NAMESPACE}.metrics among {', '.join(sorted(result)) or 'nothing'}",
            hint="compare results of this benchmark, or import other tools' first",
        )
    because = "; ".join(str(reason) for reason in ours.get("invalid_because", ()))
    return Run(
        fingerprint=fingerprint,
        values=values_of(ours["metrics"]),
        time=time,
        commit=commit,
        validity=Validity(
            correct=ours.get("valid") is True,
            client_bound=bool(client_bound),
            why="; ".join(filter(None, (because, client_bound))),
        ),
        series=series,
        id=run_id or new_id(),
    )
