"""The scripted server: writes what a script says, when it says, and remembers when it really did.

The model of a request is the script's name. ``GET /truth`` gives, by request id, when the request was read and when
each write was done, in readings of ``time.monotonic``, which all processes of a machine share; every payload holds its
own write time as well, for clients that keep payloads.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import httptools

from harness.bench.conformance.script import STAMP, Ending, Script

PIECES_APART = 0.001
"""Seconds between two pieces of one write: long enough to be two reads."""
MOST_REMEMBERED = 20_000
_HOLE = b"----------------"


class ScriptedServer:
    """``log`` by request id: ``script``, ``received``, ``written`` (one time per write)."""

    def __init__(self, scripts: Mapping[tuple[str, str], Script]) -> None:
        self.scripts = scripts
        self.log: dict[str, dict[str, Any]] = {}
        self.url = ""
        self._server: asyncio.Server | None = None
        self._anonymous = 0

    async def start(self, port: int = 0) -> str:
        """Listen on 127.0.0.1; the URL."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Visit(self), "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.url

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    def remembers(self, name: str, script: Script, received: float) -> dict[str, Any]:
        """A new entry of the log; the oldest makes room."""
        if not name:
            self._anonymous += 1
            name = f"anonymous-{self._anonymous}"
        if len(self.log) >= MOST_REMEMBERED:
            del self.log[next(iter(self.log))]
        entry = {"script": script.name, "path": script.path, "received": received, "written": []}
        self.log[name] = entry
        return entry

    def page(self, path: str) -> bytes | None:
        """The answer to a GET."""
        if path == "/truth":
            return json.dumps(self.log).encode()
        if path == "/health":
            return b"{}"
        if path == "/v1/models":
            names = sorted({name for name, _ in self.scripts})
            return json.dumps(
                {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
            ).encode()
        return None


class _Visit(asyncio.Protocol):
    """A connection of a client; one request at a time."""

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._begin("")

    def _begin(self, url: str) -> None:
        self._url = url
        self._body = bytearray()
        self._id = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._at = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_url(self, url: bytes) -> None:
        self._begin(url.decode("latin-1"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._id = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path = self._url.partition("?")[0]
        if self._parser.get_method() == b"GET":
            page = self._server.page(path)
            self._tells(404 if page is None else 200, page or b"{}")
            return
        try:
            name = json.loads(bytes(self._body)).get("model")
        except (ValueError, AttributeError):
            name = None
        script = self._server.scripts.get((str(name), path))
        if script is None:
            names = sorted(known for known, where in self._server.scripts if where == path)
            told = (
                f"saw model {name!r} at {path}, expected one of {', '.join(names) or 'no path but /v1/...'}"
            )
            self._tells(404, json.dumps({"error": {"message": told, "code": 404}}).encode())
            return
        entry = self._server.remembers(self._id, script, self._at)
        self._plays(script, entry)

    def _tells(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def _plays(self, script: Script, entry: dict[str, Any]) -> None:
        """Everything in order, on one absolute schedule that begins when the request was read."""
        steps: list[tuple[float, Callable[[], None]]] = []
        last = 0.0
        if script.status:
            self._transport.write(_head(script))
        for write in script.writes:
            marks = sorted({cut % len(write.data) for cut in write.cuts} - {0})
            told = _Told(write.data, self._transport, script.is_chunked, entry["written"])
            for place, (begin, end) in enumerate(zip([0, *marks], [*marks, len(write.data)], strict=True)):
                last = write.at + place * PIECES_APART
                steps.append((self._at + last, partial(told.goes, begin, end)))
        steps.append((self._at + last + PIECES_APART, partial(self._ends, script)))
        self._goes_on(deque(steps))

    def _goes_on(self, steps: deque[tuple[float, Callable[[], None]]]) -> None:
        """Never early: the loop's timers are rounded to milliseconds."""
        while steps and not self._transport.is_closing():
            left = steps[0][0] - time.monotonic()
            if left > 0:
                self._loop.call_later(left, self._goes_on, steps)
                return
            steps.popleft()[1]()

    def _ends(self, script: Script) -> None:
        if script.ending is Ending.HANG:
            return
        if script.ending is Ending.ABORT:
            self._transport.abort()
        elif script.is_chunked:
            self._transport.write(b"0\r\n\r\n")
        else:
            self._transport.close()


class _Told:
    """A write, stamped when its first piece goes and noted when its last one went."""

    def __init__(self, data: bytes, transport: Any, is_chunked: bool, written: list[float]) -> None:
        self._data = data
        self._transport = transport
        self._is_chunked = is_chunked
        self._written = written

    def goes(self, begin: int, end: int) -> None:
        now = time.monotonic()
        if begin == 0:
            self._data = self._data.replace(STAMP, STAMP.replace(_HOLE, b"%016.6f" % now))
        piece = self._data[begin:end]
        self._transport.write(b"%x\r\n%s\r\n" % (len(piece), piece) if self._is_chunked else piece)
        if end == len(self._data):
            self._written.append(now)


def _head(script: Script) -> bytes:
    lines = {
        **script.headers,
        **({"Transfer-Encoding": "chunked"} if script.is_chunked else {"Connection": "close"}),
    }
    return (
        f"HTTP/1.1 {script.status} X\r\n"
        + "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        + "\r\n"
    ).encode()
