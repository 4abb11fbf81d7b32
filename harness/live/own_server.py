"""The embedded server as a process of our own: started on a free port, its log kept, ended by its pid."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import TargetError

ANNOUNCED = re.compile(r"^serving (\S+) \(.*\) on (http://\S+)$", re.MULTILINE)
START_SECONDS = 120.0
STOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServer:
    """A server that we started."""

    url: str
    model: str
    process: subprocess.Popen[bytes]
    log: Path

    def log_tail(self, lines: int = 20) -> list[str]:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]


@contextmanager
def own_server(arguments: Sequence[str], log: Path, checkout: Path | None = None) -> Iterator[OwnServer]:
    """``specharness serve`` with these arguments while the block runs; TargetError where it does not come up.

    ``checkout``: of another revision, whose code is served by this interpreter.
    """
    process = None
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "harness.cli", "serve", "--port", "0", "--until-eof", *arguments],
                stdin=subprocess.PIPE,  # closed by whatever ends us: the server does not outlive a kill -9
                stdout=out,
                stderr=out,
                cwd=checkout,  # `python -m` looks there first
                env=None if checkout is None else os.environ | {"PYTHONPATH": str(checkout)},
            )
        url, model = _announced(process, log)
        yield OwnServer(url=url, model=model, process=process, log=log)
    finally:
        if process is not None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """It ends, also where somebody is in a hurry while it drains."""
    try:
        process.terminate()
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _announced(process: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        said = log.read_text(encoding="utf-8", errors="replace")
        if match := ANNOUNCED.search(said):
            return match[2], match[1]
        if process.poll() is not None:
            raise TargetError(
                f"the server did not start (exit {process.returncode}):\n{said[-2000:]}", hint="make serve"
            )
        time.sleep(0.05)
    raise TargetError(
        f"the server did not start within {START_SECONDS:g} s; its log is {log}", hint="make serve"
    )
