"""What carries a call to a server and brings its record back. Three of them, behind one small protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from harness.bench.load.call import Call
from harness.bench.load.clock import Clock
from harness.bench.record import RequestRecord
from harness.errors import UsageError

NAMES = ("raw", "aiohttp", "openai")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where to send, and how long to wait, in seconds.

    ``silence``: longest time without a byte; ``total``: longest time of one request; ``connect``: of a connection.
    ``ca_file`` replaces the certificates that are trusted; ``proxy`` is a URL.
    """

    url: str
    api_key: str | None = None
    silence: float = 60.0
    total: float = 600.0
    connect: float = 10.0
    proxy: str | None = None
    ca_file: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> str:
        """The URL without its ``/v1``: the paths of calls have it."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def is_plain(self) -> bool:
        """Neither TLS nor a proxy."""
        return urlsplit(self.url).scheme == "http" and self.proxy is None

    @property
    def sent_headers(self) -> dict[str, str]:
        """The headers of every request."""
        key = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            **key,
            **self.headers,
        }


class Transport(Protocol):
    """Sends calls to one endpoint. Every call gets its record, whatever the server does; nothing is raised."""

    name: str

    async def send(self, call: Call, scheduled: float) -> RequestRecord:
        """Send now and read to the end. ``scheduled``: when it was due, on the run's clock."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...


def choose(endpoint: Endpoint, name: str | None = None) -> tuple[str, str]:
    """The transport's name, and why that one.

    Raises:
        UsageError: the URL is none, or the transport cannot reach it.
    """
    parts = urlsplit(endpoint.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"saw the base URL {endpoint.url!r}, expected http://HOST:PORT or https://HOST",
            hint="for example --base-url http://127.0.0.1:8000",
        )
    if name is None:
        if endpoint.is_plain:
            return "raw", "plain HTTP: the cheapest client"
        return "aiohttp", "a proxy is set" if endpoint.proxy else "TLS"
    if name not in NAMES:
        raise UsageError(f"saw transport {name!r}, expected one of {', '.join(NAMES)}")
    if name == "raw" and not endpoint.is_plain:
        raise UsageError(
            f"the transport raw speaks plain HTTP without a proxy, and this is {endpoint.url}",
            hint="--transport aiohttp",
        )
    return name, "as asked"


def open_transport(endpoint: Endpoint, clock: Clock, name: str | None = None) -> Transport:
    """A transport by its name, or the one that fits; call it inside a running loop.

    Raises:
        UsageError: see ``choose``.
    """
    chosen, _ = choose(endpoint, name)
    if chosen == "raw":
        from harness.bench.load.raw import RawTransport

        return RawTransport(endpoint, clock)
    if chosen == "aiohttp":
        from harness.bench.load.over_aiohttp import AiohttpTransport

        return AiohttpTransport(endpoint, clock)
    from harness.bench.load.over_openai import OpenAITransport

    return OpenAITransport(endpoint, clock)
