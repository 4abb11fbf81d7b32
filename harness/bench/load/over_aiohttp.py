"""A client over aiohttp: TLS, proxies, and what else the raw one leaves out. About twice its cost per chunk."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace

import aiohttp

from harness.bench.load.call import Call
from harness.bench.load.clock import Clock
from harness.bench.load.reply import Reply
from harness.bench.load.sse import Framer
from harness.bench.load.transport import Endpoint
from harness.bench.record import Outcome, RequestRecord
from harness.errors import UsageError

AFTER_DONE = 1.0
"""Seconds that a server may take to end its message behind ``[DONE]``."""
READ_BUFFER = 2**22
"""Bytes. aiohttp's own 64 KiB stopped long answers ten-fold (vllm#39963)."""


class AiohttpTransport:
    """No limit of connections: aiohttp's default of 100 would be a hidden queue."""

    name = "aiohttp"

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=_trust(endpoint), keepalive_timeout=60),
            headers=endpoint.sent_headers,
            read_bufsize=READ_BUFFER,
            auto_decompress=False,
            trace_configs=[_tracing()],
            timeout=aiohttp.ClientTimeout(
                total=endpoint.total, sock_read=endpoint.silence, sock_connect=endpoint.connect
            ),
        )

    async def send(self, call: Call, scheduled: float) -> RequestRecord:
        """See ``Transport``. A kept connection that the server closed in the same instant is replaced."""
        reply = Reply(call, scheduled, self._clock.now())
        while await self._asks(call, reply):
            pass
        return reply.record(self._clock.now())

    async def _asks(self, call: Call, reply: Reply) -> bool:
        """Ask and read; whether it must be asked again, because nobody can have heard it."""
        connection = SimpleNamespace(is_reused=False)
        try:
            async with self._session.post(
                f"{self._endpoint.root}{call.path}",
                data=call.body,
                headers={"X-Request-Id": call.id},
                proxy=self._endpoint.proxy,
                allow_redirects=False,
                trace_request_ctx=connection,
            ) as response:
                await self._read(response, reply)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            reply.fails(Outcome.NO_CONNECTION, f"{type(error).__name__}: {error}")
        except TimeoutError as error:
            if not reply.done:
                reply.fails(Outcome.TIMEOUT, str(error) or f"not over after {self._endpoint.total:g} s")
        except (aiohttp.ClientError, OSError) as error:
            is_stale = isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError))
            if is_stale and connection.is_reused and reply.status is None:
                return True
            if not reply.done:
                reply.fails(Outcome.CUT, f"{type(error).__name__}: {error}")
        return False

    async def _read(self, response: aiohttp.ClientResponse, reply: Reply) -> None:
        reply.status = response.status
        if response.status != 200 or response.content_type == "application/json":
            reply.is_no_stream(
                response.status,
                {key.lower(): value for key, value in response.headers.items()},
                await response.read(),
            )
            return
        framer = Framer()
        try:
            async for data in response.content.iter_any():
                at = self._clock.now()
                for place, event in enumerate(framer.feed(data)):
                    reply.reads(event, at, place > 0)
                if reply.done:  # read on, so that the connection can be used again, but not for long
                    async with asyncio.timeout(AFTER_DONE):
                        await response.content.read()
        finally:
            for event in framer.flush():
                reply.reads_rest(event, self._clock.now(), True)

    async def close(self) -> None:
        """See ``Transport``."""
        await self._session.close()
        await asyncio.sleep(0)


def _tracing() -> aiohttp.TraceConfig:
    """Tells each request whether its connection had served another one before."""

    async def reused(_: object, context: SimpleNamespace, __: object) -> None:
        context.trace_request_ctx.is_reused = True

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(reused)
    return tracing


def _trust(endpoint: Endpoint) -> ssl.SSLContext | bool:
    if endpoint.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=endpoint.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"{endpoint.ca_file}: saw no readable certificates ({error})", hint="pass a file in PEM format"
        ) from None
