"""As much HTTP as talking to a server on this machine takes: JSON there, JSON back, no proxies."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any

from harness.errors import HarnessError


def post(port: int, path: str, body: dict[str, Any], *, timeout: float) -> Any:
    """What the server answers, decoded. Raises HarnessError where it says anything but 200, or nothing."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        raise HarnessError(f"POST {path}: no answer: {error!r}", hint="see the server's log") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise HarnessError(f"POST {path}: HTTP {answer.status}: {text[:300]}", hint="see the server's log")
    return json.loads(text) if text else None


def is_healthy(port: int) -> bool:
    """Whether ``/health`` answers 200 within a second or two."""
    connection = HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
