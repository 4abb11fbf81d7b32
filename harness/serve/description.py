"""What /openapi.json says of answers: every status that an endpoint can give, and no other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from harness.serve.errors import ErrorBody

MEANING = {
    400: "A body that is no JSON, a wrong or unknown field, a prompt that is too long, a grammar that is none",
    401: "The key is missing or wrong",
    404: "There is no such model",
    408: "The body did not come in time",
    413: "The body is too large",
    415: "The body is not said to be JSON",
    429: "Too many requests",
    500: "The engine is dead",
}
BODY_ERRORS = (400, 401, 404, 408, 413, 415)
GENERATION_ERRORS = (*BODY_ERRORS, 429, 500)
_OBJECT = {"application/json": {"schema": {"type": "object"}}}
_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_EVENTS = {"text/event-stream": {"schema": {"type": "object", "properties": {"data": {"type": "string"}}}}}


def described(path: str, errors: Iterable[int]) -> dict[int | str, dict[str, Any]]:
    """FastAPI's ``responses`` of a path."""
    content = _TEXT if path == "/metrics" else _OBJECT
    streams = _EVENTS if path.endswith("/completions") else {}
    described: dict[int | str, dict[str, Any]] = {200: {"description": "Done", "content": content | streams}}
    if path == "/health":
        described[503] = {"description": "The engine is dead, and of what", "content": _OBJECT}
    return described | {status: {"model": ErrorBody, "description": MEANING[status]} for status in errors}


def describe_without_422(app: FastAPI) -> None:
    """FastAPI documents a 422 for every body; ours are 400, as OpenAI's."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for unused in ("HTTPValidationError", "ValidationError"):
                schema["components"]["schemas"].pop(unused, None)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to change its document
