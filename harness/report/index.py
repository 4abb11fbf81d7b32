"""All runs of a folder as one page, the newest first. A run directory that is damaged has its line, too."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.codec import encode
from harness.report.html import template

OUTCOME = "outcome.json"
"""What a verb said last, in its run directory: small, while ``run.json`` may hold megabytes."""
MOST_RUNS = 500
_STAMP = re.compile(r"-(\d{8}-\d{6})-\d+(-\d+)?$")
_WORDS = {0: ("pass", "pass"), 1: ("fail", "fail"), 125: ("undecided", "open")}
_FIGURES = (
    ("speedup_free", "speed-up free", "{:.2f} ×"),
    ("speedup_guided", "guided", "{:.2f} ×"),
    ("kept", "of the gain kept", "{:.0%}"),
    ("reproduced", "reproduced", ""),
    ("fixed", "fixed", ""),
    ("requests", "requests", "{:,}"),
    ("faults", "faults", "{:,}"),
    ("killed", "killed", "{:,}"),
)
"""Keys of a verb's last line that are shown, their words, and how numbers look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A run. ``label``: its directory's name without the time; ``style``: pass, fail or open; ``said``: its verdict in
    words; ``pages``: (name, address) to open.
    """

    name: str
    time: datetime | None
    label: str
    word: str
    style: str
    said: str
    figures: tuple[str, ...]
    pages: tuple[tuple[str, str], ...]


def file_outcome(run_dir: Path, result: Mapping[str, Any]) -> None:
    """Keep a verb's last line in its run directory, and renew the page of all runs. A full disk costs a sentence."""
    try:
        _whole(run_dir / OUTCOME, json.dumps(encode(result), indent=1))
        write_index(run_dir.parent)
    except OSError as error:
        print(f"{run_dir.parent}/index.html: cannot be written: {error.strerror}", file=sys.stderr)


def write_index(folder: Path) -> Path:
    """``index.html`` of a folder of run directories."""
    path = folder / "index.html"
    _whole(path, index(folder))
    return path


def index(folder: Path) -> str:
    """The page. Directories without a ``run.json`` are no runs."""
    found = sorted(
        (path.parent for path in folder.glob("*/run.json")),
        key=lambda one: (_time(one), one.name),
        reverse=True,
    )
    return template("index.html").render(
        entries=[entry(path) for path in found[:MOST_RUNS]], left_out=max(0, len(found) - MOST_RUNS)
    )


def entry(path: Path) -> Entry:
    """A run directory as a line; what cannot be read is said."""
    told, why = _read(path / OUTCOME)
    pages = sorted(page.name for page in path.glob("*.html")) or sorted(
        page.name for page in path.glob("*.md")
    )
    code = told.get("exit")
    if why:
        word, style, said = "damaged", "fail", why
    elif not told:
        word, style = ("not kept" if pages else "unfinished"), "open"
        said = "an older version kept no verdict" if pages else "it was killed, or is still running"
    else:
        word, style = _WORDS.get(code if isinstance(code, int) else 3, ("error", "fail"))
        said = _said(told)
    return Entry(
        name=path.name,
        time=_started(path),
        label=_STAMP.sub("", path.name),
        word=word,
        style=style,
        said=said,
        figures=tuple(_figures(told)),
        pages=tuple(
            (
                page.removesuffix(".html").removesuffix(".md").replace("index", "report"),
                f"{quote(path.name)}/{quote(page)}",
            )
            for page in pages
        ),
    )


def _said(told: Mapping[str, Any]) -> str:
    if told.get("error"):
        return str(told["error"])
    if isinstance(told.get("compared"), list):
        return "; ".join(str(one.get("told", "")) for one in told["compared"] if isinstance(one, dict))
    return str(told.get("verdict") or told.get("call") or "")


def _figures(told: Mapping[str, Any]) -> Iterator[str]:
    for key, words, how in _FIGURES:
        value = told.get(key)
        if isinstance(value, bool):
            yield f"{words}: {'yes' if value else 'no'}"
        elif isinstance(value, (int, float)) and how:
            yield f"{words} {how.format(value)}{_known(told, key)}"


def _known(told: Mapping[str, Any], key: str) -> str:
    """How far a ratio is known, where the run says so: a number alone looks as sure as any other."""
    found = told.get("intervals")
    if not isinstance(found, dict) or key not in found:
        return ""
    match found[key]:
        case [int() | float() as low, int() | float() as high]:
            return f" ({low:.2f} to {high:.2f})"
    return " (too few requests)"


def _read(path: Path) -> tuple[dict[str, Any], str]:
    """(what it holds, why it cannot be read); a missing file holds nothing and is no mistake."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"{path.name} cannot be read: {type(error).__name__}"
    return (told, "") if isinstance(told, dict) else ({}, f"{path.name} holds no object")


def _started(path: Path) -> datetime | None:
    """By the directory's name."""
    stamp = _STAMP.search(path.name)
    try:
        return datetime.strptime(stamp[1], "%Y%m%d-%H%M%S") if stamp else None
    except ValueError:
        return None


def _time(path: Path) -> datetime:
    return _started(path) or datetime.fromtimestamp(path.stat().st_mtime)


def _whole(path: Path, text: str) -> None:
    """Two runs that end at once write one after the other, not into each other."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text, encoding="utf-8", errors="replace")
    scratch.replace(path)
