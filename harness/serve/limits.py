"""What a client may ask of the server, and the two guards in front of every endpoint."""

from __future__ import annotations

import secrets
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
    """``max_open`` requests run or wait at a time; a body has at most ``max_body`` bytes; a grammar that takes longer
    than ``compile_seconds`` is refused."""

    max_open: int = 320
    max_body: int = 1024 * 1024
    compile_seconds: float = 10.0


class BodyLimit:
    """Stops reading a body behind ``most`` bytes: 413."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what comes in."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._most:
                raise HTTPException(413, f"the body has more than {self._most} bytes")
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
