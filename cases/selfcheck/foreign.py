"""A server of another make, without any model: its answers are made up, and each kind of it is wrong in its own way."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

KNOWN = {"model", "prompt", "max_tokens", "temperature", "seed", "stream", "stream_options", "stop"}
Chunk = dict[str, Any]


def text_of(prompt: Any, length: int) -> list[str]:
    """The made-up answer, word by word: of the prompt alone."""
    state, words = sum(map(ord, str(prompt))), []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % 2**31
        words.append(f" {'abcdefghij'[state >> 16 & 7]}{state % 89}")
    return words


@dataclass(kw_only=True)
class Foreign:
    """``extra`` are the fields that it knows besides; ``chunks`` may change what a stream says, ``body`` what a whole
    answer says; ``refuses`` answers in place of it; ``pages`` are answered as they stand. Requests are counted."""

    extra: set[str] = field(default_factory=set)
    chunks: Callable[[int, Any, list[Chunk]], list[Any]] = lambda n, asked, chunks: chunks
    refuses: Callable[[int, Any], Response | None] = lambda n, asked: None
    pages: dict[str, Callable[[], Response]] = field(default_factory=dict)
    pause: float = 0.0
    headers: list[dict[str, str]] = field(default_factory=list)
    asked: int = 0

    def app(self) -> FastAPI:
        """As an application."""
        app = FastAPI()

        @app.get("/{path:path}")
        async def page(path: str) -> Response:
            if path in self.pages:
                return self.pages[path]()
            if path == "v1/models":
                return JSONResponse({"data": [{"id": "made-up"}]})
            return Response(status_code=404)

        @app.post("/v1/completions")
        async def completions(request: Request) -> Response:
            self.asked += 1
            number, asked = self.asked, await request.json()
            self.headers.append(dict(request.headers))
            if strange := set(asked) - KNOWN - self.extra:
                return JSONResponse({"error": {"message": f"Unrecognized: {sorted(strange)}"}}, 400)
            if refusal := self.refuses(number, asked):
                return refusal
            chunks = self.chunks(number, asked, answer(asked))
            if not asked.get("stream"):
                return JSONResponse(chunks[0])
            return StreamingResponse(self._lines(chunks), media_type="text/event-stream")

        return app

    async def _lines(self, chunks: list[Any]) -> AsyncIterator[str]:
        for chunk in chunks:
            await asyncio.sleep(self.pause)
            yield f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"


def answer(asked: Any) -> list[Chunk]:
    """What a right server says: a word a chunk, the reason in the last one; one chunk where no stream is wanted."""
    words = text_of(asked["prompt"], asked["max_tokens"])
    stops = asked.get("stop") or []
    reason = "length"
    if stops and stops[0] in "".join(words):
        words, reason = ["".join(words).partition(stops[0])[0]], "stop"
    parts = words if asked.get("stream") else ["".join(words)]
    chunks = [{"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": w}]} for w in parts]
    chunks = chunks or [{"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": ""}]}]
    chunks[-1]["choices"][0]["finish_reason"] = reason
    return chunks


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Its URL while the block runs."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
