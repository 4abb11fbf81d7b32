"""What a client is told when something is wrong: one JSON object, as OpenAI's, with the right status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException as StarletteHTTPException

from harness.errors import UsageError

TYPES = {
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestEntityTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    500: "InternalServerError",
}
"""The type of an error by its status; every other one is a ``BadRequestError``."""


class ErrorFields(BaseModel):
    """What is wrong. ``param`` names the field of the request that is to blame, where there is one."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(BaseModel):
    """Every answer other than 200."""

    error: ErrorFields


class ApiError(Exception):
    """An answer other than 200. ``param`` names the field of the request that is to blame, where there is one."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def body(self) -> dict[str, Any]:
        """``{"error": {...}}``."""
        return {
            "error": {
                "message": str(self),
                "type": TYPES.get(self.status, "BadRequestError"),
                "param": self.param,
                "code": self.status,
            }
        }


def bad_request(error: UsageError) -> ApiError:
    """What the engine refuses, without the advice that is meant for the owner of the command line."""
    return ApiError(400, str(error.args[0]))


def add_handlers(app: FastAPI) -> None:
    """Every way in which a request can fail ends in the same shape."""
    app.add_exception_handler(ApiError, _of_api)
    app.add_exception_handler(RequestValidationError, _of_body)
    app.add_exception_handler(StarletteHTTPException, _of_http)
    app.add_exception_handler(Exception, _of_server)


def _answer(error: ApiError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


def _of_api(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return _answer(error)


def _of_body(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return _answer(ApiError(400, f"the body is no JSON: {first['ctx']['error']} at {first['loc'][-1]}"))
    place = ".".join(str(part) for part in first["loc"] if part != "body") or None
    return _answer(ApiError(400, f"{place or 'body'}: {first['msg']}", param=place))


def _of_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return _answer(ApiError(error.status_code, str(error.detail)), error.headers)


def _of_server(request: Request, error: Exception) -> JSONResponse:
    return _answer(ApiError(500, f"{type(error).__name__}: {error}"))
