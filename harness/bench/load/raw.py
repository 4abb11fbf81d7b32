"""The cheapest client: an ``asyncio.Protocol`` with httptools, HTTP/1.1 without TLS.

The time of a chunk is taken when its bytes arrive, before anything is parsed; connections are kept and used again,
the latest first. One sweep a few times a second finds the calls that are too late, so no request has a timer.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from harness.bench.load.call import Call
from harness.bench.load.clock import Clock
from harness.bench.load.connection import Connection
from harness.bench.load.reply import Reply
from harness.bench.load.transport import Endpoint
from harness.bench.record import Outcome, RequestRecord

SWEEP = 0.05
"""Seconds between two looks at the deadlines."""


class RawTransport:
    """Keeps idle connections and opens more without a limit: a limit would be a hidden queue (guidellm#487)."""

    name = "raw"

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        parts = urlsplit(endpoint.root)
        self._endpoint = endpoint
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._prefix = parts.path
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = {"Host": f"{host}:{self._port}", **endpoint.sent_headers}
        self._head = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def send(self, call: Call, scheduled: float) -> RequestRecord:
        """See ``Transport``. A kept connection that the server closed in the same instant is replaced, once."""
        clock = self._clock
        reply = Reply(call, scheduled, sent := clock.now())
        while True:
            connection = self._reused()
            if connection is None:
                try:
                    connection = await self._connected(reply, sent)
                except (OSError, TimeoutError) as error:
                    reply.fails(Outcome.NO_CONNECTION, f"{type(error).__name__}: {error}".rstrip(": "))
                    return reply.record(clock.now())
            self._busy.add(connection)
            if self._sweep is None:
                self._sweep = self._loop.call_later(SWEEP, self._look)
            try:
                await connection.asks(self._message(call), reply)
            except asyncio.CancelledError:
                connection.abort()
                raise
            finally:
                self._busy.discard(connection)
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                connection.abort()
            if not connection.was_stale:
                return reply.record(connection.ended)

    async def close(self) -> None:
        """See ``Transport``."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)

    def _reused(self) -> Connection | None:
        while self._idle:
            if (connection := self._idle.pop()).is_reusable:
                return connection
        return None

    async def _connected(self, reply: Reply, began: float) -> Connection:
        async with asyncio.timeout(self._endpoint.connect):
            _, connection = await self._loop.create_connection(
                lambda: Connection(self._loop, self._clock), self._host, self._port
            )
        reply.connect = self._clock.now() - began
        return connection

    def _message(self, call: Call) -> bytes:
        head = (
            f"POST {self._prefix}{call.path} HTTP/1.1\r\n{self._head}"
            f"X-Request-Id: {call.id}\r\nContent-Length: {len(call.body)}\r\n\r\n"
        )
        return head.encode("latin-1") + call.body

    def _look(self) -> None:
        """End what is too late; nothing else keeps a hung stream from lasting for ever."""
        now = self._clock.now()
        silence, total = self._endpoint.silence, self._endpoint.total
        for connection in tuple(self._busy):
            connection.looks(now, silence, total)
        self._sweep = self._loop.call_later(SWEEP, self._look) if self._busy else None
