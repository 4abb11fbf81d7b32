"""The endpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from harness import __version__
from harness.serve.answers import Answer, ChatAnswer, CompletionAnswer, Piece, join
from harness.serve.bodies import JsonRoute
from harness.serve.description import BODY_ERRORS, GENERATION_ERRORS, describe_without_422, described
from harness.serve.errors import ApiError, add_handlers
from harness.serve.guidance import named_tool, offers_tools
from harness.serve.limits import BodyLimit, KeyGuard
from harness.serve.loop import Stream
from harness.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Generation,
    TokenizeRequest,
)
from harness.serve.reading import Reading
from harness.serve.service import Service, only_prompt

T = TypeVar("T")


def create_app(service: Service, api_key: str | None = None) -> FastAPI:
    """The application around a service; its engine runs from the application's start to its end."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.loop.start()
        service.compilers.submit(service.rehearsal.warm)
        yield
        await service.loop.stop()
        service.compilers.shutdown(wait=False, cancel_futures=True)
        service.rehearsal.close()

    app = FastAPI(title="specharness", version=__version__, lifespan=lifespan)
    app.router.route_class = JsonRoute
    app.add_middleware(BodyLimit, most=service.limits.max_body, seconds=service.limits.body_seconds)
    if api_key:
        app.add_middleware(KeyGuard, key=api_key)
    add_handlers(app)
    endpoints = Endpoints(service)
    for method, path, endpoint, errors in (
        ("GET", "/health", endpoints.health, ()),
        ("GET", "/metrics", endpoints.metrics, ()),
        ("GET", "/version", endpoints.version, ()),
        ("GET", "/v1/models", endpoints.models, (401,)),
        ("GET", "/v1/models/{name:path}", endpoints.model, (401, 404)),
        ("POST", "/v1/completions", endpoints.completions, GENERATION_ERRORS),
        ("POST", "/v1/chat/completions", endpoints.chat_completions, GENERATION_ERRORS),
        ("POST", "/tokenize", endpoints.tokenize, BODY_ERRORS),
        ("POST", "/detokenize", endpoints.detokenize, BODY_ERRORS),
    ):
        app.add_api_route(
            path, endpoint, methods=[method], response_model=None, responses=described(path, errors)
        )
    describe_without_422(app)
    return app


