"""What happened in how many runs, and which two things happened together: nothing passes by never being tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from harness.explore.workbench import Record

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Runs by event, and by pair of events."""

    runs: int
    events: dict[str, int]
    pairs: dict[Pair, int]

    @staticmethod
    def of(records: Iterable[Record]) -> Coverage:
        """Counted over the runs of the correct engine."""
        events: Counter[str] = Counter()
        pairs: Counter[Pair] = Counter()
        runs = 0
        for record in records:
            runs += 1
            events.update(record.observed)
            pairs.update(combinations(sorted(record.observed), 2))
        return Coverage(runs=runs, events=dict(events.most_common()), pairs=dict(pairs))

    def together(self, one: str, other: str) -> int:
        """Runs in which both happened."""
        first, second = sorted((one, other))
        return self.pairs.get((first, second), 0)

    def empty(self, wanted: Iterable[str]) -> list[Pair]:
        """Pairs of ``wanted`` events that never happened in one run."""
        return [pair for pair in combinations(sorted(wanted), 2) if not self.together(*pair)]
