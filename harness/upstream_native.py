"""The same table on a GPU, where kernels are compiled, held cell by cell against the CPU's, which interprets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.codec import decode
from harness.rundir import RunDir
from harness.suspects import Cell
from harness.upstream_table import Key, Table, escaped, short
from harness.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One cell twice."""

    suspect: str
    release: str
    scenario: str
    cpu: Cell
    gpu: Cell

    @property
    def agrees(self) -> bool:
        """The same verdict, for the same kinds of findings."""
        return (self.cpu.verdict, self.cpu.symptoms) == (self.gpu.verdict, self.gpu.symptoms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """A run of the table on a GPU, as its run directory holds it."""

    command: str
    made_with: str
    cells: Mapping[Key, Mapping[str, Cell]]

    @staticmethod
    def of(run_dir: RunDir) -> Native:
        """What a run left; small batches are metadata alone and never go to a GPU."""
        cells = {
            (suspect, release): {
                name: decode(Cell, cell, f"{release} {name}") for name, cell in found.items()
            }
            for suspect, releases in run_dir.run.get("cells", {}).items()
            for release, found in releases.items()
            if not found.keys() & {"search", "reason"}
        }
        return Native(
            command=run_dir.run.get("command", "specharness upstream-table"),
            made_with=run_dir.run.get("made_with", "unknown"),
            cells=cells,
        )

    def pairs(self, table: Table) -> Iterator[Pair]:
        """Cells that both judged."""
        for (suspect, release), found in self.cells.items():
            known = table.cells.get((suspect, release), {})
            for name, gpu in found.items():
                if name in known:
                    yield Pair(suspect=suspect, release=release, scenario=name, cpu=known[name], gpu=gpu)

    def compared(self, table: Table, command: str) -> str:
        """The section about it: how many verdicts agree, which do not, and what the GPU judged alone.

        ``command`` made ``table``, on a CPU.
        """
        pairs = list(self.pairs(table))
        agreed = sum(pair.agrees for pair in pairs)
        lines = ["## Natively on a GPU", "", f"Made by `{self.command}` ({self.made_with}).", ""]
        lines += [
            f"**{agreed} of {len(pairs)} verdicts agree**, kinds of findings included, with those of a CPU:",
            f"`{command}`.",
            "",
            "| suspect | release | cells | PASS | FAIL | undecided | agree |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for suspect, release in self.cells:
            mine = [pair for pair in pairs if (pair.suspect, pair.release) == (suspect, release)]
            verdicts = [pair.gpu.verdict for pair in mine]
            passed, failed = (verdicts.count(verdict) for verdict in (Verdict.PASS, Verdict.FAIL))
            lines.append(
                f"| {suspect} | {release} | {len(mine)} | {passed} | {failed} | {len(mine) - passed - failed}"
                f" | {sum(pair.agrees for pair in mine)} |"
            )
        for pair in (pair for pair in pairs if not pair.agrees):
            lines += ["", f"{pair.suspect}, {pair.release}, {pair.scenario}: the verdicts differ.", ""]
            lines += [
                f"- {where}: {short(cell)}: {escaped(cell.summary)}"
                for where, cell in (("CPU", pair.cpu), ("GPU", pair.gpu))
            ]
        return "\n".join([*lines, *self._alone(table)]) + "\n"

    def _alone(self, table: Table) -> list[str]:
        alone = [
            f"| {suspect} | {release} | {name} | {short(cell)} | {escaped(cell.summary)} |"
            for (suspect, release), found in self.cells.items()
            for name, cell in found.items()
            if name not in table.cells.get((suspect, release), {})
        ]
        if not alone:
            return []
        head = [
            "| suspect | release | scenario | verdict | first finding |",
            "| --- | --- | --- | --- | --- |",
        ]
        return ["", f"{len(alone)} more cells were judged on the GPU alone.", "", *head, *alone]
