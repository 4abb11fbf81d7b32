"""Prompts out of files: ShareGPT's shape, and JSON lines of one's own. A wrong line is one error with its number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.bench.data.ask import Ask
from harness.bench.data.guides import guide_from
from harness.bench.data.vocabulary import Vocabulary
from harness.errors import UsageError

SHORTEST = 4
"""Tokens: shorter prompts and answers are left out, as vLLM and SGLang do."""


def rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, object) of every entry of a JSON list or of JSON lines; lines end at line feeds and nowhere else.

    Raises:
        UsageError: the file cannot be read, or an entry is no object.
    """
    try:
        content = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if content.lstrip()[:1] == "[":
        entries = _parsed(content, str(path))
        places = [(f"{path}: entry {place}", entry) for place, entry in enumerate(entries)]
    else:
        lines = [(place, line) for place, line in enumerate(content.split("\n"), 1) if line.strip()]
        places = [(f"{path}:{place}", _parsed(line, f"{path}:{place}")) for place, line in lines]
    for where, entry in places:
        if not isinstance(entry, dict):
            raise UsageError(f"{where}: saw {type(entry).__name__}, expected an object")
        yield where, entry


def share_gpt(
    path: Path,
    vocabulary: Vocabulary,
    n: int,
    *,
    output_tokens: int | None = None,
    longest: int | None = None,
) -> list[Ask]:
    """The first ``n`` usable conversations: their first turn asks, the length of their second is what may be answered
    (or ``output_tokens``). ``longest``: both together may have no more tokens."""
    asks: list[Ask] = []
    for where, entry in rows(path):
        turns = entry.get("conversations", entry.get("conversation"))
        if not isinstance(turns, list):
            raise UsageError(f"{where}: saw no list 'conversations', expected ShareGPT's shape")
        texts = [text for turn in turns[:2] if isinstance(text := _said(turn), str)]
        if len(texts) < 2 or len(asks) == n:
            continue
        prompt, answer = vocabulary.count(texts[0]), output_tokens or vocabulary.count(texts[1])
        if min(prompt, answer) < SHORTEST or (longest is not None and prompt + answer > longest):
            continue
        name = entry.get("id")
        asks.append(
            Ask(
                id=f"{name}" if isinstance(name, (str, int)) else f"conversation-{len(asks):05d}",
                prompt=texts[0],
                prompt_tokens=prompt,
                max_tokens=answer,
            )
        )
    return _some(_distinct(asks), path)


def custom(path: Path, *, output_tokens: int = 256, count: Callable[[str], int] | None = None) -> list[Ask]:
    """JSON lines ``{"prompt": text or ids, "output_tokens": n, "id": .., "at": seconds, "guide": {..}}``; only
    ``prompt`` is needed. ``guide`` is ``{"name", "kind", "rule"}``, or vLLM's ``{"json": schema}`` and its kin."""
    asks = []
    for place, (where, entry) in enumerate(rows(path)):
        prompt = entry.get("prompt")
        if isinstance(prompt, list) and prompt and all(type(one) is int and one >= 0 for one in prompt):
            ready: str | tuple[int, ...] = tuple(prompt)
        elif isinstance(prompt, str) and prompt:
            ready = prompt
        else:
            raise UsageError(f"{where}: saw prompt {str(prompt)[:40]!r}, expected a text or token ids")
        tokens, at = entry.get("output_tokens", output_tokens), entry.get("at")
        if type(tokens) is not int or tokens < 1:
            raise UsageError(f"{where}: saw output_tokens {tokens!r}, expected 1 or more")
        if at is not None and (type(at) not in (int, float) or not 0 <= at < 1e9):
            raise UsageError(f"{where}: saw at {at!r}, expected seconds from the beginning")
        known = len(ready) if isinstance(ready, tuple) else count(ready) if count else None
        guide = entry.get("guide")
        asks.append(
            Ask(
                id=str(entry.get("id", f"custom-{place:05d}")),
                prompt=ready,
                prompt_tokens=known,
                max_tokens=tokens,
                at=None if at is None else float(at),
                guide=None if guide is None else guide_from(guide, f"guide-{place:05d}", where),
            )
        )
    return _some(_distinct(asks), path)


def _said(turn: object) -> object:
    return turn.get("value", turn.get("content")) if isinstance(turn, dict) else None


def _parsed(content: str, where: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: saw no JSON: {error}") from None


def _distinct(asks: list[Ask]) -> list[Ask]:
    """Runs are paired by id, so an id may not come twice."""
    seen: set[str] = set()
    for ask in asks:
        if ask.id in seen:
            raise UsageError(f"saw id {ask.id!r} twice, expected every request to have its own")
        seen.add(ask.id)
    return asks


def _some(asks: list[Ask], path: Path) -> list[Ask]:
    if not asks:
        raise UsageError(f"{path}: saw no usable prompt")
    return asks
