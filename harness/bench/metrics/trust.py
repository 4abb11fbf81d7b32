"""Whether a run may be believed, and what a reader has to be told with its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.bench.metrics.distribution import Distribution
from harness.bench.metrics.tokens import Streams

MOST_BAD = 0.01
"""Share of streams that may fail before the run is invalid rather than slow."""
SKEW = 2.0
"""Mean TTFT over median from which on a few requests, the first as a rule, have paid for something else.
Log-normal latencies with sigma 1 have 1.65."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """``reasons``: why the run is invalid, in words; none: it is valid. ``warnings`` do not make it invalid."""

    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether its figures may be compared and gated on."""
        return not self.reasons


def trust(
    ended: Streams, clocks: Mapping[str, Distribution | None], wanted: Sequence[float] = (99.0,)
) -> Trust:
    """``clocks`` by their names, "ttft" among them; ``wanted``: the percentiles that will be printed."""
    reasons = []
    if ended.completed == 0:
        reasons.append(f"nothing was measured: {ended.failed} of {ended.failed} requests failed")
    elif (bad := ended.bad_share) is not None and bad > MOST_BAD:
        reasons.append(
            f"{ended.failed} of {ended.completed + ended.failed} streams failed "
            f"({bad:.1%}, at most {MOST_BAD:.0%}): {_listed(ended.outcomes)}"
        )
    warnings = []
    first = clocks.get("ttft")
    if first is not None and (line := warm_up_warning(first.mean, first.median)):
        warnings.append(line)
    thin: dict[str, list[str]] = {}
    for name, found in clocks.items():
        for q in wanted:
            if found is not None and not found.trusted(q):
                thin.setdefault(f"P{q:g} of {found.n}", []).append(name)
    warnings += [
        f"{what} samples rests on fewer than ten above it: {_first(names)}" for what, names in thin.items()
    ]
    return Trust(reasons=tuple(reasons), warnings=tuple(warnings))


def warm_up_warning(mean: float | None, median: float | None) -> str | None:
    """A line where mean TTFT is SKEW times the median or more; units cancel."""
    if mean is None or not median or mean / median < SKEW:
        return None
    return (
        f"mean TTFT is {mean / median:.1f} x the median: a few requests paid for warm-up "
        "(compilation, graph capture, grammar or prefix caches) inside the measured run"
    )


def _listed(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in outcomes.items() if name != "complete")


def _first(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
