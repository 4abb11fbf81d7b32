"""The kill matrix: which fault is found by which check, in which scenario, how soon, and under which name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.explore.workbench import Record
from harness.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A fault, and what was said beforehand of how it is found; ``counted`` is false for a variant of the engine that
    is no single fault."""

    name: str
    row: str = ""
    cause: str | None = None
    kind: str | None = None
    tensor: str | None = None
    layer: int | None = None
    counted: bool = True


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault and all that was tried on it."""

    declared: Declared
    records: Sequence[Record]

    @cached_property
    def kills(self) -> list[Record]:
        """The scenarios that found it."""
        return [record for record in self.records if record.killed and record.first]

    @cached_property
    def fastest(self) -> Record | None:
        """The kill with the fewest steps, and then tokens."""
        return min(self.kills, key=lambda record: (record.steps, record.tokens), default=None)

    @property
    def shown(self) -> Record | None:
        """The kill that the fault is told by: the scenario that is kept under its name, or else the fastest."""
        return next((kill for kill in self.kills if kill.scenario == self.declared.name), self.fastest)

    @property
    def acted(self) -> int:
        """Scenarios in which it did anything that the correct engine does not."""
        return sum(record.acted is not None for record in self.records)

    @property
    def diagnosed(self) -> bool:
        """Whether the kill it is told by calls it what was declared."""
        return self.shown is not None and self.names_it(self.shown)

    @property
    def located(self) -> bool:
        """Whether the kill it is told by finds it where that was declared."""
        first = self.shown and self.shown.first
        declared = self.declared
        return bool(
            first
            and first.kind == declared.kind
            and declared.tensor in (None, first.at.tensor)
            and declared.layer in (None, first.at.layer)
        )

    @property
    def at_once(self) -> bool:
        """Whether that kill finds it in the step in which it first acts; a counter acts at the very end."""
        shown = self.shown
        return bool(shown and shown.first and shown.first.at.step <= (shown.acted or 0))

    def names_it(self, kill: Record) -> bool:
        """Whether a kill calls it what was declared."""
        return kill.first is not None and kill.first.cause == self.declared.cause

    def checks(self) -> Counter[str]:
        """Kills by check that failed."""
        return Counter(check for kill in self.kills for check in kill.checks)


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """All faults, and the runs of the correct engine."""

    rows: Sequence[Row]
    clean: Sequence[Record]
    generated: int  # how many of the clean runs had a scenario that was drawn, each another

    @cached_property
    def twins(self) -> Mapping[str, str]:
        """Faults that did the same as an earlier one in every scenario that both were tried on, by name."""
        found: dict[str, str] = {}
        counted = [row for row in self.rows if row.declared.counted]
        for i, row in enumerate(counted):
            for earlier in counted[:i]:
                if earlier.declared.name not in found and _same(row, earlier):
                    found[row.declared.name] = earlier.declared.name
        return found

    @cached_property
    def faults(self) -> list[Row]:
        """Those that count, twins once."""
        return [row for row in self.rows if row.declared.counted and row.declared.name not in self.twins]

    @property
    def survivors(self) -> list[str]:
        """Faults that nothing found."""
        return [row.declared.name for row in self.faults if not row.kills]

    @property
    def false_alarms(self) -> list[Record]:
        """Runs of the correct engine that were called wrong."""
        return [record for record in self.clean if record.killed]

    @property
    def undecided(self) -> list[Record]:
        """Runs of the correct engine that nothing could be said of."""
        return [
            record for record in self.clean if record.verdict in (Verdict.INCONCLUSIVE, Verdict.UNSUPPORTED)
        ]

    @property
    def confusion(self) -> Counter[tuple[str, str]]:
        """(declared, found) of every kill."""
        return Counter(
            (row.declared.cause or "none", (kill.first and kill.first.cause) or "none")
            for row in self.faults
            for kill in row.kills
        )

    def summary(self) -> dict[str, object]:
        """For the JSON line; red on a survivor or a false alarm."""
        return {
            "faults": len(self.faults),
            "killed": len(self.faults) - len(self.survivors),
            "survivors": self.survivors,
            "false_alarms": len(self.false_alarms),
            "clean_runs": self.generated,
            "undecided": len(self.undecided),
            "diagnosed": sum(row.diagnosed for row in self.faults),
            "kills": sum(len(row.kills) for row in self.faults),
            "kills_diagnosed": sum(row.names_it(kill) for row in self.faults for kill in row.kills),
            "coordinates": sum(row.located for row in self.faults),
            "at_once": sum(row.at_once for row in self.faults),
            "twins": dict(self.twins),
            "exit": 1 if self.survivors or self.false_alarms else 0,
        }


def _same(one: Row, other: Row) -> bool:
    """Whether two faults did the same in every scenario that both were tried on, and did anything at all."""
    mine = {record.scenario: record for record in one.records}
    common = [(mine[record.scenario], record) for record in other.records if record.scenario in mine]
    acted = any(record.acted is not None for record, _ in common)
    return acted and all(record.digest == twin.digest for record, twin in common)
