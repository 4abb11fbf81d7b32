"""A benchmark under way: one cell after the other, measured, judged, written down and shown."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.text import Text

from harness.bench.cells import Cell, measure
from harness.bench.data.ask import Ask
from harness.bench.data.vocabulary import Vocabulary
from harness.bench.equality import greedy_equality
from harness.bench.load.health import Bounds
from harness.bench.load.run import LoadResult
from harness.bench.measured import Measured, judged, kept
from harness.bench.plan import Plan
from harness.bench.served import Served
from harness.bench.ties import partings
from harness.bench_asked import fingerprint, key_of, opened
from harness.console import console_of
from harness.models.tiny import default_cache, ensure
from harness.rundir import RunDir


@dataclass(slots=True, kw_only=True)
class Session:
    """``asks``: by whether they are guided; ``cells``: measured so far."""

    args: argparse.Namespace
    plan: Plan
    run_dir: RunDir
    console: Console
    key: str | None
    tokenizer: str
    asks: dict[bool, list[Ask]]
    cells: list[Measured] = field(default_factory=list)

    @classmethod
    def begun(cls, args: argparse.Namespace) -> Self:
        """A new one, or that of ``--resume``; UsageError before anything is started."""
        console, key = console_of(args), key_of(args)
        run_dir, plan, args = opened(args)
        folder = args.tokenizer or ensure(args.preset, cache=default_cache(os.environ))
        vocabulary = Vocabulary(folder)
        return cls(
            args=args,
            plan=plan,
            run_dir=run_dir,
            console=console,
            key=key,
            tokenizer=folder.name,
            asks={guided: plan.asks(vocabulary, guided=guided) for guided in (False, True)},
        )

    def say(self, line: object) -> None:
        """A line that is neither wrapped nor coloured."""
        self.console.print(line, highlight=False, soft_wrap=True)

    def folder(self, cell: Cell) -> Path:
        """Where the records of a cell lie."""
        return self.run_dir.path / "records" / cell.name

    def measure(
        self,
        cell: Cell,
        served: Served,
        *,
        alive: bool = True,
        plain: Measured | None = None,
        repeats: bool = True,
    ) -> tuple[Measured, dict[str, Any]]:
        """Measure a cell (or what is left of it) -> (judged, its result, which is written).

        ``alive``: whether the server is there; ``plain``: the cell without speculation whose answers these must be;
        ``repeats``: a cell in which the client was the limit is measured again, once.
        """
        found = self.judge(cell, served)
        if repeats and alive and found.load.health.is_client_bound:
            found = self._again(cell, served, found)
        if because := self.run_dir.run.get("repeated", {}).get(cell.name):
            found = found.noting([f"measured twice, for the first time the client was the limit: {because}"])
        if plain is not None:
            found = self._beside(found, plain, served if alive else None)
        result = kept(
            found,
            self.plan,
            self.run_dir.path,
            model=served.model,
            tokenizer=self.tokenizer,
            fingerprint=fingerprint(self.args, self.plan, self.asks[cell.guided], cell, served.model),
            revision=self.run_dir.run.get("revision"),
            time=self._began(cell),
            night=self.run_dir.run.get("time"),
        )
        self.cells.append(found)
        return found, result

    def judge(self, cell: Cell, served: Served) -> Measured:
        """The same, and nothing is written but what was missing of its records."""
        return judged(cell, self.asks[cell.guided], self.ask(cell, served), self.folder(cell))

    def ask(self, cell: Cell, served: Served, until: int | None = None) -> LoadResult:
        """Ask what is missing of a cell's requests, or of the first so many of them."""
        lag = self.args.loop_lag
        self._began(cell)
        with self.console.status(Text(f"{cell.title}: warm-up")) as status:
            return measure(
                self.plan,
                self.asks[cell.guided],
                served,
                self.folder(cell),
                until=until,
                progress=lambda done, whole: status.update(Text(f"{cell.title}: {done} of {whole}")),
                bounds=None if lag is None else Bounds(loop_lag_p99=lag / 1e3),
            )

    def _again(self, cell: Cell, served: Served, first: Measured) -> Measured:
        """What came the second time; the first one's records stay beside it. Wrong answers are final."""
        repeated = self.run_dir.run.setdefault("repeated", {})
        if first.summary.trust.reasons or cell.name in repeated:
            return first
        because = "; ".join(first.load.health.because)
        self.say(f"{cell.title}: client-bound, so once more: {because}")
        folder = self.folder(cell)
        folder.rename(folder.with_name(f"{cell.name}-client-bound"))
        repeated[cell.name] = because
        self.run_dir.save()
        return self.judge(cell, served)

    def _began(self, cell: Cell) -> datetime:
        """When a cell was first come to: a result that is written again stays the same run."""
        told = self.run_dir.run.setdefault("began", {})
        if cell.name not in told:
            told[cell.name] = datetime.now().isoformat(timespec="seconds")
            self.run_dir.save()
        return datetime.fromisoformat(told[cell.name])

    def _beside(self, found: Measured, plain: Measured, served: Served | None) -> Measured:
        """Answers compared; where they part, a server that is there is asked how near the tie was, once."""
        equality = greedy_equality(plain.records, found.records)
        told = self.run_dir.run.setdefault("partings", {})
        if served is not None or found.cell.name not in told:
            parted = partings(equality, self.asks[found.cell.guided], plain.records, found.records, served)
            told[found.cell.name] = [str(one) for one in parted]
            self.run_dir.save()
        return found.beside(equality).noting(told[found.cell.name])
