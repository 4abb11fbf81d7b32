"""Acceptance of a run from a server's /metrics, read before and after: totals of its lifetime say nothing of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from harness.bench.metrics.acceptance import Acceptance, from_counters

_LINE = re.compile(
    r"^vllm:spec_decode_(?P<name>\w+?)_total(?:\{(?P<labels>.*)\})? (?P<value>[0-9.eE+]+)", re.M
)
_POSITION = re.compile(r'(?:^|,)position="(\d+)"')
_NAMES = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a server has counted so far, all its engines together."""

    drafts: int
    drafted: int
    accepted: int
    per_position: tuple[int, ...]


def counters(metrics: str) -> Counters | None:
    """Out of the text of /metrics; ``None`` where the server does not speculate."""
    totals: dict[str, float] = {}
    places: dict[int, float] = {}
    for found in _LINE.finditer(metrics):
        name, value = found["name"], float(found["value"])
        if name in _NAMES:
            totals[name] = totals.get(name, 0.0) + value
        elif name == "num_accepted_tokens_per_pos" and (place := _POSITION.search(found["labels"] or "")):
            places[int(place[1])] = places.get(int(place[1]), 0.0) + value
    if len(totals) < len(_NAMES):
        return None
    drafts, drafted, accepted = (int(totals[name]) for name in _NAMES)
    return Counters(
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        per_position=tuple(int(places.get(place, 0)) for place in range(max(places, default=-1) + 1)),
    )


def acceptance_of(parts: Sequence[Counters | None]) -> Acceptance | None:
    """What grew in all parts of a run together; ``None``: no draft, or a part of which nothing is known."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    places = zip_longest(*(part.per_position for part in known), fillvalue=0)
    return from_counters(
        sum(part.drafts for part in known),
        sum(part.drafted for part in known),
        sum(part.accepted for part in known),
        [sum(place) for place in places],
    )


def between(before: Counters | None, after: Counters | None) -> Counters | None:
    """What grew in between. ``None``: no speculation, or a counter that went back (the server restarted)."""
    if before is None or after is None:
        return None
    pairs = [
        (before.drafts, after.drafts),
        (before.drafted, after.drafted),
        (before.accepted, after.accepted),
        *(
            (before.per_position[place] if place < len(before.per_position) else 0, count)
            for place, count in enumerate(after.per_position)
        ),
    ]
    grown = [late - early for early, late in pairs]
    if min(grown) < 0 or len(after.per_position) < len(before.per_position):
        return None
    return Counters(drafts=grown[0], drafted=grown[1], accepted=grown[2], per_position=tuple(grown[3:]))
