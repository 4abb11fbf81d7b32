"""How bodies are read: JSON and nothing else, by the letter of RFC 8259, and without the doubles that it merely advises
against."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from harness.serve.errors import ApiError


class JsonRequest(Request):
    """A request whose body has one meaning."""

    async def json(self) -> Any:
        """JSONDecodeError for everything that is no JSON, or not clearly."""
        try:
            text = (await self.body()).decode()
            return json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_no_constant)
        except json.JSONDecodeError:
            raise
        except RecursionError:
            raise json.JSONDecodeError("nested too deeply", "", 0) from None
        except UnicodeDecodeError as error:
            raise json.JSONDecodeError(f"no UTF-8 ({error.reason})", "", error.start) from None
        except ValueError as error:  # doubles, constants, and numbers of thousands of digits
            raise json.JSONDecodeError(str(error), "", 0) from None


class JsonRoute(APIRoute):
    """A path whose bodies are JSON: 415 for anything that says it is something else."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, fed with strict requests."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if "POST" in (self.methods or ()):
                _check_type(request.headers.get("content-type"))
            return await handle(JsonRequest(request.scope, request.receive))

        return strict


def _check_type(given: str | None) -> None:
    message = Message()
    message["content-type"] = given or ""
    charset = message.get_param("charset", "utf-8")
    if given is None or message.get_content_type() != "application/json":
        raise ApiError(415, f"the body must be application/json, got {given or 'no type'}")
    if str(charset).lower() not in ("utf-8", "utf8"):
        raise ApiError(415, f"the body must be UTF-8, got {charset}")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        double = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {double[:80]!r} stands twice in one object")
    return content


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
