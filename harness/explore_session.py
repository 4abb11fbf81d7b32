"""What ``matrix`` and ``explore`` begin and end with: setting, kept scenarios, run directory, log."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.cases import find_root, load_cases
from harness.console import console_of
from harness.errors import UsageError
from harness.explore.campaign import Job, Log, Records, campaign
from harness.explore.farm import unordered
from harness.explore.generate import scenario
from harness.explore.shrink import Found, shrink
from harness.explore.words import Words
from harness.explore.workbench import Setting
from harness.lab import Lab
from harness.rundir import RunDir
from harness.scenario import Scenario


class Session:
    """What both verbs begin with: the setting, the fixtures, the run directory, the log."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.args = args
        self.console = console_of(args)
        self.root: Path = args.cases or find_root()
        self.setting = Setting(
            preset=args.preset,
            kernels=args.kernels,
            device=args.device,
            graphs=args.graphs == "on",
            layout=args.layout,
        )
        self.lab = Lab(self.setting.folder, self.root / "fixtures", args.seed)
        self.words = Words.of(self.lab)
        kept = ("seed", "preset", "kernels", "device", "graphs", "layout", "fault")
        run = {"name": name, **{key: getattr(args, key) for key in kept}}
        if args.resume:
            self.run_dir = RunDir.resume(args.resume)
            if differing := self.run_dir.differing(run):
                raise UsageError(
                    f"{args.resume}: is another run ({', '.join(differing)})",
                    hint="resume with the same arguments",
                )
        else:
            started = datetime.now().isoformat(timespec="seconds")
            self.run_dir = RunDir.create(
                args.reports or self.root / "reports", name, {**run, "started": started}
            )
        self.log = Log(self.run_dir.path / "records.jsonl")

    def job(self, variant: str, generated: range, **more: Any) -> Job:
        """A job of this session."""
        return Job(setting=self.setting, variant=variant, seed=self.args.seed, generated=generated, **more)

    @property
    def shelf(self) -> Path:
        """Where small failures are kept, to be replayed first."""
        return self.root / "fixtures" / "scenarios"

    def kept(self) -> list[Scenario]:
        """What is there, by file name; a scenario is called by its file."""
        return [replace(Scenario.read(path), name=path.stem) for path in sorted(self.shelf.glob("*.json"))]

    def run(self, jobs: Iterable[Job], what: str, total: int | None = None) -> Iterator[tuple[str, Records]]:
        """The records of all jobs as they come, with a progress bar; an interruption says how to go on."""
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with self.interruptible(), Progress(*columns, console=self.console, disable=self.args.json) as bar:
            task = bar.add_task(what, total=total)
            for key, records in campaign(jobs, self.log, self.args.workers, self.args.on, fresh=self._fresh):
                bar.advance(task)
                yield key, records

    def shrink(self, found: Sequence[Found]) -> Iterator[Found]:
        """Each of them as small as it gets."""
        if not found:
            return
        self.console.print(f"making {len(found)} scenarios small")
        with self.interruptible():
            yield from unordered(shrink, found, self.args.workers, self.args.on, self._fresh)

    @property
    def _fresh(self) -> bool:
        """Whether every task needs a process of its own: a fault may leave a GPU's context dead."""
        return self.setting.device == "cuda"

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Say how to go on after an interruption."""
        try:
            yield
        except KeyboardInterrupt:
            again = f"interrupted: the same command with --resume {self.run_dir.path} goes on from there"
            print(again, file=sys.stderr)
            raise

    def finish(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write the result into the run directory, too."""
        self.run_dir.run["result"] = result
        self.run_dir.save()
        return {**result, "run_dir": str(self.run_dir.path)}

    def shipped(self) -> dict[str, tuple[tuple[str, ...], Scenario]]:
        """Forced scenarios of case files, by name, with the variants that their cases name."""
        return {
            f"{case.ref}: {one.name}": (case.variants, replace(one, name=f"{case.ref}: {one.name}"))
            for case in load_cases(self.root)
            for one in case.scenarios(self.lab)
            if one.forced
        }

    def drawn(self, index: int) -> Scenario:
        """The generated scenario of this number."""
        return scenario(self.words, self.args.seed, index)
