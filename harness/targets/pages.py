"""The pages of a server that are no answers: its models, its health, its metrics. None of them is trusted either."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import httpx

from harness.errors import TargetError

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? +(\S+)(?: +-?\d+)?$")
POSITION = re.compile(r'position="(\d+)"')
LARGEST_PAGE = 2**24
"""Bytes: metrics of a busy server have a few hundred thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a GET came to; without ``status`` nobody answered, and ``text`` says why."""

    status: int | None
    text: str

    def json(self) -> Any:
        """Its value; ``None`` where it is no JSON."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


async def get(http: httpx.AsyncClient, path: str, patience: float) -> Page:
    """A page within ``patience`` seconds, as a whole: there are servers that never end one. Raises nothing."""
    body = bytearray()
    try:
        async with asyncio.timeout(patience), http.stream("GET", path) as answer:
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > LARGEST_PAGE:
                    return Page(status=None, text=f"{path} has more than {LARGEST_PAGE} bytes")
        return Page(status=answer.status_code, text=body.decode("utf-8", "replace"))
    except (TimeoutError, httpx.TimeoutException):
        return Page(status=None, text=f"no news for {patience:g} s")
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        return Page(status=None, text=f"{type(error).__name__}: {error}".removesuffix(": "))


def root_of(url: str) -> str:
    """A base URL without ``/v1``. TargetError where it is none, or holds a password: reports show it."""
    hint = "BASE_URL=http://HOST:PORT of an OpenAI-compatible server"
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise TargetError(f"{url!r} is no URL: {error}", hint=hint) from None
    if parsed.userinfo:
        raise TargetError(
            f"the URL of {parsed.host} holds a user or a password, and reports show URLs",
            hint="--api-key-file FILE, or $SPECHARNESS_API_KEY",
        )
    named = parsed.scheme in ("http", "https") and parsed.host and (parsed.port or 0) < 2**16
    if not named or parsed.query or parsed.fragment:
        raise TargetError(f"saw {url!r}, expected the URL of a server", hint=hint)
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def read_metrics(text: str) -> dict[str, float]:
    """Prometheus' exposition -> value by name, labels added up, a ``position`` label kept as ``name[0]``. Lines that
    are none are passed over: not everything that stands at /metrics is an exposition."""
    values: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if (match := SAMPLE.match(line)) and not match[1].endswith(("_bucket", "_created")):
            try:
                value = float(match[3])
            except ValueError:
                continue
            position = POSITION.search(match[2] or "")
            values[f"{match[1]}[{position[1]}]" if position else match[1]] += value
    return dict(values)
