"""One connection of the raw transport and the answer that comes through it."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import httptools

from harness.bench.load.clock import Clock
from harness.bench.load.reply import Reply
from harness.bench.load.sse import Framer
from harness.bench.record import Outcome

MOST_OF_A_REFUSAL = 65536
AFTER_DONE = 1.0
"""Seconds that a server may take to end its message behind ``[DONE]``; the answer is whole without."""


class Connection(asyncio.Protocol):
    """One request at a time. Methods with ``on_`` are httptools' callbacks, in the order in which they happen."""

    __slots__ = (
        "_at",
        "_clock",
        "_done_at",
        "_framer",
        "_headers",
        "_heard",
        "_in_this_read",
        "_keeps",
        "_loop",
        "_origin",
        "_over",
        "_parser",
        "_refused",
        "_reply",
        "_served",
        "_streams",
        "_transport",
        "ended",
        "was_stale",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._origin = clock.origin
        self._transport: Any = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply: Reply | None = None
        self._over: asyncio.Future[None] | None = None
        self._framer = Framer()
        self._headers: dict[str, str] = {}
        self._refused = bytearray()
        self._streams = False
        self._heard = False  # any byte of this answer
        self._at = 0.0  # when its latest bytes came, or it was asked
        self._done_at: float | None = None
        self._in_this_read = 0
        self._keeps = False
        self._served = 0
        self.was_stale = False  # the server had closed it before it could hear this request
        self.ended = 0.0

    @property
    def is_reusable(self) -> bool:
        """Open, and its last answer ended as HTTP says."""
        return self._keeps and self._reply is None and not self._transport.is_closing()

    def asks(self, message: bytes, reply: Reply) -> asyncio.Future[None]:
        """Send; the future is done when the answer is over, however it ended."""
        self._over = self._loop.create_future()
        self._reply, self._framer = reply, Framer()
        self._headers, self._refused = {}, bytearray()
        self._streams = self._heard = self._keeps = self.was_stale = False
        self._done_at = None
        self._at = self._clock.now()
        self._transport.write(message)
        return self._over

    def looks(self, now: float, silence: float, total: float) -> None:
        """End an answer that is too late."""
        reply = self._reply
        if reply is None:
            return
        if self._done_at is not None:
            if now - self._done_at > AFTER_DONE:
                self._end(self._done_at)
        elif now - self._at > silence:
            reply.fails(Outcome.TIMEOUT, f"no byte for {silence:g} s")
            self._end(now)
        elif now - reply.sent > total:
            reply.fails(Outcome.TIMEOUT, f"not over after {total:g} s")
            self._end(now)

    def abort(self) -> None:
        """Hang up without a word."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's callback."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """asyncio's callback. The clock is read first."""
        self._at = at = monotonic() - self._origin
        reply = self._reply
        if reply is None:  # bytes that nobody asked for: nothing more is believed of this connection
            self._keeps = False
            self.abort()
            return
        self._heard = True
        self._in_this_read = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a mistake of ours, not of the server
        except httptools.HttpParserError as error:
            self._keeps = False
            reply.fails(Outcome.CUT, f"not HTTP: {error}")
            self._end(at)

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio's callback. A body that ends with its connection is whole if ``[DONE]`` came."""
        self._keeps = False
        reply = self._reply
        if reply is None:
            return
        at, why = self._clock.now(), str(error or "end of file")
        if self._heard:
            self._finish(f"connection lost: {why}")
        elif self._served:
            self.was_stale = True
        else:
            reply.fails(Outcome.CUT, f"connection closed before the answer: {why}")
        self._end(at)

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools' callback."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """httptools' callback."""
        reply = self._reply
        if reply is not None:
            reply.status = self._parser.get_status_code()
            kind = self._headers.get("content-type", "")
            self._streams = reply.status == 200 and not kind.startswith("application/json")

    def on_body(self, body: bytes) -> None:
        """httptools' callback: once per transfer chunk and read."""
        reply = self._reply
        if reply is None:
            return
        if not self._streams:
            self._refused += body[: MOST_OF_A_REFUSAL - len(self._refused)]
            return
        for event in self._framer.feed(body):
            self._in_this_read += 1
            reply.reads(event, self._at, self._in_this_read > 1)
        if reply.done and self._done_at is None:
            self._done_at = self._at

    def on_message_complete(self) -> None:
        """httptools' callback."""
        reply = self._reply
        if reply is None:
            return
        if (
            reply.status is not None and reply.status < 200
        ):  # 100 Continue and its like: the answer comes behind it
            self._headers = {}
            return
        self._keeps = self._parser.should_keep_alive()
        self._finish("")
        self._end(self._at)

    def _finish(self, broken: str) -> None:
        """No more bytes will come. ``broken``: why not, where HTTP itself was cut."""
        reply = self._reply
        if reply is None:
            return
        if self._streams:
            for event in self._framer.flush():
                reply.reads_rest(event, self._at, self._in_this_read > 0)
            if broken and not reply.done:
                reply.fails(Outcome.CUT, broken)
        elif reply.status is not None:
            reply.is_no_stream(reply.status, self._headers, bytes(self._refused))
        else:
            reply.fails(Outcome.CUT, broken)

    def _end(self, at: float) -> None:
        self.ended = at
        self._served += 1
        self._reply = None
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
