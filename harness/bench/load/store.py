"""Records on disk as they come, one line of JSON each: what is measured survives ``kill -9``, and the run can go on.

A run that was killed and goes on has parts. Each part is a line that says where its clock goes on, so the time between
them is in no figure.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from harness.bench.load.call import Call
from harness.bench.load.health import Pulses
from harness.bench.load.shape import Shape
from harness.bench.record import Chunk, Kind, Outcome, RequestRecord
from harness.errors import UsageError

PATTERN = "records-*.jsonl"


class Part(msgspec.Struct, tag_field="line", tag="part", frozen=True):
    """The first line of a part. ``begin``: where its clock goes on, in seconds; ``unix``: when that was."""

    plan: str
    begin: float
    unix: float


class _Chunk(msgspec.Struct, array_like=True, frozen=True):
    at: float
    kind: Kind
    tokens: int | None
    coalesced: bool


class _Request(msgspec.Struct, tag_field="line", tag="request", frozen=True):
    id: str
    scheduled: float
    sent: float
    closed: float
    outcome: Outcome
    chunks: list[_Chunk]
    detail: str
    status: int | None
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    requested_tokens: int | None
    guide: str | None
    text: str
    token_ids: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    warm_up: bool
    extra: dict[str, str]


class _Pulses(msgspec.Struct, tag_field="line", tag="pulses", frozen=True):
    loop_lags: list[float]
    dispatch_lags: list[float]
    gc_pauses: list[float]
    cpu: float
    wall: float


_NAMES = tuple(name for name in _Request.__struct_fields__ if name != "chunks")
_LINE = msgspec.json.Decoder(Part | _Request | _Pulses)


class RecordFile:
    """Appends lines, each with one system call: the kernel has it when ``keep`` comes back."""

    def __init__(self, path: Path) -> None:
        self.kept = 0
        self._encoder = msgspec.json.Encoder()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if _is_torn(path):
            self._append(b"\n")

    def begin(self, part: Part) -> None:
        """A part begins."""
        self._append(self._encoder.encode(part) + b"\n")

    def keep(self, record: RequestRecord) -> None:
        """A record is there."""
        line: dict[str, Any] = {name: getattr(record, name) for name in _NAMES}
        line["chunks"] = [(c.at, c.kind, c.tokens, c.coalesced) for c in record.chunks]
        self._append(self._encoder.encode({"line": "request", **line}) + b"\n")
        self.kept += not record.warm_up

    def end(self, pulses: Pulses) -> None:
        """A part is over, and this is what its process measured of itself. Microseconds are enough."""
        told = _Pulses(
            loop_lags=[round(lag, 6) for lag in pulses.loop_lags],
            dispatch_lags=[round(lag, 6) for lag in pulses.dispatch_lags],
            gc_pauses=pulses.gc_pauses,
            cpu=pulses.cpu,
            wall=pulses.wall,
        )
        self._append(self._encoder.encode(told) + b"\n")

    def _append(self, line: bytes) -> None:
        """Whole, or an OSError: a disk that fills up takes a part of it first, and the next line would follow that."""
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        os.close(self._file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is on disk, by the time of sending; ``parts`` as they began, ``pulses`` of the processes that ended."""

    records: tuple[RequestRecord, ...] = ()
    parts: tuple[Part, ...] = ()
    pulses: tuple[Pulses, ...] = ()

    @property
    def done(self) -> frozenset[str]:
        """The calls that need not be sent again: a failed one was measured too."""
        return frozenset(record.id for record in self.records if not record.warm_up)

    @property
    def ended(self) -> float:
        """When the last thing that is known happened, in seconds on the run's clock."""
        return max((record.closed for record in self.records), default=0.0)


def read_records(folder: Path) -> Kept:
    """Everything that all processes of a run kept. A last line that was cut by ``kill -9`` is left out.

    Raises:
        UsageError: a line that is not the last cannot be read.
    """
    records: list[RequestRecord] = []
    parts: list[Part] = []
    pulses: list[Pulses] = []
    for path in sorted(folder.glob(PATTERN)):
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                told = _LINE.decode(line)
            except msgspec.DecodeError as error:
                if number == len(lines) or _follows_a_kill(lines, number):
                    continue
                raise UsageError(
                    f"{path}, line {number}: saw {line[:60]!r} ({error}), expected a record",
                    hint="remove that line; the others are read as they are",
                ) from None
            if isinstance(told, Part):
                parts.append(told)
            elif isinstance(told, _Pulses):
                pulses.append(Pulses(**msgspec.structs.asdict(told)))
            else:
                records.append(_record(told))
    records.sort(key=lambda record: record.sent)
    parts.sort(key=lambda part: part.begin)
    return Kept(records=tuple(records), parts=tuple(parts), pulses=tuple(pulses))


def _follows_a_kill(lines: Sequence[bytes], number: int) -> bool:
    """Whether the next line begins a part: then this one was being written when the run was killed."""
    return lines[number].startswith(b'{"line":"part"')


def _record(told: _Request) -> RequestRecord:
    chunks = tuple(Chunk(at=c.at, kind=c.kind, tokens=c.tokens, coalesced=c.coalesced) for c in told.chunks)
    return RequestRecord(chunks=chunks, **{name: getattr(told, name) for name in _NAMES})


def _is_torn(path: Path) -> bool:
    """Whether the last line has no end."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def plan_digest(calls: Iterable[Call], shape: Shape) -> str:
    """What a run must have in common with itself to go on."""
    digest = hashlib.sha256(repr(shape).encode())
    for call in calls:
        digest.update(f"{call.id}\0{call.path}\0".encode())
        digest.update(call.body)
    return digest.hexdigest()[:16]
