"""The server under fire: a process of its own, and what can be seen of it from outside."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

START_SECONDS = 120
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where it listens, what it serves; ``pid`` is ``None`` where it was not started here."""

    url: str
    model: str
    pid: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process is there, or, where that is not ours, somebody who listens."""
        if self.pid is None:
            return self._listens()
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rsplit(") ", 1)[1][0]
        except OSError:
            return False
        return state != "Z"

    def _listens(self) -> bool:
        parts = urlsplit(self.url)
        try:
            with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=5):
                return True
        except OSError:
            return False

    @property
    def rss(self) -> int | None:
        """Bytes of its memory that are resident."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def metric(self, name: str) -> float:
        """One of ``/metrics``, summed over its labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        found = re.findall(rf"^vllm:{name}(?:\{{.*?\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def is_free(self) -> bool:
        """Nothing runs or waits, and no block is taken."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return not any(self.metric(name) for name in names)

    def wait_until_free(self, seconds: float = 30) -> bool:
        """Whether everything is given back within that time."""
        until = time.monotonic() + seconds
        while not (free := self.is_free()) and time.monotonic() < until:
            time.sleep(0.05)
        return free


class CannotServe(Exception):
    """No server: what it said instead of its address."""


@contextmanager
def serving(url: str | None, arguments: list[str], log: Path) -> Iterator[Server]:
    """The server at ``url``, or one of our own with these arguments, whose words go to ``log``.

    Raises:
        CannotServe: nothing answers there, or the process ends.
    """
    if url is not None:
        yield Server(url=url.rstrip("/"), model=_model(url.rstrip("/"), patience=2))
        return
    command = [sys.executable, "-m", "harness.cli", "serve", "--port", "0", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
    with log.open("w") as words:
        child = subprocess.Popen(
            command,
            stdout=words,
            stderr=words,
            stdin=subprocess.DEVNULL,
            env=environment,
            preexec_fn=_end_with_parent,
        )
    try:
        own = _address(child, log)
        yield Server(url=own, model=_model(own), pid=child.pid)
    finally:
        child.terminate()
        try:
            child.wait(40)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _end_with_parent() -> None:
    """Where the system can: a client that is killed takes its server along."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _address(child: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and child.poll() is None:
        if found := re.search(r" on (http://\S+)\n", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise CannotServe(f"the server did not start; {log} says:\n{log.read_text()[-2000:]}")


def _model(url: str, patience: float = 30) -> str:
    until = time.monotonic() + patience
    while True:
        try:
            return httpx.get(f"{url}/v1/models", timeout=10).json()["data"][0]["id"]
        except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
            if time.monotonic() > until or not isinstance(error, httpx.ConnectError):
                raise CannotServe(f"{url}/v1/models: expected the list of models, got {error!r}") from None
            time.sleep(0.1)
