"""The history as its users see it: append a run, ask for runs, ask for the nightly series of a metric."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from math import exp, log
from pathlib import Path
from typing import Any

from harness.bench.history.dataset import Dataset
from harness.bench.history.index import Index
from harness.bench.history.rows import EPOCH, microseconds
from harness.bench.stats.fingerprint import identity
from harness.bench.stats.run import Direction, Run, Validity, Value
from harness.bench.stats.states import Night
from harness.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A fingerprint that the history knows: its id, what it stands for, how many runs, and when the last one was."""

    id: str
    fingerprint: Mapping[str, str]
    runs: int
    last: datetime


class History:
    """``url``: any fsspec URL. ``index``: where the sqlite index lies; a local history keeps it in its own folder, any
    other in memory unless told. Runs that other writers appended are seen by the next question.
    """

    def __init__(self, url: str, index: Path | None = None) -> None:
        self.dataset = Dataset(url)
        if index is None and self.dataset.is_local:
            index = Path(self.dataset.root) / "index.sqlite"
        self._index = Index(index)

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self._index.close()

    def append(self, run: Run) -> str:
        """Add a run, whole or not at all; returns the file's name within the history."""
        return self.dataset.append(run)

    def rebuild(self) -> int:
        """Make the index anew from the Parquet files; returns their number."""
        return self._index.rebuild(self.dataset)

    def settings(self) -> tuple[Setting, ...]:
        """Every fingerprint, the one that was run last first."""
        self._index.sync(self.dataset)
        rows = self._index.ask(
            "SELECT s.id, s.setting, COUNT(*), MAX(r.time) FROM runs r JOIN settings s ON s.id = r.fingerprint "
            "GROUP BY s.id ORDER BY MAX(r.time) DESC, s.id"
        )
        return tuple(
            Setting(id=name, fingerprint=json.loads(setting), runs=runs, last=_time(last))
            for name, setting, runs, last in rows
        )

    def runs(
        self,
        *,
        fingerprint: Mapping[str, str] | str | None = None,
        series: str | None = None,
        commit: str | None = None,
        metric: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> tuple[Run, ...]:
        """Runs that fit everything given, oldest first; with ``limit`` the newest so many of them.

        ``fingerprint``: a mapping or its id. ``commit``: a prefix. ``metric``: only runs that measured it (0 is
        measured, null is not), with that metric alone. ``since`` is included, ``until`` is not.
        """
        wanted: list[tuple[str, tuple[object, ...]]] = []
        if fingerprint is not None:
            name = fingerprint if isinstance(fingerprint, str) else identity(fingerprint)
            wanted.append(("r.fingerprint = ?", (name,)))
        if series is not None:
            wanted.append(("r.series = ?", (series,)))
        if commit is not None:
            wanted.append(("substr(r.hash, 1, ?) = ?", (len(commit), commit)))
        if metric is not None:
            measured = "SELECT 1 FROM metrics m WHERE m.run = r.id AND m.metric = ? AND m.value IS NOT NULL"
            wanted.append((f"EXISTS ({measured})", (metric,)))
        if since is not None:
            wanted.append(("r.time >= ?", (microseconds(_zoned(since)),)))
        if until is not None:
            wanted.append(("r.time < ?", (microseconds(_zoned(until)),)))
        self._index.sync(self.dataset)
        where = " AND ".join(clause for clause, _ in wanted) or "1"
        values = [value for _, given in wanted for value in given]
        rows = self._index.ask(
            "SELECT r.id, r.time, r.hash, r.series, s.setting, r.correct, r.client_bound, r.why "
            f"FROM runs r JOIN settings s ON s.id = r.fingerprint WHERE {where} "
            "ORDER BY r.time DESC, r.id DESC LIMIT ?",
            *values,
            -1 if limit is None else limit,
        )
        return tuple(self._run(row, metric) for row in reversed(rows))

    def nights(
        self, metric: str, *, fingerprint: Mapping[str, str] | str, series: str = "nightly"
    ) -> tuple[Direction | None, tuple[Night, ...]]:
        """The direction of a metric and its value night by night (UTC dates), for change points; oldest first.

        Runs that may not be compared and values of 0 or less are left out. The runs of one night are one point: their
        geometric mean and the commit of the last.
        """
        by_date: dict[date, list[Run]] = {}
        for run in self.runs(fingerprint=fingerprint, metric=metric, series=series):
            if (run.number(metric) or 0.0) > 0:
                by_date.setdefault(run.time.date(), []).append(run)
        points = []
        for runs in by_date.values():
            logs = [log(run.number(metric) or 1.0) for run in runs]
            points.append(Night(time=runs[-1].time, commit=runs[-1].commit, value=exp(sum(logs) / len(logs))))
        kinds = {run.values[metric].direction for runs in by_date.values() for run in runs}
        if len(kinds) > 1:
            raise UsageError(
                f"{metric}: the history holds it in both directions", hint="name one of them anew"
            )
        return next(iter(kinds), None), tuple(points)

    def _run(self, row: tuple[Any, ...], metric: str | None) -> Run:
        name, time, commit, series, setting, correct, client_bound, why = row
        only = ("", ()) if metric is None else (" AND metric = ?", (metric,))
        rows: list[tuple[Any, ...]] = self._index.ask(
            "SELECT metric, value, unit, direction, quantile, count FROM metrics "
            f"WHERE run = ?{only[0]} ORDER BY at",
            name,
            *only[1],
        )
        return Run(
            fingerprint=json.loads(setting),
            values={
                label: Value(value=value, unit=unit, direction=Direction(way), quantile=quantile, count=count)
                for label, value, unit, way, quantile, count in rows
            },
            time=_time(time),
            commit=commit,
            validity=Validity(correct=bool(correct), client_bound=bool(client_bound), why=why),
            series=series,
            id=name,
        )


def _time(stored: int) -> datetime:
    return EPOCH + timedelta(microseconds=stored)


def _zoned(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise UsageError(f"a time to ask for: saw {time} without a time zone, expected one")
    return time
