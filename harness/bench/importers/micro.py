"""Files of pytest-benchmark (``--benchmark-json``) as runs: the median time of each benchmark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.bench.importers.content import Content
from harness.bench.importers.imported import number, table, text
from harness.bench.revision import Revision
from harness.bench.stats.run import Direction, Run, Value
from harness.errors import UsageError

CELL, SERIES, SUFFIX = "micro", "micro", ".median_us"
EFFECT = 0.10
"""What matters of a micro-benchmark: a small loop moves by some percent with where its code happens to lie."""


def micro_of(content: Content) -> Mapping[str, Any] | None:
    """What pytest-benchmark wrote; ``None`` where it did not."""
    found = content.value
    if not isinstance(found, dict) or not isinstance(found.get("benchmarks"), list):
        return None
    return found if "machine_info" in found and "commit_info" in found else None


def has_micro(names: Iterable[str]) -> list[str]:
    """Those metrics that are of micro-benchmarks."""
    return [name for name in names if name.endswith(SUFFIX)]


def is_micro(run: Run) -> bool:
    """Whether a run is of micro-benchmarks, which are gated by all that they time."""
    return run.fingerprint.get("benchmark") == CELL


def effects_of(run: Run) -> dict[str, float]:
    """Every benchmark of a run, with what matters of it."""
    return dict.fromkeys(run.values, EFFECT)


def run_of_micro(
    content: Content, found: Mapping[str, Any], *, commit: str | None, series: str | None
) -> Run:
    """A run with one value for each benchmark, in microseconds.

    ``commit``: what the file says unless given; ``series``: one of their own unless given, for no night of a server is
    held against them. UsageError where it holds no times.
    """
    path, values = content.path, {}
    for one in map(table, found["benchmarks"]):
        name, stats = text(one.get("name")), table(one.get("stats"))
        median, rounds = number(stats.get("median")), number(stats.get("rounds"))
        if name and median:
            values[_metric(name)] = Value(
                value=median * 1e6,
                unit="us",
                direction=Direction.LOWER,
                count=None if rounds is None else int(rounds),
            )
    if not values:
        raise UsageError(f"{path}: saw no benchmark with a median", hint="make micro")
    return Run(
        fingerprint=_fingerprint(found),
        values=values,
        time=_time(path, found.get("datetime")),
        commit=commit or _commit(table(found.get("commit_info"))),
        series=series or SERIES,
        id=content.digest[:16],
    )


def _metric(name: str) -> str:
    """``test_sse_parser[1-x]`` -> ``sse_parser_1-x.median_us``."""
    return f"{re.sub(r'[^A-Za-z0-9-]+', '_', name.removeprefix('test_')).strip('_')}{SUFFIX}"


def _fingerprint(found: Mapping[str, Any]) -> dict[str, str]:
    machine = table(found.get("machine_info"))
    cpu = table(machine.get("cpu"))
    devices = {text(table(table(one).get("extra_info")).get("device")) for one in found["benchmarks"]}
    parts = [text(cpu.get("brand_raw")) or text(machine.get("machine")) or "", f"{cpu.get('count')} CPUs"]
    return {
        "benchmark": CELL,
        "hardware": ", ".join([*parts, *sorted(device for device in devices if device)]),
        "python": text(machine.get("python_version")) or "",
    }


def _commit(told: Mapping[str, Any]) -> str:
    commit = text(told.get("id"))
    return Revision(commit=commit, dirty=told.get("dirty") is True).name if commit else "unknown"


def _time(path: Path, told: object) -> datetime:
    try:
        found = datetime.fromisoformat(str(told))
    except ValueError:
        raise UsageError(f"{path}: saw datetime {told!r:.80}, expected ISO 8601", hint="make micro") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
