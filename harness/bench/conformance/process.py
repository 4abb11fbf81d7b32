"""The scripted server in a process of its own, so that no client can hide behind a busy server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.bench.conformance.scripts import every_script
from harness.bench.conformance.server import ScriptedServer
from harness.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]


def serve_for_ever(port: int, told: Callable[[str], None], wait: Callable[[], object]) -> None:
    """Serve until ``wait``, in a thread, comes back or a signal comes; ``told`` gets the URL."""
    import uvloop

    async def main() -> None:
        server = ScriptedServer(every_script())
        told(await server.start(port))
        await asyncio.to_thread(wait)
        await server.stop()

    uvloop.run(main())


@contextmanager
def scripted_server() -> Iterator[str]:
    """The URL of a fresh server, which ends with this block, or with this process however that ends.

    Raises:
        UsageError: it did not start.
    """
    command = [sys.executable, "-m", "harness.bench.conformance", "serve", "--until-eof"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise UsageError(
                f"the scripted server did not start (exit code {process.wait()})",
                hint="python -m harness.bench.conformance serve shows why",
            )
        try:
            yield json.loads(line)["url"]
        finally:
            process.terminate()
            process.wait()
