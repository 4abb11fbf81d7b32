"""The five verdicts, and what they rest on.

Where several apply, FAIL > INCONCLUSIVE > NEAR_TIE > PASS; UNSUPPORTED stands alone. Only FAIL is red, and nothing
turns green by being skipped: a check that could not look says INCONCLUSIVE or UNSUPPORTED and why.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from harness.trace import Coordinate


class Verdict(enum.Enum):
    """What a check, a scenario or a run came to."""

    PASS = "PASS"
    NEAR_TIE = "NEAR_TIE"
    INCONCLUSIVE = "INCONCLUSIVE"
    UNSUPPORTED = "UNSUPPORTED"
    FAIL = "FAIL"

    @property
    def exit_code(self) -> int:
        """0 for PASS and NEAR_TIE, 1 for FAIL, 125 (``git bisect`` skips) for the rest."""
        return {Verdict.PASS: 0, Verdict.NEAR_TIE: 0, Verdict.FAIL: 1}.get(self, 125)


_RANK = [Verdict.PASS, Verdict.NEAR_TIE, Verdict.UNSUPPORTED, Verdict.INCONCLUSIVE, Verdict.FAIL]


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that stands for all of them; of nothing, INCONCLUSIVE."""
    return max(verdicts, key=_RANK.index, default=Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """One place where the suspect and the reference differ.

    ``error`` is a relative RMS where tensors are compared (``None`` for a crash or a wrong count), ``threshold``
    what was allowed, ``message`` what a stranger should read.
    """

    kind: str
    at: Coordinate
    message: str
    error: float | None = None
    threshold: float | None = None
    diagnosis: str | None = None
    cause: str | None = None  # class of the diagnosis, as check/hypotheses.py names it

    @property
    def told(self) -> str:
        """In half a line: kind and place."""
        return f"{self.kind} at {self.at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one check found: its verdict, one line of reasons, its divergences (earliest first), and its power.

    ``power`` says how much of the shipped faults' effect this check would have seen here (``None``: not stated).
    """

    check: str
    verdict: Verdict
    summary: str
    divergences: tuple[Divergence, ...] = ()
    compared: int = 0
    power: str | None = None
