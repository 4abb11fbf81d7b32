"""Failures that are known of a target: not red while they stay as they are, red once they are gone or change.

[[expected]]
scenario = "d: trimmed to zero"         # as the case calls it
variant = "vllm 0.11.0"                 # column of the table; without it, any
check = "state"                         # that fails first
cause = "lost accepted tokens"          # as it is diagnosed; without it, any
issue = "https://github.com/vllm-project/vllm/issues/39273"
expires = 2027-03-01                    # from then on it is red again, unless somebody looks
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path

from harness.errors import UsageError
from harness.run import Judgement
from harness.verdict import Verdict, worst

Cells = Mapping[tuple[str, str], Judgement]
"""Judgements by scenario and variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One entry of the file."""

    scenario: str
    check: str
    issue: str
    expires: date
    cause: str | None = None
    variant: str | None = None

    def covers(self, scenario: str, variant: str) -> bool:
        """Whether it speaks of this cell."""
        return self.scenario == scenario and self.variant in (None, variant)

    def objection(self, judgement: Judgement, today: date) -> str | None:
        """Why the cell is red in spite of the entry; ``None`` if all is as expected."""
        if judgement.verdict is not Verdict.FAIL:
            return f"expected failure passes now ({judgement.verdict.value}): remove the entry ({self.issue})"
        first = judgement.first
        failed = {e.check for e in judgement.evidence if e.verdict is Verdict.FAIL}
        cause = first.cause if first else None
        if self.check not in failed or self.cause not in (None, cause):
            seen = f"{', '.join(sorted(failed))} ({cause})"
            return (
                f"fails otherwise than expected: {seen} instead of {self.check} ({self.cause}; {self.issue})"
            )
        if today >= self.expires:
            return f"the entry expired on {self.expires}: is {self.issue} still open?"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """A run held against the file: what is known, what is red, and what is left of the verdicts."""

    known: tuple[str, ...]
    red: tuple[str, ...]
    rest: tuple[Verdict, ...]  # of the cells that no entry covers

    @property
    def exit_code(self) -> int:
        """1 where anything is red; otherwise that of the cells that no entry covers."""
        if self.red or Verdict.FAIL in self.rest:
            return 1
        return worst(self.rest).exit_code if self.rest else 0


def read_expected(path: Path) -> tuple[Expected, ...]:
    """The entries of a file; UsageError names what is wrong in it."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    entries = data.get("expected")
    if set(data) - {"expected"} or not isinstance(entries, list):
        raise UsageError(f"{path}: saw {', '.join(data) or 'nothing'}, expected [[expected]] entries")
    return tuple(_entry(entry, f"{path}: entry {i + 1}") for i, entry in enumerate(entries))


def settle(entries: Sequence[Expected], cells: Cells, today: date) -> Settlement:
    """Hold a run against the entries. An entry whose scenario did not run says nothing."""
    known, red, rest = [], [], []
    for (scenario, variant), judgement in cells.items():
        entry = next((entry for entry in entries if entry.covers(scenario, variant)), None)
        if entry is None:
            rest.append(judgement.verdict)
        elif objection := entry.objection(judgement, today):
            red.append(f"{scenario!r} on {variant}: {objection}")
        else:
            known.append(f"{scenario!r} on {variant}: known, {entry.issue}")
    return Settlement(known=tuple(known), red=tuple(red), rest=tuple(rest))


def _entry(entry: object, where: str) -> Expected:
    kinds: dict[str, type] = {field.name: str for field in fields(Expected)} | {"expires": date}
    needed = {"scenario", "check", "issue", "expires"}
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: saw {entry!r}, expected a table")
    wrong = [name for name, value in entry.items() if type(value) is not kinds.get(name)]
    missing = sorted(needed - set(entry))
    if wrong or missing:
        raise UsageError(
            f"{where}: {_words('cannot use', wrong)}{_words('lacks', missing)}",
            hint=f"an entry has {', '.join(sorted(needed))} and perhaps cause, variant; expires is a date",
        )
    return Expected(**entry)


def _words(what: str, names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"{what} {listed}; " if listed else ""
