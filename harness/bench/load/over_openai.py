"""The stock ``openai`` client: what a user's program sees. Too slow to load a server, and honest about what it parses.

One core carries about 2,000 chunks a second (bench.md d.1). The client stops at ``[DONE]`` without a word and takes a
cut stream for a whole one, so its bytes are watched on their way in; nothing else of it is changed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import openai

from harness.bench.load.call import CHAT, Call
from harness.bench.load.clock import Clock
from harness.bench.load.reply import Reply
from harness.bench.load.transport import Endpoint
from harness.bench.load.wire import Packet
from harness.bench.record import Outcome, RequestRecord

try:
    import httpx2 as httpx  # openai 3
except ModuleNotFoundError:
    import httpx  # type: ignore[no-redef]  # openai 2

LAST_LINE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]\s*$")
LAST_EVENT = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\](?:\r\n|\r|\n){2}")
KNOWN = ("model", "prompt", "messages", "max_tokens", "stream")
"""What the client takes by name; the rest of a body goes through ``extra_body``."""


class OpenAITransport:
    """No retries: a second try would be a second request."""

    name = "openai"

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._client = openai.AsyncOpenAI(
            base_url=f"{endpoint.root}/v1",
            api_key=endpoint.api_key or "none",
            max_retries=0,
            default_headers=dict(endpoint.headers),
            http_client=httpx.AsyncClient(
                proxy=endpoint.proxy,
                verify=endpoint.ca_file or True,
                timeout=httpx.Timeout(endpoint.silence, connect=endpoint.connect, pool=None),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            ),
        )

    async def send(self, call: Call, scheduled: float) -> RequestRecord:
        """See ``Transport``."""
        reply = Reply(call, scheduled, self._clock.now())
        try:
            async with asyncio.timeout(self._endpoint.total):
                await self._read(call, reply)
        except openai.APITimeoutError as error:
            is_connect = isinstance(error.__cause__, httpx.ConnectTimeout)
            reply.fails(
                Outcome.NO_CONNECTION if is_connect else Outcome.TIMEOUT, f"{error.__cause__ or error}"
            )
        except (TimeoutError, httpx.TimeoutException) as error:
            reply.fails(
                Outcome.TIMEOUT,
                f"{type(error).__name__}: no byte for {self._endpoint.silence:g} s, or too long",
            )
        except openai.APIConnectionError as error:
            cause = error.__cause__
            is_cut = isinstance(cause, (httpx.RemoteProtocolError, httpx.ReadError))
            reply.fails(Outcome.CUT if is_cut else Outcome.NO_CONNECTION, f"{type(cause).__name__}: {cause}")
        except openai.APIStatusError as error:
            reply.status = error.status_code
            reply.fails(Outcome.HTTP_ERROR, f"HTTP {error.status_code}: {error.message}")
        except openai.APIError as error:
            reply.fails(Outcome.IN_BAND_ERROR, error.message)
        except httpx.HTTPError as error:
            reply.fails(Outcome.CUT, f"{type(error).__name__}: {error}")
        except (ValueError, TypeError) as error:  # the client's own parsers, and ours of what they built
            reply.fails(Outcome.IN_BAND_ERROR, f"an event cannot be read: {error}")
        return reply.record(self._clock.now())

    async def _read(self, call: Call, reply: Reply) -> None:
        body: dict[str, Any] = msgspec.json.decode(call.body)
        told = {key: body.pop(key) for key in KNOWN if key in body}
        ways = self._client.chat.completions if call.path == CHAT else self._client.completions
        stream: Any = await ways.create(**told, extra_body=body, extra_headers={"X-Request-Id": call.id})  # type: ignore[call-overload]
        reply.status = stream.response.status_code
        watch = _Watched(stream.response.stream, self._clock)
        stream.response.stream = watch
        reads_before = 0
        async with stream:
            async for chunk in stream:
                at = self._clock.now()
                packet = msgspec.convert(chunk.model_dump(), Packet)
                reply.takes(packet, at, watch.reads == reads_before)
                reads_before = watch.reads
        if watch.done_at is not None:
            reply.ends(watch.done_at, watch.reads == reads_before)

    async def close(self) -> None:
        """See ``Transport``."""
        await self._client.close()


class _Watched(httpx.AsyncByteStream):
    """Passes bytes on as they are, counts the reads, and sees ``[DONE]``."""

    def __init__(self, inner: Any, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._tail = b""
        self.reads = 0
        self.done_at: float | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            self.reads += 1
            self._tail = (self._tail + data)[-4096:]
            if self.done_at is None and LAST_EVENT.search(self._tail):
                self.done_at = self._clock.now()
            yield data
        if self.done_at is None and LAST_LINE.search(self._tail):
            self.done_at = self._clock.now()

    async def aclose(self) -> None:
        """httpx's own name."""
        await self._inner.aclose()
