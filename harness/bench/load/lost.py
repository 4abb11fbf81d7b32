"""A server that is gone in the middle of a run: requests that found none measured nothing, and are asked again.

A server that lives and closes streams was measured: only what failed behind the last stream that ended in another way
is of a server that is gone, and only the caller knows that it is.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

from harness.bench.load.store import PATTERN
from harness.bench.record import Outcome, RequestRecord
from harness.errors import TargetError

ASIDE = "lost-*.jsonl"
ENDED = (Outcome.CUT, Outcome.NO_CONNECTION)
"""How a stream ends that has no server any more."""


class ServerLost(TargetError):
    """The server at ``url`` was there, and is not any more. What it was measured by is kept."""

    exit_code = 1
    usual_hint = "see why it ended; the same command, or bench --resume RUN_DIR, asks what is missing"

    def __init__(self, message: str, *, url: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.url = url


def lost(records: Sequence[RequestRecord]) -> tuple[RequestRecord, ...]:
    """Those that a server which is gone left behind, of the run's records without its warm-up."""
    last = max((one.closed for one in records if one.outcome not in ENDED), default=-math.inf)
    return tuple(one for one in records if one.outcome in ENDED and one.closed > last)


def set_aside(folder: Path, records: Sequence[RequestRecord]) -> None:
    """Move their lines from the files of records into one of their own: they are asked again when the run goes on."""
    ids = {record.id for record in records}
    aside = folder / ASIDE.replace("*", str(len(list(folder.glob(ASIDE)))))
    for path in sorted(folder.glob(PATTERN)):
        lines = path.read_bytes().splitlines(keepends=True)
        gone = [line for line in lines if _is_of(line, ids)]
        with aside.open("ab") as file:
            file.writelines(gone)
        beside = path.with_name(f"{path.name}.new")
        beside.write_bytes(b"".join(line for line in lines if line not in gone))
        os.replace(beside, path)  # whole or not at all: a kill in between leaves a line twice, and loses none


def times_lost(folder: Path) -> tuple[int, int]:
    """How often the server was lost, and how many requests had to be asked again."""
    files = sorted(folder.glob(ASIDE))
    return len(files), sum(path.read_bytes().count(b"\n") for path in files)


def _is_of(line: bytes, ids: set[str]) -> bool:
    try:
        told = json.loads(line)
    except ValueError:  # cut by an earlier kill
        return False
    return told.get("line") == "request" and told["id"] in ids and not told["warm_up"]
