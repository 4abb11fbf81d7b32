"""A run as rows of a table, one per metric, and back. The schema has a version, kept in each file's metadata."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.bench.stats.fingerprint import identity
from harness.bench.stats.run import Direction, Run, Validity, Value
from harness.errors import UsageError

VERSION = 1
VERSION_KEY = b"specharness.history"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SCHEMA = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("commit", pa.string(), nullable=False),
        pa.field("series", pa.string(), nullable=False),
        pa.field("fingerprint", pa.string(), nullable=False),
        pa.field(
            "setting", pa.string(), nullable=False
        ),  # the fingerprint's mapping as JSON, in its own order
        pa.field("correct", pa.bool_(), nullable=False),
        pa.field("client_bound", pa.bool_(), nullable=False),
        pa.field("why", pa.string(), nullable=False),
        pa.field("metric", pa.string()),  # null in the one row of a run that has no metric
        pa.field("value", pa.float64()),
        pa.field("unit", pa.string()),
        pa.field("direction", pa.string()),
        pa.field("quantile", pa.float64()),
        pa.field("count", pa.int64()),
    ],
    metadata={VERSION_KEY: str(VERSION).encode()},
)


def to_parquet(run: Run) -> bytes:
    """The run as the bytes of a Parquet file; per-request samples are not part of it."""
    common = {
        "run": run.id,
        "time": run.time,
        "commit": run.commit,
        "series": run.series,
        "fingerprint": identity(run.fingerprint),
        "setting": json.dumps(dict(run.fingerprint)),
        "correct": run.validity.correct,
        "client_bound": run.validity.client_bound,
        "why": run.validity.why,
    }
    rows = [
        {
            **common,
            "metric": name,
            "value": value.value,
            "unit": value.unit,
            "direction": value.direction.value,
            "quantile": value.quantile,
            "count": value.count,
        }
        for name, value in run.values.items()
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows or [common], schema=SCHEMA), sink, compression="zstd")
    return sink.getvalue()


def from_parquet(data: bytes, where: str) -> list[Run]:
    """The runs in a file; UsageError, naming it, where it is damaged or of another version."""
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(
            use_threads=False
        )  # one small file needs no dataset
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"{where}: is no Parquet file: {first}", hint="move it out of the history") from None
    version = (table.schema.metadata or {}).get(VERSION_KEY, b"none").decode(errors="replace")
    if version != str(VERSION):
        raise UsageError(
            f"{where}: saw history schema {version}, expected {VERSION}",
            hint="read it with the version that wrote it, or upgrade this one",
        )
    try:
        rows = table.select(SCHEMA.names).cast(SCHEMA).to_pylist()
    except (KeyError, pa.ArrowException) as error:
        raise UsageError(
            f"{where}: does not hold what its schema says: {error}", hint="move it out of the history"
        ) from None
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(row["run"], []).append(row)
    return [_run(group) for group in grouped.values()]


def microseconds(time: datetime) -> int:
    """Since 1970, exact."""
    return (time - EPOCH) // timedelta(microseconds=1)


def _run(rows: list[dict[str, Any]]) -> Run:
    first = rows[0]
    return Run(
        fingerprint=json.loads(first["setting"]),
        values={
            row["metric"]: Value(
                value=row["value"],
                unit=row["unit"],
                direction=Direction(row["direction"]),
                quantile=row["quantile"],
                count=row["count"],
            )
            for row in rows
            if row["metric"] is not None
        },
        time=first["time"].astimezone(UTC),
        commit=first["commit"],
        validity=Validity(correct=first["correct"], client_bound=first["client_bound"], why=first["why"]),
        series=first["series"],
        id=first["run"],
    )
