"""What a server on this machine is asked beside completions: its health, and calls into its worker."""

from __future__ import annotations

from typing import Any

import httpx

from harness.errors import HarnessError


def post(port: int, path: str, body: dict[str, Any], *, timeout: float) -> Any:
    """What the server answers, decoded. Raises HarnessError where it says anything but 200, or nothing."""
    try:
        answer = httpx.post(f"http://127.0.0.1:{port}{path}", json=body, timeout=timeout, trust_env=False)
    except httpx.HTTPError as error:
        raise HarnessError(f"POST {path}: no answer: {error!r}", hint="see the server's log") from None
    if answer.status_code != 200:
        raise HarnessError(
            f"POST {path}: HTTP {answer.status_code}: {answer.text[:300]}", hint="see the server's log"
        )
    return answer.json() if answer.content else None


def is_healthy(port: int) -> bool:
    """Whether ``/health`` answers 200 within a second or two."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
