"""What a check of an audit found."""

from __future__ import annotations

from dataclasses import dataclass

from harness.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``hit`` are the requests that it was seen in, of ``of`` that could have shown it. ``worst`` is one of them in
    detail, ``cause`` the likely mistake."""

    check: str
    verdict: Verdict
    told: str
    hit: tuple[str, ...] = ()
    of: int = 0
    worst: str = ""
    cause: str = ""

    @property
    def share(self) -> str:
        """``3 of 16``, or nothing where nothing was counted."""
        return f"{len(self.hit)} of {self.of}" if self.of else ""
