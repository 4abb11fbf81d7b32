"""Timed traces: when each request came, how long it was, and which blocks of its prompt others had too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from harness.bench.data.ask import Ask
from harness.bench.data.files import rows
from harness.bench.data.vocabulary import Vocabulary
from harness.errors import UsageError

BLOCK = 512
"""Tokens that one of Mooncake's hash ids stands for."""


def timed(
    path: Path,
    vocabulary: Vocabulary,
    seed: int,
    *,
    n: int | None = None,
    speed: float = 1.0,
    tick: float = 0.001,
    block: int = BLOCK,
    longest: int | None = None,
) -> list[Ask]:
    """A trace in Mooncake's shape: JSON lines ``{"timestamp": ms, "input_length", "output_length", "hash_ids"}``.

    Prompts are random ids; equal hash ids are equal blocks, so prefixes are shared as they were. ``speed`` 2 sends
    twice as fast; the first request is sent at 0. ``tick``: seconds of one unit of its timestamps. ``longest`` leaves
    out what does not fit the model.

    Raises:
        UsageError: a line without its numbers, times that run backwards, or nothing left.
    """
    if speed <= 0 or tick <= 0 or block < 1:
        raise UsageError(f"saw speed {speed}, tick {tick} and block {block}, expected more than 0")
    asks: list[Ask] = []
    first, before = None, 0.0
    for place, (where, entry) in enumerate(rows(path)):
        if n is not None and len(asks) == n:
            break
        at, size, out = (_number(entry, key, where) for key in ("timestamp", "input_length", "output_length"))
        if at < before:
            raise UsageError(f"{where}: saw timestamp {at:g} behind {before:g}, expected times in order")
        before = at
        if size < 1 or out < 1 or (longest is not None and size + out > longest):
            continue
        first = at if first is None else first
        asks.append(
            Ask(
                id=f"trace-{place:06d}",
                prompt=_prompt(vocabulary, seed, int(size), entry.get("hash_ids"), place, block),
                prompt_tokens=int(size),
                max_tokens=int(out),
                ignore_eos=True,
                at=(at - first) * tick / speed,
            )
        )
    if not asks:
        raise UsageError(f"{path}: saw no usable request")
    return asks


def _prompt(
    vocabulary: Vocabulary, seed: int, size: int, hashes: object, place: int, block: int
) -> tuple[int, ...]:
    shared = hashes if isinstance(hashes, list) else []
    ids: list[int] = []
    for name in shared[: -(-size // block)]:
        ids += vocabulary.draw(Random(f"{seed} block {name}"), block)
    if len(ids) < size:
        ids += vocabulary.draw(Random(f"{seed} request {place}"), size - len(ids))
    return tuple(ids[:size])


def _number(entry: Mapping[str, Any], key: str, where: str) -> float:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise UsageError(f"{where}: saw {key} {value!r}, expected a number")
    return float(value)
