"""The Parquet files: one per run, in a folder per month, at any fsspec URL. This is the truth; an index is only quick.

A file is written beside its place and moved there, so readers see whole runs or none; its name is the run's, so
writers never meet. Files are never changed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC

import fsspec

from harness.bench.history.rows import from_parquet, to_parquet
from harness.bench.stats.run import Run
from harness.errors import UsageError

RUNS = "runs/month=*/*.parquet"


class Dataset:
    """``url``: a folder, or anything that fsspec reads (``s3://bucket/history``, ``memory://history``)."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self.fs, self.root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"history {url}: cannot be opened: {error}",
                hint="use a folder, or install the fsspec package of that protocol",
            ) from None

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return isinstance(self.fs, fsspec.implementations.local.LocalFileSystem)

    def append(self, run: Run) -> str:
        """Write a run and return its file's name; the same run again changes nothing.

        UsageError where the run's id is taken by another, or nothing can be written.
        """
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", run.id) or run.id.startswith("."):
            raise UsageError(f"run id: saw {run.id!r}, expected 1 to 100 letters, digits, '.', '_' or '-'")
        time = run.time.astimezone(UTC)
        name = f"runs/month={time:%Y-%m}/{time:%Y%m%dT%H%M%S}-{run.id}.parquet"
        place = f"{self.root}/{name}"
        data = to_parquet(run)
        try:
            there = self._names_of(run.id)
            for one in there:
                (kept,) = from_parquet(self.fs.cat_file(f"{self.root}/{one}"), one)
                if replace(kept, time=time) != from_parquet(data, place)[0]:
                    raise UsageError(
                        f"{self.root}/{one}: holds another run of this id",
                        hint="give every run an id of its own",
                    )
        except OSError as error:
            raise self._unwritable(name, error) from None
        if there:
            return there[0]
        self.write(name, data)
        return name

    def _names_of(self, run_id: str) -> list[str]:
        """Files of a run: of another time where a machine of another zone read a date that says none."""
        return list(self.names(f"runs/month=*/????????T??????-{run_id}.parquet"))

    def write(self, name: str, data: bytes) -> None:
        """A file beside its place, and moved there; UsageError where it cannot be written."""
        place = f"{self.root}/{name}"
        folder = place.rpartition("/")[0]
        try:
            self.fs.makedirs(folder, exist_ok=True)
            beside = f"{folder}/_{uuid.uuid4().hex}.part"
            self.fs.pipe_file(beside, data)
            self.fs.mv(beside, place)
        except OSError as error:
            raise self._unwritable(name, error) from None

    def _unwritable(self, name: str, error: OSError) -> UsageError:
        return UsageError(
            f"history {self.url}: {name} cannot be written: {error}", hint="check its permissions and space"
        )

    def require_writable(self) -> None:
        """UsageError where no run could be appended: known before an hour is spent on one."""
        place = f"{self.root}/runs/_{uuid.uuid4().hex}.part"
        try:
            self.fs.makedirs(place.rpartition("/")[0], exist_ok=True)
            self.fs.pipe_file(place, b"")
            self.fs.rm_file(place)
        except OSError as error:
            raise self._unwritable("a file of it", error) from None

    def names(self, pattern: str = RUNS) -> dict[str, int]:
        """Every file's name (those of runs unless told), relative to the root, with its size in bytes."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.glob(f"{self.root}/{pattern}", detail=True)
        except OSError as error:
            raise UsageError(f"history {self.url}: cannot be listed: {error}") from None
        start = len(self.root.rstrip("/")) + 1
        return {path[start:]: int(entry["size"] or 0) for path, entry in sorted(found.items())}

    def read(self, name: str) -> list[Run]:
        """The runs in a file."""
        return from_parquet(self.content(name), f"{self.url.rstrip('/')}/{name}")

    def content(self, name: str) -> bytes:
        """A file of the history; UsageError where it cannot be read."""
        try:
            found: bytes = self.fs.cat_file(f"{self.root}/{name}")
        except OSError as error:
            raise UsageError(f"history {self.url}: {name} cannot be read: {error}") from None
        return found

    def __iter__(self) -> Iterator[Run]:
        for name in self.names():
            yield from self.read(name)
