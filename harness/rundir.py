"""One directory per run: readable while it grows, complete when killed half-way, and a place to resume from."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.scenario import Scenario
from harness.trace import Trace

PATIENCE = 20.0
"""Seconds that a run which is being ended has to let go of its directory: its servers drain."""


BEFORE = {"layout": "slots", "state_dtype": "float32", "graphs": "on"}
"""What runs had of arguments that came later; without a GPU there is no graph to differ in."""


class RunDir:
    """``run.json``, the scenarios as JSON, and the traces that matter."""

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        self.path = path
        self.run = run

    @staticmethod
    def create(reports: Path, name: str, run: dict[str, Any]) -> RunDir:
        """A new directory under ``reports``; UsageError if it cannot be written."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        first = path = reports / f"{name}-{stamp}-{os.getpid()}"
        for number in itertools.count(2):
            if not path.exists():
                break
            path = first.with_name(f"{first.name}-{number}")  # two runs of one process in one second
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be created: {error.strerror}",
                hint="pass --reports FOLDER with a folder you may write",
            ) from None
        directory = RunDir(path, run)
        directory.save()
        return directory

    @staticmethod
    def resume(path: Path) -> RunDir:
        """A directory that a run left; UsageError if there is none."""
        try:
            run = json.loads((path / "run.json").read_text(encoding="utf-8"))
            if not isinstance(run, dict):
                raise ValueError(f"saw {type(run).__name__}, expected an object")
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: holds no readable run.json: {error}", hint="ls reports/") from None
        return RunDir(path, run)

    def differing(self, setting: Mapping[str, Any]) -> list[str]:
        """In which arguments this run began otherwise, in words. What an earlier version did not ask for, it did so."""
        was = {key: how for key, how in BEFORE.items() if key != "graphs" or self.run.get("device") == "cpu"}
        was |= self.run
        there = {key: repr(was[key]) if key in was else "nothing (of an earlier version)" for key in setting}
        return [
            f"{key}: {there[key]} there, {how!r} here"
            for key, how in setting.items()
            if there[key] != repr(how)
        ]

    def save(self) -> None:
        """Write ``run.json``, whole or not at all."""
        beside = self.path / "run.json.new"
        # A line for each key. An indented one would take Python's own encoder, ten times as long, for every cell.
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in self.run.items())
        beside.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        beside.replace(self.path / "run.json")

    def cell(self, scenario: str, variant: str) -> dict[str, Any] | None:
        """What was recorded for a scenario under a variant, if it was."""
        found: dict[str, Any] | None = self.run.setdefault("cells", {}).get(scenario, {}).get(variant)
        return found

    def record(self, scenario: str, variant: str, cell: dict[str, Any]) -> None:
        """Record a cell at once."""
        self.run.setdefault("cells", {}).setdefault(scenario, {})[variant] = cell
        self.save()

    def replay(self, scenario: str, variant: str) -> str:
        """The command that runs one scenario of this run again."""
        command = replay(self.run, self.path / f"{slug(scenario)}.json", variant)
        return command.replace("specharness", program(), 1)

    def write_scenario(self, scenario: Scenario) -> Path:
        """The scenario as a file that ``specharness run`` takes."""
        path = self.path / f"{slug(scenario.name)}.json"
        text = scenario.to_json()
        if path.exists() and path.read_text(encoding="utf-8") != text:
            raise UsageError(
                f"{path}: the case builds another scenario now than when this run began",
                hint="run it anew, without --resume",
            )
        path.write_text(text, encoding="utf-8")
        return path

    def write_trace(self, variant: str, trace: Trace) -> Path:
        """A trace as npz."""
        path = self.path / f"{slug(trace.scenario)}.{slug(variant)}.npz"
        trace.save(path)
        return path

    def write_text(self, name: str, text: str) -> Path:
        """Any other file of the run."""
        path = self.path / name
        path.write_text(text, encoding="utf-8")
        return path


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time measures into a run directory: two of them would slow and count each other.

    A killed one lets go by dying. UsageError where another one goes on for longer than ``PATIENCE``, or nothing can be
    written; a directory that is not there is for the reader to tell of.
    """
    if not path.is_dir():
        yield
        return
    try:
        file = (path / ".lock").open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}",
            hint="go on as who began it, or copy the directory",
        ) from None
    with file:
        end = time.monotonic() + PATIENCE
        while not _locked(file.fileno()):
            if time.monotonic() > end:
                raise UsageError(
                    f"{path}: another process is still writing into it, expected none",
                    hint="wait for it, or end it: fuser " + shlex.quote(str(path / ".lock")),
                )
            time.sleep(0.1)
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


REPLAYED = {
    "target": "embedded",
    "preset": "peaked",
    "model": None,
    "kernels": "auto",
    "device": None,
    "graphs": "on",
    "state_dtype": "float32",
    "layout": "slots",
}
"""Settings of a run that a replay repeats, with their defaults."""


def replay(run: dict[str, Any], scenario: Path, variant: str) -> str:
    """``specharness run`` with the settings of ``run`` that are not the defaults."""
    settings = [
        f"--{name.replace('_', '-')} {shlex.quote(str(run[name]))}"
        for name, default in REPLAYED.items()
        if run.get(name, default) not in (None, default)
    ]
    return " ".join(["specharness run", str(scenario), f"--variant {shlex.quote(variant)}", *settings])


def program() -> str:
    """How a shell in this folder calls this command."""
    if shutil.which("specharness"):
        return "specharness"
    beside = Path(sys.executable).with_name("specharness")
    return os.path.relpath(beside) if beside.exists() else f"{sys.executable} -m harness.cli"


def slug(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", name).strip("-").lower()
