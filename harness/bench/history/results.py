"""Result files of ``bench`` on disk as runs: a file, a run directory, or a folder of run directories."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from harness.bench.importers.content import Content, content_of
from harness.bench.importers.micro import CELL, micro_of, run_of_micro
from harness.bench.importers.runs import runs_of
from harness.bench.result import NAMESPACE, read_result, require_result
from harness.bench.revision import Revision
from harness.bench.stats.of_result import run_of
from harness.bench.stats.run import Run
from harness.errors import UsageError

UNKNOWN = "unknown"
"""The commit of a run of which nobody said it."""
USUAL = "nightly"
"""Series of nightly runs."""
FOREIGN = (".json", ".jsonl", ".txt")
"""Endings of other tools' results."""
NEXT = "pass a result-CELL.json or a run directory that `specharness bench` made"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A run, the file that it came from, and its cell (letters, digits, ``.``, ``_``, ``-``).

    ``notes``: how another tool's words are meant.
    """

    path: Path
    cell: str
    run: Run
    notes: tuple[str, ...] = ()


def find(path: Path, *, imports: bool = False) -> tuple[Path, ...]:
    """Result files of a path; UsageError where it has none. ``imports``: also other tools', with names of their own."""
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such file or directory", hint=NEXT)
    found = sorted(path.glob("result-*.json")) or sorted(path.glob("*/result-*.json"))
    if not found and imports:
        found = sorted(file for file in path.iterdir() if file.suffix in FOREIGN and file.is_file())
    if not found:
        raise UsageError(
            f"{path}: saw no result-*.json in it, nor in a directory in it, expected one for each cell",
            hint=NEXT,
        )
    return tuple(found)


def read(path: Path, *, commit: str | None = None, series: str = USUAL) -> Found:
    """The run in a result file, ours or pytest-benchmark's.

    ``commit`` overrules what the file says; a file that says none is ``UNKNOWN``.

    The run's id is made of the file's bytes, so the same file is the same run. UsageError where it is no result of
    ours.
    """
    return _read(content_of(path), commit, series)


def _read(content: Content, commit: str | None, series: str) -> Found:
    path = content.path
    if (micro := micro_of(content)) is not None:
        run = run_of_micro(content, micro, commit=commit, series=None if series == USUAL else series)
        return Found(path=path, cell=CELL, run=run)
    result = read_result(path) if content.value is None else require_result(content.value, path)
    ours = result.get(NAMESPACE)
    if not isinstance(ours, dict):
        raise UsageError(
            f"{path}: saw no key {NAMESPACE!r}, so another tool made it: nothing says of what setting it is, or "
            "whether its answers were right",
            hint="measure with `specharness bench --base-url URL`; compare alone takes it as it is",
        )
    fingerprint, health = _texts(path, ours.get("fingerprint")), ours.get("health") or {}
    _check_metrics(path, ours.get("metrics"))
    lists = (ours.get("invalid_because", []), health.get("because", []) if isinstance(health, dict) else None)
    if not all(isinstance(one, list) for one in lists):
        raise UsageError(f"{path}: saw health or invalid_because of another form", hint=NEXT)
    bound = ""
    if health.get("client_bound"):
        bound = "; ".join(map(str, health.get("because", []))) or "the client was the limit"
    run = run_of(
        result,
        fingerprint=fingerprint,
        commit=commit or _commit(ours),
        time=_time(path, result.get("date")) if ours.get("time") is None else _zoned(path, ours["time"]),
        series=series,
        client_bound=bound,
        run_id=content.digest[:16],
    )
    return Found(path=path, cell=_cell(path, ours.get("cell")), run=run)


def read_all(
    paths: Iterable[Path], *, commit: str | None = None, series: str = USUAL, imports: bool = False
) -> dict[str, tuple[Found, ...]]:
    """Runs by cell, each cell's in the order they were made. The same file twice is a UsageError.

    ``imports``: also of the other tools that ``bench.importers`` reads.
    """
    cells: dict[str, list[Found]] = {}
    seen: dict[str, Path] = {}
    for path in paths:
        for file in find(path, imports=imports):
            content = content_of(file)
            several = (
                _imported(content) if imports and is_foreign(content) else (_read(content, commit, series),)
            )
            for found in several:
                if found.run.id in seen:
                    raise UsageError(
                        f"{file}: is the same run as {seen[found.run.id]}, expected different ones",
                        hint="one run counted twice looks like two that agree: name it once",
                    )
                seen[found.run.id] = file
                cells.setdefault(found.cell, []).append(found)
    return {cell: tuple(sorted(runs, key=lambda one: one.run.time)) for cell, runs in sorted(cells.items())}


def is_foreign(content: Content) -> bool:
    """Whether a file holds no result of ours: then another tool made it, or nobody did."""
    if micro_of(content) is not None:
        return False
    return not isinstance(content.value, dict) or not {NAMESPACE, "completed"} <= set(content.value)


def _imported(content: Content) -> tuple[Found, ...]:
    path = content.path
    return tuple(
        Found(path=path, cell=_cell(path, cell), run=run, notes=(*one.notes, *one.warnings))
        for cell, run, one in runs_of(content)
    )


def _commit(ours: Mapping[str, Any]) -> str:
    """As ``git describe --dirty`` writes it. Results of earlier versions say none."""
    told = ours.get("commit")
    if not isinstance(told, str) or not told:
        return UNKNOWN
    return Revision(commit=told, dirty=ours.get("dirty") is True).name


def _cell(path: Path, told: object) -> str:
    name = told if isinstance(told, str) and told else path.stem.removeprefix("result-")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100]


def _texts(path: Path, told: object) -> Mapping[str, str]:
    if not isinstance(told, dict) or not told or not all(isinstance(value, str) for value in told.values()):
        raise UsageError(
            f"{path}: saw {NAMESPACE}.fingerprint {told!r:.80}, expected an object of texts: runs are compared only "
            "where it agrees",
            hint=NEXT,
        )
    return told


def _check_metrics(path: Path, told: object) -> None:
    if not isinstance(told, dict):
        raise UsageError(f"{path}: saw {NAMESPACE}.metrics {told!r:.80}, expected an object", hint=NEXT)
    for name, value in told.items():
        if value is not None and not _is_number(value):
            raise UsageError(
                f"{path}: saw {NAMESPACE}.metrics, {name!r:.80}: {value!r:.80}, expected a finite number or null",
                hint=NEXT,
            )


def _is_number(value: Any) -> bool:
    """Finite as a float: JSON has integers of any length."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False


def _time(path: Path, told: object) -> datetime:
    """``date`` of a result is local time, as vLLM writes it."""
    try:
        return datetime.strptime(str(told), "%Y%m%d-%H%M%S").astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(f"{path}: saw date {told!r:.80}, expected YYYYMMDD-HHMMSS", hint=NEXT) from None


def _zoned(path: Path, told: object) -> datetime:
    """When the run began. ``date`` has no zone, so another machine reads another moment in it."""
    try:
        found = datetime.fromisoformat(str(told))
        if found.tzinfo is None:
            raise ValueError("no zone")
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{path}: saw {NAMESPACE}.time {told!r:.80}, expected a time with its zone", hint=NEXT
        ) from None
