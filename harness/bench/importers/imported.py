"""What is read of another tool's result, and how its numbers are taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from harness.bench.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """``metrics`` by our dotted names (times in milliseconds), only where the definitions agree; what has no equal here
    stands under the tool's own name (``guidellm.tpot``). ``result`` has vLLM's keys, for the block.

    ``load``: how requests were sent, as far as it says. ``notes`` say how a number's definition is the tool's own;
    ``warnings`` what is wrong with the run.
    """

    tool: str
    version: str | None = None
    model: str | None = None
    load: str = "not told"
    metrics: Mapping[str, float | None]
    result: Mapping[str, Any] = field(default_factory=dict)
    records: tuple[RequestRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def number(value: object) -> float | None:
    """A finite number, or nothing."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        return None
    return value


def text(value: object) -> str | None:
    """A text, or nothing."""
    return value if isinstance(value, str) else None


def pace(rate: object, at_once: object, what: str = "") -> str:
    """A load in words, the same for every tool: requests a second, and how many at a time."""
    words = ["all at once" if number(rate) is None else f"{number(rate):g} per second"]
    if number(at_once) is not None:
        words.append(f"{number(at_once):g} at a time")
    return ", ".join(filter(None, [what, *words]))


def table(value: object) -> Mapping[str, Any]:
    """An object, or an empty one."""
    return value if isinstance(value, dict) else {}


def clock(found: Mapping[str, Any], theirs: str, ours: str) -> Iterator[tuple[str, float | None]]:
    """``mean_THEIRS_ms``, ``p99_THEIRS_ms`` ... of a flat result as ``OURS.mean_ms``, ``OURS.p99_ms``."""
    ending = f"_{theirs}_ms"
    for key, value in found.items():
        figure = key.removesuffix(ending)
        if figure == key or not isinstance(key, str):
            continue
        if figure in ("mean", "median", "std", "max") or figure.lstrip("p").replace(".", "", 1).isdigit():
            yield f"{ours}.{figure}_ms", number(value)


def unmeasured(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """The metrics of a run in which nothing succeeded: a 0 of theirs was never measured."""
    return {key: value if key in ("completed", "failed") else None for key, value in metrics.items()}


def per_chunk(metrics: Mapping[str, float | None]) -> float | None:
    """Tokens per chunk, estimated where only means are known: mean gap between chunks over mean time per token."""
    gap, token = metrics.get("icl.mean_ms"), metrics.get("tpot.mean_ms")
    return gap / token if gap and token else None
