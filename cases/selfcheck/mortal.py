"""A server of another make, in a process of its own, that is gone all at once: ``python -m cases.selfcheck.mortal``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from cases.selfcheck.foreign import Chunk, Foreign

EXTRA = {"return_token_ids", "ignore_eos", "structured_outputs", "stream_options"}


def serve(port: int, dies_at: int) -> None:
    """It dies with its request ``dies_at``; 0: with none."""

    def chunks(number: int, asked: Any, told: list[Chunk]) -> list[Chunk]:
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": len(told)}
        return [*told, {"id": "c", "choices": [], "usage": usage}]

    def refuses(number: int, asked: Any) -> None:
        if number == dies_at:
            os._exit(9)

    app = Foreign(extra=EXTRA, chunks=chunks, refuses=refuses, pause=0.01).app()
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical")


@contextmanager
def serving(port: int, dies_at: int = 0) -> Iterator[None]:
    """The process, while the block runs."""
    process = subprocess.Popen([sys.executable, "-m", "cases.selfcheck.mortal", str(port), str(dies_at)])
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
