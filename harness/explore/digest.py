"""What a step recorded, as a few bytes: two runs that did the same, bit for bit, have equal digests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from hashlib import blake2b
from itertools import zip_longest
from typing import Any

import numpy as np

from harness.trace import Trace

Digests = tuple[str, ...]


def digests(trace: Trace) -> Digests:
    """One for each step, and one for the end of the run: its counters, and what it died of."""
    end = (tuple(sorted(trace.counters.items())), trace.crash.message if trace.crash else None)
    parts: list[Any] = [*trace.steps, end]
    found = []
    for part in parts:
        digest = blake2b(digest_size=8)
        _feed(part, digest)
        found.append(digest.hexdigest())
    return tuple(found)


def combined(digests: Digests) -> str:
    """One digest for a whole run."""
    return blake2b("".join(digests).encode(), digest_size=8).hexdigest()


def first_difference(mine: Sequence[str], theirs: Sequence[str]) -> int | None:
    """The first step in which two runs did not do the same; ``None`` if there is none."""
    pairs = enumerate(zip_longest(mine, theirs))
    return next((step for step, (one, other) in pairs if one != other), None)


def _feed(value: Any, digest: Any) -> None:
    """Add a value of a trace, unlike any other value."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _feed(getattr(value, field.name), digest)
    elif isinstance(value, tuple):
        digest.update(f"({len(value)}".encode())
        for item in value:
            _feed(item, digest)
    else:
        digest.update(f"{value!r};".encode())
