"""Steps of a night: verbs of this command as processes of their own, each kept the moment it ended."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from harness.rundir import RunDir

PATIENCE = 90.0
"""Seconds that a step has to end when it is interrupted: servers drain."""
PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


class Steps:
    """Runs steps and remembers their last lines in ``run.json``; what ended well is not run again on resume."""

    def __init__(self, run_dir: RunDir, console: Console) -> None:
        self.run_dir, self._console = run_dir, console
        self.done: dict[str, dict[str, Any]] = run_dir.run.setdefault("steps", {})

    def run(self, name: str, arguments: Sequence[str]) -> Mapping[str, Any]:
        """The JSON line of ``specharness ARGUMENTS``; all else that it prints goes to ``NAME.log`` and is shown."""
        if name in self.done and self.done[name]["line"]["exit"] == 0:
            self.say(f"{name}: kept, it was right")
            return self._line(name)
        self.say(f"{name}: specharness {' '.join(arguments)}")
        begin = time.monotonic()
        line = self._asked(name, arguments)
        self.done[name] = {
            "command": list(arguments),
            "line": line,
            "seconds": round(time.monotonic() - begin, 1),
        }
        self.run_dir.save()
        return line

    def say(self, line: object) -> None:
        """A line that is neither wrapped nor coloured."""
        self._console.print(line, highlight=False, soft_wrap=True)

    def _line(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.done[name]["line"]
        return found

    def _asked(self, name: str, arguments: Sequence[str]) -> dict[str, Any]:
        environment = {
            key: value for key, value in os.environ.items() if key != STEP_SUMMARY
        }  # written once, by us
        last = ""
        with (self.run_dir.path / f"{name}.log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "harness.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,  # a Ctrl-C is ours, and we hand it on, once
                preexec_fn=_ends_with_us,
            )
            assert process.stdout is not None
            try:
                for said in process.stdout:
                    if last:
                        self.say(f"  {last}")
                    log.write(said)
                    log.flush()
                    last = said.rstrip("\n")
                process.wait()
            except BaseException:
                _interrupt(process)
                raise
        try:
            line: dict[str, Any] = json.loads(last)
            return line if isinstance(line.get("exit"), int) else _nothing(name, process.returncode)
        except (ValueError, AttributeError):
            return _nothing(name, process.returncode)


def are_steps(told: object) -> bool:
    """Whether they are what ``Steps`` remembers, and not of a ``run.json`` that was damaged."""
    return isinstance(told, dict) and all(
        isinstance(step, dict)
        and isinstance(step.get("seconds"), (int, float))
        and isinstance(step.get("line"), dict)
        and isinstance(step["line"].get("exit"), int)
        for step in told.values()
    )


def _ends_with_us() -> None:
    """In the child, on Linux: it is interrupted when we die, also of a kill -9; it would measure on beside --resume."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _nothing(name: str, code: int) -> dict[str, Any]:
    return {"verb": name, "error": f"ended with {code} and without its last line: see {name}.log", "exit": 3}


def _interrupt(process: subprocess.Popen[str]) -> None:
    """It keeps what it has and ends its servers."""
    process.send_signal(signal.SIGTERM)  # in the background of a script SIGINT is ignored
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
