"""What a client may ask of the server, and the two guards in front of every endpoint."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.serve.errors import ApiError

MOST_LOGPROBS = 20
"""Best tokens that a request may ask for at each place (OpenAI's and vLLM's limit)."""
MOST_STOPS = 16
LONGEST_STOP = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``max_open`` requests run or wait at a time; a body has at most ``max_body`` bytes and comes within
    ``body_seconds``; a grammar that takes longer than ``compile_seconds`` is refused, and one that takes more than
    ``guide_seconds`` of the engine's thread for one answer ends it."""

    max_open: int = 320
    max_body: int = 1024 * 1024
    body_seconds: float = 30.0
    compile_seconds: float = 10.0
    guide_seconds: float = 5.0


class BodyLimit:
    """Stops reading a body behind ``most`` bytes (413), and one that is not here after ``seconds`` (408)."""

    def __init__(self, app: ASGIApp, most: int, seconds: float) -> None:
        self._app = app
        self._most = most
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what comes in."""
        seen, is_whole, until = 0, False, time.monotonic() + self._seconds
        close = {"connection": "close"}  # what is left of the body is no next request

        async def counted() -> Message:
            nonlocal seen, is_whole
            if is_whole:  # whoever waits now waits for the client to leave
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), until - time.monotonic())
            except TimeoutError:
                raise HTTPException(408, f"the body took longer than {self._seconds:g} s", close) from None
            seen += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if seen > self._most:
                raise HTTPException(413, f"the body has more than {self._most} bytes", close)
            return message

        await self._app(scope, counted if scope["type"] == "http" else receive, send)


class KeyGuard:
    """Asks for ``Authorization: Bearer KEY`` under ``/v1`` and for the tokenizer: 401. Health and metrics stay open."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through who has the key."""
        guarded = scope["type"] == "http" and scope["path"].startswith(("/v1", "/tokenize", "/detokenize"))
        given = Headers(scope=scope).get("authorization", "").encode() if guarded else b""
        if guarded and not secrets.compare_digest(given, self._key):
            error = ApiError(401, "the API key is missing or wrong")
            await JSONResponse(error.body(), status_code=error.status)(scope, receive, send)
        else:
            await self._app(scope, receive, send)
