"""What a result file holds: read once and parsed once, whoever asks whose result it is. Some have 100 MB."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGEST = 2**30
"""Bytes of a result file: more is something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """``value``: its JSON; ``None``: it holds none, or several, or cannot be read. ``digest``: SHA-256 of its bytes."""

    path: Path
    value: Any
    digest: str


def content_of(path: Path) -> Content:
    """Whatever the file is; who needs it to be something says so."""
    try:
        data = path.read_bytes() if path.stat().st_size <= LARGEST else b""
    except OSError:
        data = b""
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        value = None
    return Content(path=path, value=value, digest=hashlib.sha256(data).hexdigest())
