"""Greedy answers of two runs, side by side: a speed-up bought with another text is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bench.metrics.span import complete
from harness.bench.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """``index``: the first token that differs (the shorter answer's length where it only ends), or character where
    ``unit`` is "character": a run without token ids is compared by its text."""

    id: str
    index: int
    unit: str
    lengths: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """``compared`` answers succeeded in both runs under the same id; ``unpaired`` did so in one of them alone."""

    compared: int
    divergences: tuple[Divergence, ...]
    unpaired: tuple[str, ...]

    @property
    def equal(self) -> int:
        """How many are the same to the end."""
        return self.compared - len(self.divergences)

    @property
    def holds(self) -> bool | None:
        """``None`` where there was nothing to compare."""
        return not self.divergences if self.compared else None


def greedy_equality(first: Sequence[RequestRecord], second: Sequence[RequestRecord]) -> Equality:
    """Pair answers by request id. Both runs must be greedy: of sampled ones this says nothing."""
    a, b = ({record.id: record for record in complete(run)} for run in (first, second))
    both = [name for name in a if name in b]
    found = [divergence(a[name], b[name]) for name in both]
    return Equality(
        compared=len(both),
        divergences=tuple(one for one in found if one is not None),
        unpaired=tuple(sorted(a.keys() ^ b.keys())),
    )


def divergence(one: RequestRecord, other: RequestRecord) -> Divergence | None:
    """Where two answers part; ``None`` where they do not."""
    if one.token_ids and other.token_ids:
        return _part(one.id, "token", one.token_ids, other.token_ids)
    return _part(one.id, "character", one.text, other.text)


def _part(name: str, unit: str, a: Sequence[object], b: Sequence[object]) -> Divergence | None:
    if a == b:
        return None
    shared = min(len(a), len(b))
    index = next((place for place in range(shared) if a[place] != b[place]), shared)
    return Divergence(id=name, index=index, unit=unit, lengths=(len(a), len(b)))
