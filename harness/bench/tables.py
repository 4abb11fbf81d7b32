"""A run as three Parquet tables, from which every metric can be computed again: ``runs``, ``requests``, ``chunks``.

    FOLDER/runs/RUN.parquet             one row: what the run was, as JSON
    FOLDER/requests/RUN-00000.parquet   parts, each written whole as the run goes on
    FOLDER/chunks/RUN-00000.parquet

A part appears by one rename, chunks before requests: whatever kills a run leaves tables that can be read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.bench.record import Chunk, Kind, Outcome, RequestRecord
from harness.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = "1"
TABLES = ("runs", "requests", "chunks")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,120}")
_FIELDS = [field.name for field in fields(RequestRecord) if field.name != "chunks"]


def schemas() -> dict[str, pa.Schema]:
    """The columns of each table; times are seconds of the run's clock, an empty cell is what nobody told."""
    import pyarrow as pa

    word = pa.dictionary(pa.int32(), pa.string())
    times = [pa.field(name, pa.float64(), nullable=False) for name in ("scheduled", "sent", "closed")]
    counts = ("status", "prompt_tokens", "cached_tokens", "completion_tokens", "requested_tokens")
    lists = [pa.field(name, pa.list_(pa.int32())) for name in ("token_ids", "drafted", "accepted")]
    requests = [
        pa.field("run", word),
        pa.field("id", pa.string(), nullable=False),
        *times,
        pa.field("outcome", word),
        pa.field("detail", pa.string()),
        *[pa.field(name, pa.int64()) for name in counts],
        pa.field("finish_reason", word),
        pa.field("guide", word),
        pa.field("text", pa.string()),
        *lists,
        pa.field("warm_up", pa.bool_()),
        pa.field("extra", pa.map_(pa.string(), pa.string())),
    ]
    chunks = [
        pa.field("run", word),
        pa.field("id", word),
        pa.field("place", pa.int32(), nullable=False),
        pa.field("at", pa.float64(), nullable=False),
        pa.field("kind", word),
        pa.field("tokens", pa.int32()),
        pa.field("coalesced", pa.bool_()),
    ]
    runs = [pa.field("run", pa.string(), nullable=False), pa.field("about", pa.string(), nullable=False)]
    tag = {b"specharness": VERSION.encode()}
    return {
        name: pa.schema(columns, metadata=tag)
        for name, columns in zip(TABLES, (runs, requests, chunks), strict=True)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A run read back: ``about`` is what was written of it, empty for one that was killed before."""

    run: str
    about: Mapping[str, Any]
    records: tuple[RequestRecord, ...]


def write_run(folder: Path, run: str, about: Mapping[str, Any]) -> Path:
    """The run's own row: its result, setting, fingerprint; anything JSON can hold."""
    return _write(folder, "runs", _named(run), {"run": [run], "about": [json.dumps(about, allow_nan=False)]})


def write_part(folder: Path, run: str, part: int, records: Sequence[RequestRecord]) -> None:
    """Requests that ended since the last part, with their chunks. Each request belongs to one part."""
    name = f"{_named(run)}-{part:05d}"
    _write(folder, "chunks", name, _chunk_columns(run, records))
    rows = [_request_row(run, record) for record in records]
    _write(folder, "requests", name, {key: [row[key] for row in rows] for key in ("run", *_FIELDS)})


def read_runs(folder: Path) -> list[str]:
    """The names of all runs that left a row or a part."""
    names = {path.stem for path in _files(folder, "runs", "*")}
    parts = {path.stem.rpartition("-")[0] for path in _files(folder, "requests", "*")}
    return sorted(names | parts)


def read_run(folder: Path, run: str) -> Stored:
    """UsageError where there is no such run, or a table of it is damaged."""
    name = _named(run)
    about = [json.loads(told) for path in _files(folder, "runs", name) for told in _read(path)["about"]]
    parts = [path for path in _files(folder, "requests", f"{name}-*") if _is_part(path, name)]
    if not about and not parts:
        known = ", ".join(read_runs(folder)[:5]) or "none"
        raise UsageError(f"{folder}: saw no run {run!r}, expected one of: {known}")
    records = [record for path in parts for record in _records(folder, path)]
    return Stored(run=run, about=about[0] if about else {}, records=tuple(records))


def _named(run: str) -> str:
    if not _NAME.fullmatch(run) or run.startswith("."):
        raise UsageError(f"saw run name {run!r}, expected letters, digits, dot, dash and underscore")
    return run


def _is_part(path: Path, run: str) -> bool:
    """``a-b-00000`` is a part of the run ``a-b``, not of ``a``."""
    return bool(re.fullmatch(rf"{re.escape(run)}-\d{{5,}}", path.stem))


def _files(folder: Path, table: str, pattern: str) -> list[Path]:
    return sorted(path for path in (folder / table).glob(f"{pattern}.parquet") if path.name[0] != ".")


def _write(folder: Path, table: str, name: str, columns: Mapping[str, Sequence[Any]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = folder / table / f"{name}.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{name}.part")
    pq.write_table(pa.Table.from_pydict(dict(columns), schema=schemas()[table]), scratch, compression="zstd")
    os.replace(scratch, target)
    return target


def _read(path: Path) -> dict[str, list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        columns: dict[str, list[Any]] = pq.ParquetFile(path).read().to_pydict()
    except (OSError, pa.ArrowInvalid) as error:
        raise UsageError(f"{path}: cannot be read as a table: {error}") from None
    return columns


def _request_row(run: str, record: RequestRecord) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in _FIELDS}
    row |= {"text": _utf8(record.text), "detail": _utf8(record.detail)}
    return row | {"run": run, "outcome": record.outcome.name, "extra": list(record.extra.items())}


def _utf8(text: str) -> str:
    """A server may send half of a surrogate pair, which no table holds."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _chunk_columns(run: str, records: Sequence[RequestRecord]) -> dict[str, list[Any]]:
    """By columns: a night has a million chunks, and a dict for each would take a minute."""
    chunks = [chunk for record in records for chunk in record.chunks]
    return {
        "run": [run] * len(chunks),
        "id": [record.id for record in records for _ in record.chunks],
        "place": [place for record in records for place in range(len(record.chunks))],
        "at": [chunk.at for chunk in chunks],
        "kind": [chunk.kind.name for chunk in chunks],
        "tokens": [chunk.tokens for chunk in chunks],
        "coalesced": [chunk.coalesced for chunk in chunks],
    }


def _records(folder: Path, part: Path) -> Iterator[RequestRecord]:
    chunks: dict[str, list[Chunk]] = {}
    columns = _read(folder / "chunks" / part.name)
    kinds = {kind.name: kind for kind in Kind}
    for name, at, kind, tokens, coalesced in zip(
        *(columns[key] for key in ("id", "at", "kind", "tokens", "coalesced")), strict=True
    ):
        chunk = Chunk(at=at, kind=kinds[kind], tokens=tokens, coalesced=coalesced)
        chunks.setdefault(name, []).append(chunk)
    found = _read(part)
    for place, name in enumerate(found["id"]):
        row = {key: values[place] for key, values in found.items() if key != "run"}
        row |= {key: tuple(row[key]) for key in ("token_ids", "drafted", "accepted")}
        row |= {"outcome": Outcome[row["outcome"]], "extra": dict(row["extra"])}
        yield RequestRecord(**row, chunks=tuple(chunks.get(name, ())))