class Endpoints:
    """What each path does."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self) -> Response:
        """200 while the engine lives, 503 with what it died of."""
        failure = self._service.loop.failure
        return JSONResponse({"error": failure} if failure else {}, status_code=503 if failure else 200)

    async def metrics(self) -> Response:
        """Prometheus text, under vLLM's names."""
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def version(self) -> dict[str, str]:
        """Whose server this is."""
        return {"version": f"specharness-{__version__}"}

    async def models(self) -> dict[str, Any]:
        """All models: one."""
        return {"object": "list", "data": [await self.model(self._service.model_name)]}

    async def model(self, name: str) -> dict[str, Any]:
        """The one model, by its name."""
        self._service.check_model(name)
        return {
            "id": self._service.model_name,
            "object": "model",
            "created": 0,
            "owned_by": "specharness",
            "max_model_len": self._service.max_model_len,
        }

    async def completions(self, body: CompletionRequest, http: Request) -> Response:
        """A text goes on."""
        service = self._service
        service.check_model(body.model)
        text = only_prompt(body)
        prompt = await service.encode(text, special=True) if isinstance(text, str) else text
        scores_echo = body.logprobs if body.echo else None
        asked = [most for most in (body.prompt_logprobs, scores_echo) if most is not None]
        stream = await service.open(
            body,
            prompt,
            max_tokens=16 if body.max_tokens is None else body.max_tokens,
            most_logprobs=body.logprobs,
            most_prompt_logprobs=max(asked, default=None),
        )
        echo = text if isinstance(text, str) else service.texts.decode(text)
        reading = Reading(
            stream, service.texts, body.stops, echo=echo if body.echo else None, drops=body.max_tokens == 0
        )
        answer = CompletionAnswer(
            service.texts,
            service.model_name,
            returns_ids=bool(body.return_token_ids),
            returns_prompt_logprobs=body.prompt_logprobs is not None,
        )
        return await _respond(http, body, stream, reading, answer)

    async def chat_completions(self, body: ChatRequest, http: Request) -> Response:
        """The assistant answers."""
        service = self._service
        service.check_model(body.model)
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs", param="top_logprobs")
        named = named_tool(body)
        may_call = offers_tools(body)
        prompt = await service.render(body.messages, body.tools or () if may_call else ())
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        stream = await service.open(
            body,
            prompt,
            max_tokens=most,
            most_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            most_prompt_logprobs=body.prompt_logprobs,
        )
        reading = Reading(stream, service.texts, body.stops, drops=most == 0)
        answer = ChatAnswer(
            service.texts,
            service.model_name,
            returns_ids=bool(body.return_token_ids),
            returns_prompt_logprobs=body.prompt_logprobs is not None,
            named=None if named is None else named.function.name,
            calls=named is None and may_call,
        )
        return await _respond(http, body, stream, reading, answer)

    async def tokenize(self, body: TokenizeRequest) -> dict[str, Any]:
        """A text, or messages as a chat sees them, as tokens."""
        service = self._service
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "tokenize needs either prompt or messages")
        if body.messages is not None:
            tokens = await service.render(body.messages)
        else:
            tokens = await service.encode(body.prompt or "", special=body.add_special_tokens)
        names = [service.texts.name(token) for token in tokens] if body.return_token_strs else None
        return {
            "count": len(tokens),
            "max_model_len": service.max_model_len,
            "tokens": tokens,
            "token_strs": names,
        }

    async def detokenize(self, body: DetokenizeRequest) -> dict[str, str]:
        """Tokens as a text."""
        service = self._service
        service.check_model(body.model)
        if max(body.tokens, default=0) >= service.texts.size:
            raise ApiError(400, f"token ids must be below {service.texts.size}", param="tokens")
        return {"prompt": service.texts.decode(body.tokens)}


class Events(StreamingResponse):
    """A stream of server-sent events; however it ends, the engine's stream is closed."""

    def __init__(self, stream: Stream, content: AsyncIterator[str]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.close()


async def _respond(
    http: Request, body: Generation, stream: Stream, reading: Reading, answer: Answer
) -> Response:
    """The answer in the form that was asked for. A stream starts with its first piece, so that what goes wrong before
    still has a status of its own."""
    pieces = reading.pieces()
    try:
        if body.stream:
            first = await _unless_gone(http, anext(pieces))
            return Events(stream, _events(first, pieces, body, reading, answer))
        whole = join(await _unless_gone(http, _collect(pieces)))
    except BaseException:
        stream.close()
        raise
    stream.close()
    return JSONResponse(answer.whole(whole, reading.head(), reading.usage()))


async def _events(
    first: Piece, rest: AsyncIterator[Piece], body: Generation, reading: Reading, answer: Answer
) -> AsyncIterator[str]:
    try:
        for chunk in answer.chunks(first, reading.head()):
            yield _event(chunk)
        async for piece in rest:
            for chunk in answer.chunks(piece, None):
                yield _event(chunk)
        if body.includes_usage:
            yield _event(answer.usage_chunk(reading.usage()))
    except ApiError as error:
        yield _event(error.body())
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, allow_nan=False)}\n\n"


async def _collect(pieces: AsyncIterator[Piece]) -> list[Piece]:
    return [piece async for piece in pieces]


async def _unless_gone(http: Request, work: Awaitable[T]) -> T:
    """The result, or an error as soon as the client has left (the body was read: nothing else can come from it)."""
    result, leaving = asyncio.ensure_future(work), asyncio.ensure_future(http.receive())
    try:
        await asyncio.wait((result, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ApiError(499, "the client has left")
        return result.result()
    finally:
        result.cancel()
        leaving.cancel()
