"""What a run leaves: a folder under ``reports/`` with lines of JSON that are written as they come."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape


def begin(reports: Path, name: str) -> Path:
    """A new folder."""
    folder = reports / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder.mkdir(parents=True)
    return folder


class Lines:
    """A file of JSON lines. Each is in the system's hands before ``write`` returns: whoever is killed loses none, and a
    line is whole or not there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Lines:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def write(self, content: Any) -> None:
        """One line, in one write."""
        line = json.dumps(content).encode() + b"\n"
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"{self._path}: {written} of {len(line)} bytes written: is the disk full?")


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line that says how far it is; nothing where nobody looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield lambda text: status.update(escape(text))


def finish(folder: Path, told: dict[str, Any]) -> int:
    """Write ``run.json``, print the line for machines last; the exit code."""
    told = {**told, "reports": str(folder)}
    (folder / "run.json").write_text(json.dumps(told, indent=1) + "\n")
    for line in _faults(folder):
        print(line, file=sys.stderr)
    print(json.dumps(told), flush=True)
    return int(told["exit"])


def _faults(folder: Path) -> Iterator[str]:
    found = folder / "found.jsonl"
    for line in found.read_text().splitlines() if found.exists() else ():
        fault = json.loads(line)
        yield f"{fault['kind']}\n  {fault['detail']}\n  {fault['replay']}"
