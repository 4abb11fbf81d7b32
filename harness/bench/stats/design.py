"""What is decided before anything is measured: levels, practical effects, how many repeats and when to look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from harness.errors import UsageError

USUAL_EFFECT = 0.05
USUAL_TAIL_EFFECT = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """``effects``: the gated metrics, each with the smallest change that matters (0.05: 5 %); others are observed.

    ``alpha``: chance that a night without any change is called a regression, over all gated metrics and all looks.
    ``confidence``: of the two-sided interval that is printed, and that must lie within the margin to pass.
    A look is taken after ``first_pairs`` pairs, and after every two more up to ``max_pairs``, so that the order of
    the runs (ABBA) is balanced at every look. ``window``: nights that tonight is held against, ``fewest`` of them at
    least. ``tail_samples``: a percentile is gated only where so many samples of each run lie beyond it. ``trim``: share
    of the runs that is left out at either end (0.2), for hosts where something else stalls a run now and then.
    """

    effects: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    alpha: float = 0.01
    confidence: float = 0.95
    power: float = 0.95
    first_pairs: int = 4
    max_pairs: int = 16
    window: int = 20
    fewest: int = 8
    tail_samples: float = 10.0
    trim: float = 0.0

    def __post_init__(self) -> None:
        if not (2 <= self.first_pairs <= self.max_pairs and self.first_pairs % 2 == self.max_pairs % 2 == 0):
            raise UsageError(
                f"pairs: saw {self.first_pairs} to {self.max_pairs}, expected even numbers, 2 at least, ascending",
                hint="an odd number of pairs leaves the order of the runs unbalanced",
            )
        if not (0 < self.alpha < 0.5 and 0.5 < self.confidence < 1 and 0.5 < self.power < 1):
            raise UsageError(
                f"levels: saw alpha {self.alpha}, confidence {self.confidence}, power {self.power}, "
                "expected alpha in (0, 0.5) and the others in (0.5, 1)"
            )
        if not 0 <= self.trim <= 0.25:
            raise UsageError(f"trim: saw {self.trim}, expected 0 to 0.25", hint="0.2 is usual")
        if not 2 <= self.fewest <= self.window:
            raise UsageError(
                f"window: saw {self.fewest} to {self.window} nights, expected 2 <= fewest <= window"
            )
        for name, effect in self.effects.items():
            if not 0 < effect < 10:
                raise UsageError(
                    f"the practical effect of {name}: saw {effect}, expected a share such as 0.05",
                    hint="0.05 is 5 %",
                )

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of pairs after which the gate looks."""
        return tuple(range(self.first_pairs, self.max_pairs + 1, 2))

    def alpha_at(self, pairs: int) -> float:
        """What may be spent of ``alpha`` at this look.

        Cumulative spending alpha * (pairs / max_pairs)^2 (Kim and DeMets 1987), in increments that add up to alpha:
        by the union bound the looks together keep to alpha, however they depend on each other.
        """
        spent = [self.alpha * (look / self.max_pairs) ** 2 for look in self.looks]
        at = self.looks.index(pairs)
        return spent[at] - (spent[at - 1] if at else 0.0)


def usual_effects(names: Mapping[str, float | None]) -> dict[str, float]:
    """Practical effects by name -> quantile or ``None``: 5 %, and 10 % for percentiles above the median."""
    return {
        name: USUAL_TAIL_EFFECT if quantile is not None and quantile > 0.5 else USUAL_EFFECT
        for name, quantile in names.items()
    }
