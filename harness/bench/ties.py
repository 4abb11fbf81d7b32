"""Where greedy answers part: was it a near tie, which another order of additions may turn, or are they simply other?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.bench.data.ask import Ask
from harness.bench.equality import Divergence, Equality
from harness.bench.record import RequestRecord
from harness.bench.served import Served

NEAR = 1e-3
"""Natural logarithms between two tokens: float32 noise of the tiny model is a thousandth of it."""
MOST = 20
"""Divergences that are looked into: two requests each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """``gap``: log-probability of the first run's token over the second's, by a prefill; ``None``: nobody can say."""

    divergence: Divergence
    gap: float | None

    @property
    def near(self) -> bool:
        """Whether it is a near tie."""
        return self.gap is not None and abs(self.gap) < NEAR

    def __str__(self) -> str:
        found = self.divergence
        where = f"{found.id}: {found.unit} {found.index} of {found.lengths[0]} and {found.lengths[1]}"
        if self.gap is None:
            return where
        words = "a near tie" if self.near else "no tie"
        return f"{where}, {words}: {self.gap:+.2g} between the two tokens"


def partings(
    equality: Equality,
    asks: Sequence[Ask],
    first: Sequence[RequestRecord],
    second: Sequence[RequestRecord],
    served: Served | None,
) -> tuple[Parting, ...]:
    """Look into each divergence; ``served`` scores the two tokens, ``None``: nobody does."""
    prompts = {ask.id: ask.prompt for ask in asks}
    a, b = ({record.id: record.token_ids for record in run} for run in (first, second))
    return tuple(
        Parting(divergence=one, gap=_gap(one, prompts, a, b, served) if served and place < MOST else None)
        for place, one in enumerate(equality.divergences)
    )


def _gap(
    found: Divergence,
    prompts: Mapping[str, object],
    a: Mapping[str, tuple[int, ...]],
    b: Mapping[str, tuple[int, ...]],
    served: Served,
) -> float | None:
    prompt, one, other = prompts[found.id], a[found.id], b[found.id]
    if found.unit != "token" or not isinstance(prompt, tuple) or found.index >= min(found.lengths):
        return None
    before = [*prompt, *one[: found.index]]
    scores = [served.score(before, ids[found.index]) for ids in (one, other)]
    return None if scores[0] is None or scores[1] is None else scores[0] - scores[1]
