"""A small sqlite index of the dataset: quick to ask, never the truth, made anew where it is missing, old or damaged."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.bench.history.dataset import Dataset
from harness.bench.history.rows import microseconds
from harness.bench.stats.fingerprint import identity
from harness.bench.stats.run import Run
from harness.errors import UsageError

VERSION = 1
PATIENCE_S = 60.0
TABLES = """
CREATE TABLE files (name TEXT PRIMARY KEY, size INTEGER NOT NULL);
CREATE TABLE settings (id TEXT PRIMARY KEY, setting TEXT NOT NULL);
CREATE TABLE runs (
    id TEXT PRIMARY KEY, file TEXT NOT NULL, time INTEGER NOT NULL, hash TEXT NOT NULL, series TEXT NOT NULL,
    fingerprint TEXT NOT NULL, correct INTEGER NOT NULL, client_bound INTEGER NOT NULL, why TEXT NOT NULL);
CREATE TABLE metrics (
    run TEXT NOT NULL, at INTEGER NOT NULL, metric TEXT NOT NULL, value REAL, unit TEXT NOT NULL,
    direction TEXT NOT NULL, quantile REAL, count INTEGER, PRIMARY KEY (run, metric)) WITHOUT ROWID;
CREATE INDEX by_setting ON runs (fingerprint, time);
CREATE INDEX by_file ON runs (file);
"""


class Index:
    """``path``: the sqlite file, or ``None`` to keep it in memory, as is done where it cannot be written."""

    def __init__(self, path: Path | None) -> None:
        self.path = path if path is not None and _is_writable(path) else None
        try:
            self._db = self._opened()
        except sqlite3.DatabaseError as error:
            if self.path is None or _is_locked(error):
                raise UsageError(
                    f"{path}: cannot be opened: {error}", hint="wait for the other writer"
                ) from None
            if isinstance(error, sqlite3.OperationalError):  # a disk that is full, or knows no locks
                self.path = None
            else:
                self.path.unlink()  # not a database: the dataset has everything that was in it
            self._db = self._opened()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def sync(self, dataset: Dataset) -> int:
        """Take in files that the index lacks, drop those that are gone, and return how many changed."""
        there = dataset.names()
        known = dict(self._db.execute("SELECT name, size FROM files"))
        gone = [name for name in known if known[name] != there.get(name)]
        new = {name: dataset.read(name) for name, size in there.items() if known.get(name) != size}
        if gone or new:
            with self._writing():
                for name in gone:
                    self._drop(name)
                for name, runs in new.items():
                    self._drop(name)
                    self._db.execute("INSERT INTO files VALUES (?, ?)", (name, there[name]))
                    for run in runs:
                        self._add(name, run)
        return len(set(gone) | set(new))

    def rebuild(self, dataset: Dataset) -> int:
        """Forget everything and read the dataset again; returns how many files it has."""
        with self._writing():
            for table in ("files", "settings", "runs", "metrics"):
                self._db.execute(f"DELETE FROM {table}")
        return self.sync(dataset)

    def ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of a SELECT."""
        return self._db.execute(question, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")  # waits for other writers here, and not half-way
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _opened(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path or ":memory:", timeout=PATIENCE_S, isolation_level=None)
        # pages may be damaged behind a sound header
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        db.execute("BEGIN IMMEDIATE")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                db.execute(f'DROP TABLE "{name}"')
            for statement in filter(str.strip, TABLES.split(";")):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
        return db

    def _drop(self, name: str) -> None:
        self._db.execute("DELETE FROM metrics WHERE run IN (SELECT id FROM runs WHERE file = ?)", (name,))
        self._db.execute("DELETE FROM runs WHERE file = ?", (name,))
        self._db.execute("DELETE FROM files WHERE name = ?", (name,))

    def _add(self, name: str, run: Run) -> None:
        taken = self._db.execute("SELECT file FROM runs WHERE id = ?", (run.id,)).fetchone()
        if taken:
            raise UsageError(
                f"run {run.id} stands in {taken[0]} and in {name}", hint="move one out of the history"
            )
        setting = (identity(run.fingerprint), json.dumps(dict(run.fingerprint)))
        self._db.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", setting)
        validity = (run.validity.correct, run.validity.client_bound, run.validity.why)
        self._db.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (run.id, name, microseconds(run.time), run.commit, run.series, setting[0], *validity),
        )
        self._db.executemany(
            "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (run.id, at, metric, v.value, v.unit, v.direction.value, v.quantile, v.count)
                for at, (metric, v) in enumerate(run.values.items())
            ],
        )


def _is_writable(path: Path) -> bool:
    """Whether the file, and its journal beside it, can be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    there = path.is_file() or not path.exists()
    return there and all(os.access(one, os.W_OK) for one in (path.parent, path) if one.exists())


def _is_locked(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
