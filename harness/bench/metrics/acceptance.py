"""How many drafts were accepted. Positions count from 0; rates are 0 to 1, lengths are tokens per verify step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from harness.bench.metrics.span import complete
from harness.bench.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """``rate`` and ``length`` weigh every draft alike and are the headline; ``request_*`` weigh every request alike.

    Steps without a draft are no verify steps: they are ``undrafted`` and in no other figure. Per position p:
    ``over_all`` divides by all verify steps (as vLLM prints it), ``over_reached`` by those that drafted so far, and
    ``given_earlier`` by those that also accepted everything before p; ``None`` where there was none of them.
    ``shortened``: share of verify steps with fewer drafts than the longest; ``lengths``: steps by their drafts.
    What only single steps tell is ``None`` where the server reports totals.
    """

    steps: int
    drafted: int
    accepted: int
    rate: float | None
    length: float | None
    over_all: tuple[float, ...] | None
    over_reached: tuple[float | None, ...] | None = None
    given_earlier: tuple[float | None, ...] | None = None
    shortened: float | None = None
    lengths: Mapping[int, int] | None = None
    undrafted: int | None = None
    request_rate: float | None = None
    request_length: float | None = None
    requests: int | None = None

    @property
    def wasted(self) -> int:
        """Drafts that were computed for nothing."""
        return self.drafted - self.accepted


def acceptance(records: Sequence[RequestRecord], longest: int | None = None) -> Acceptance | None:
    """From each request's own steps; ``None`` where no request that succeeded reports a verify step.

    ``longest`` is k, the drafts of a step that nothing shortens; by default the most that were seen.
    """
    each = [
        [(d, a) for d, a in zip(record.drafted, record.accepted, strict=True) if d > 0]
        for record in complete(records)
    ]
    undrafted = sum(record.drafted.count(0) for record in complete(records))
    steps = list(chain.from_iterable(each))
    if not steps:
        return None
    drafted, accepted = sum(d for d, _ in steps), sum(a for _, a in steps)
    full = longest or max(d for d, _ in steps)
    places = range(max(full, max(d for d, _ in steps)))
    taken = [sum(a > p for _, a in steps) for p in places]
    reached = [sum(d > p for d, _ in steps) for p in places]
    given = [sum(d > p and a >= p for d, a in steps) for p in places]
    own = [request for request in each if request]
    return Acceptance(
        steps=len(steps),
        drafted=drafted,
        accepted=accepted,
        rate=accepted / drafted,
        length=1 + accepted / len(steps),
        over_all=tuple(count / len(steps) for count in taken),
        over_reached=tuple(count / n if n else None for count, n in zip(taken, reached, strict=True)),
        given_earlier=tuple(count / n if n else None for count, n in zip(taken, given, strict=True)),
        shortened=sum(d < full for d, _ in steps) / len(steps),
        lengths=dict(sorted(Counter(d for d, _ in steps).items())),
        undrafted=undrafted,
        request_rate=sum(sum(a for _, a in r) / sum(d for d, _ in r) for r in own) / len(own),
        request_length=sum(1 + sum(a for _, a in r) / len(r) for r in own) / len(own),
        requests=len(own),
    )


FREE = "free"
"""The group of requests without a guide."""


def by_guide(records: Sequence[RequestRecord], longest: int | None = None) -> dict[str, Acceptance]:
    """Acceptance of each guide's requests, and of the free ones as FREE; all against the same longest draft, so that
    what a grammar shortens shows. Groups without a verify step are not in it."""
    full = longest or max((d for record in complete(records) for d in record.drafted), default=0)
    groups: dict[str, list[RequestRecord]] = {}
    for record in complete(records):
        groups.setdefault(record.guide or FREE, []).append(record)
    found = {name: acceptance(group, full or None) for name, group in sorted(groups.items())}
    return {name: one for name, one in found.items() if one is not None}


def from_counters(
    steps: int, drafted: int, accepted: int, per_position: Sequence[int] = ()
) -> Acceptance | None:
    """From how much a server's counters grew during the run, never from their totals (Automodel#2912).

    ``None`` where no step was drafted.
    """
    if steps <= 0:
        return None
    return Acceptance(
        steps=steps,
        drafted=drafted,
        accepted=accepted,
        rate=accepted / drafted if drafted else None,
        length=1 + accepted / steps,
        over_all=tuple(count / steps for count in per_position) or None,
    )
