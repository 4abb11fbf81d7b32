"""Change points with a state: new, known (acknowledged) or fixed; and the commits to suspect."""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.bench.stats.changepoints import P_VALUE, ChangePoint, change_points
from harness.bench.stats.estimate import shift_of
from harness.bench.stats.run import Direction
from harness.errors import UsageError

SHORTEST = 7
"""Digits of a commit, at least: a shorter prefix may fit commits of other years."""


class State(enum.Enum):
    """What became of a change. ``BETTER``: it was none to worry about."""

    NEW = "new"
    KNOWN = "known"
    FIXED = "fixed"
    BETTER = "better"


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """One point of a series: when, which commit, and the value (positive)."""

    time: datetime
    commit: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """A change that people know of. ``commit``: any commit of its suspects, or a prefix of at least 7 digits."""

    metric: str
    commit: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change point of a metric. The culprit is among the commits after ``good`` up to and including ``bad``.

    ``fixed_by`` is the first commit of the level that came back; ``reason`` what the acknowledgement says.
    """

    metric: str
    point: ChangePoint
    state: State
    time: datetime
    good: str
    bad: str
    fixed_by: str | None = None
    reason: str = ""

    @property
    def suspects(self) -> str:
        """The range for ``git log``, or that one commit stands on both sides."""
        return self.within(None)

    def within(self, digits: int | None) -> str:
        """The same, with so many digits of a commit; ``None``: as it was told."""
        if self.good == self.bad:
            return f"none, {self.good[:digits]} before and after: see the machine and what is not in the checkout"
        return f"{self.good[:digits]}..{self.bad[:digits]}"


def changes(
    metric: str,
    nights: Sequence[Night],
    direction: Direction,
    known: Sequence[Acknowledgement] = (),
    *,
    effect: float = 0.05,
    p_value: float = P_VALUE,
) -> tuple[Change, ...]:
    """Every change of a series (oldest night first) with its state.

    A change for the worse is fixed once a later level is back within half of ``effect`` (the share that matters) of
    the level before it. Changes smaller than half of ``effect`` are none.
    """
    points = change_points([night.value for night in nights], p_value=p_value, smallest=effect / 2)
    return tuple(_change(metric, nights, direction, known, effect, points, at) for at in range(len(points)))


def unmatched(known: Sequence[Acknowledgement], found: Sequence[Change]) -> tuple[Acknowledgement, ...]:
    """Acknowledgements that belong to no change that was found: outdated, or misspelt."""
    used = {(change.metric, change.reason) for change in found if change.state in (State.KNOWN, State.FIXED)}
    return tuple(one for one in known if (one.metric, one.reason) not in used)


def load_acknowledgements(path: Path) -> tuple[Acknowledgement, ...]:
    """``[[known]]`` tables with ``metric``, ``commit`` and ``reason``; none in a missing file. UsageError if wrong."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", hint="see docs/history-and-gate.md") from None
    tables = data.get("known", [])
    if set(data) - {"known"} or not isinstance(tables, list):
        raise UsageError(
            f"{path}: saw {', '.join(sorted(data))}, expected [[known]] tables and nothing else",
            hint="see docs/history-and-gate.md",
        )
    return tuple(_acknowledgement(path, at, table) for at, table in enumerate(tables, 1))


def _acknowledgement(path: Path, at: int, table: Mapping[str, Any]) -> Acknowledgement:
    fields = ("metric", "commit", "reason")
    right = isinstance(table, dict) and set(table) == set(fields)
    if not right or not all(isinstance(table[name], str) and table[name] for name in fields):
        seen = dict(table) if isinstance(table, dict) else table
        raise UsageError(
            f"{path}, [[known]] number {at}: saw {seen}, expected metric, commit and reason as text",
            hint="see docs/history-and-gate.md",
        )
    if len(table["commit"]) < SHORTEST:
        raise UsageError(
            f"{path}, [[known]] number {at}: saw commit {table['commit']!r}, expected {SHORTEST} digits at least",
            hint="a shorter prefix may fit commits of other years",
        )
    return Acknowledgement(metric=table["metric"], commit=table["commit"], reason=table["reason"])


def _change(
    metric: str,
    nights: Sequence[Night],
    direction: Direction,
    known: Sequence[Acknowledgement],
    effect: float,
    points: Sequence[ChangePoint],
    at: int,
) -> Change:
    point = points[at]
    first, last = point.nights
    back = direction.worse * point.before + shift_of(effect / 2)
    mended = next((later for later in points[at + 1 :] if direction.worse * later.after <= back), None)
    told = next(
        (
            one
            for one in known
            if one.metric == metric
            and any(_is_same(night.commit, one.commit) for night in nights[first - 1 : last + 1])
        ),
        None,
    )
    if direction.worse * (point.after - point.before) < 0:
        state = State.BETTER
    elif mended:
        state = State.FIXED
    else:
        state = State.KNOWN if told else State.NEW
    return Change(
        metric=metric,
        point=point,
        state=state,
        time=nights[point.index].time,
        good=nights[first - 1].commit,
        bad=nights[last].commit,
        fixed_by=nights[mended.index].commit if mended and state is State.FIXED else None,
        reason=told.reason if told else "",
    )


def _is_same(left: str, right: str) -> bool:
    """Whether one is a prefix of the other, long enough to mean it."""
    return min(len(left), len(right)) >= SHORTEST and (left.startswith(right) or right.startswith(left))
