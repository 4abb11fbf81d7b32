"""The console block of `vllm bench serve` from a result with its keys, so that what reads that block reads ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TypeGuard

from harness.bench import labels
from harness.bench.labels import WIDTH, Line
from harness.errors import UsageError

ABSENT = "n/a"
"""What was not measured. vLLM prints 0.00 there, which reads as very fast."""


def block(result: Mapping[str, object], style: str = "current") -> str:
    """``result`` has vLLM's keys (``result.result`` makes one, importers read one); clocks it lacks are left out.

    Raises:
        UsageError: an unknown style.
    """
    if style not in labels.STYLES:
        raise UsageError(f"saw format {style!r}, expected one of {', '.join(labels.STYLES)}")
    return "\n".join(_lines(result, style))


def row(label: str, value: object, *, whole: bool = False) -> str:
    """One line: the label in 40 columns, the value in 10."""
    return f"{label:<40} {_shown(value, whole):<10}"


def rule(words: str = "", line: str = "-") -> str:
    """A header in the middle of a line of 50."""
    return f"{words:{line}^{WIDTH}}"


def _lines(result: Mapping[str, object], style: str) -> Iterator[str]:
    yield rule(labels.TITLE, "=")
    yield from _table(result, labels.HEAD[style])
    for section in labels.CLOCKS[style]:
        if f"mean_{section.clock}_ms" not in result:
            continue
        yield rule(section.header)
        yield row(f"Mean {section.word} (ms):", result[f"mean_{section.clock}_ms"])
        yield row(f"Median {section.word} (ms):", result.get(f"median_{section.clock}_ms"))
        for key, value in result.items():
            label = labels.percentile_label(key, section)
            if label is not None:
                yield row(label, value)
    if style != "vllm-0.10.2" and labels.DRAFTS[0].key in result:
        yield rule(labels.SPECULATION)
        yield from _table(result, labels.DRAFTS)
        places = result.get(labels.POSITIONS)
        if isinstance(places, list) and places:
            yield labels.PER_POSITION
            for place, rate in enumerate(places):
                yield row(labels.POSITION.format(place), rate * 100 if _is_number(rate) else None)
    yield rule(line="=")


def _table(result: Mapping[str, object], lines: tuple[Line, ...]) -> Iterator[str]:
    for line in lines:
        value = result.get(line.key)
        if line.optional and value in (None, "inf", float("inf")):
            continue
        yield row(line.label, value, whole=line.whole)


def _shown(value: object, whole: bool) -> str:
    if not _is_number(value):
        return ABSENT
    return str(int(value)) if whole else f"{value:.2f}"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
