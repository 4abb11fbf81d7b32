"""What ``run.json`` of a benchmark must hold before it goes on: somebody may have edited it, or a disk may have."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from harness.bench.plan import Plan
from harness.bench.revision import Revision

Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]


class Asked(msgspec.Struct):
    """Arguments that the run began with; the later ones are missing in runs of earlier versions."""

    base_url: str | None
    model: str | None
    tokenizer: str | None
    format: str
    loop_lag: Annotated[float, msgspec.Meta(gt=0)] | None
    variant: str
    spec: str
    k: Count
    regime: str
    preset: str
    compare: list[str]
    rounds: Count
    history: str | None = None
    series: str | None = None
    commit: str | None = None
    layout: str | None = None
    graphs: str | None = None


class Where(msgspec.Struct):
    """A server that cells were measured on."""

    url: str
    model: str


class Kept(msgspec.Struct):
    """``time``: when the run began, with its zone.

    By cell: ``began``, local times; ``partings``: what was said of answers that part; ``repeated``: why.
    """

    setting: Asked
    plan: Plan
    revision: Revision | None = None
    time: datetime | None = None
    served: dict[str, Where] = {}
    began: dict[str, datetime] = {}
    partings: dict[str, list[str]] = {}
    repeated: dict[str, str] = {}


def require_kept(run: Mapping[str, Any]) -> Kept:
    """msgspec.ValidationError, naming the place, where something is missing or of another kind."""
    return msgspec.convert(dict(run), Kept)
