"""One process's model, oracle and gauges: a scenario under a variant becomes a small plain record.

What travels between processes is the setting and the records; a process makes its workbench once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

from harness.cases import REFERENCE_VARIANT
from harness.explore.digest import Digests, combined, digests, first_difference
from harness.explore.words import Words
from harness.lab import Lab, Plan
from harness.models.tiny import default_cache, ensure
from harness.run import Judge, Judgement
from harness.scenario import Scenario
from harness.targets.registry import EMBEDDED, TargetOptions, open_target
from harness.trace import Trace
from harness.verdict import Divergence, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a workbench is made from, on any machine: a tiny model is built where it is missing."""

    preset: str = "narrow"
    model: str | None = None  # a checkpoint folder, instead of a tiny model
    kernels: Literal["auto", "triton", "naive"] = "auto"
    device: str = "cpu"
    graphs: bool = True
    layout: Literal["slots", "replay"] = "slots"

    @property
    def folder(self) -> Path:
        """The model's."""
        return Path(self.model) if self.model else ensure(self.preset, cache=default_cache(os.environ))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One scenario under one variant. ``acted`` is the first step that is not, bit for bit, that of the correct
    engine; ``first`` the divergence that was found first, and ``checks`` the first step in which each check failed."""

    scenario: str
    variant: str
    verdict: Verdict
    steps: int
    tokens: int  # computed, padding not counted
    digest: str  # of the whole trace
    acted: int | None = None
    first: Divergence | None = None
    checks: dict[str, int] = field(default_factory=dict)
    observed: tuple[str, ...] = ()

    @property
    def killed(self) -> bool:
        """Whether the variant was found to be wrong."""
        return self.verdict is Verdict.FAIL

    @property
    def mistake(self) -> tuple[str | None, ...]:
        """What the first divergence is: two failures with the same are taken to be one mistake."""
        first = self.first
        return (first.kind, first.cause, first.at.tensor, str(first.at.layer)) if first else ()


class Workbench:
    """Runs and judges; the correct engine's digests are kept, since every fault is held against them."""

    def __init__(self, setting: Setting) -> None:
        folder = setting.folder
        options = TargetOptions(
            folder=folder,
            kernels=setting.kernels,
            device=setting.device,
            graphs=setting.graphs,
            layout=setting.layout,
        )
        self._open = open_target(EMBEDDED, options)
        self._judge = Judge(folder)
        self._correct: dict[str, Digests] = {}
        lab = Lab(folder, Path())
        self.words = Words.of(lab)
        # Noise and signal belong to the model, not to a scenario, so they are measured once.
        plans = {f"r{i}": Plan(prompt=6 + 3 * i, turns=lab.chain(6, k=3)) for i in range(4)}
        gauge = lab.forced("gauge", k=3, plans=plans)
        target = self._open(REFERENCE_VARIANT)
        self._gauges = self._judge.calibrate(target, gauge, target.run(gauge))

    def run(self, scenario: Scenario, variant: str) -> Trace:
        """What the variant does."""
        return self._open(variant).run(scenario)

    def judge(self, scenario: Scenario, trace: Trace) -> Judgement:
        """Every check on a trace."""
        judgement = self._judge.judge(scenario, trace, self._gauges)
        self._judge.forget()
        return judgement

    def examine(self, scenario: Scenario, variant: str) -> Record:
        """Run and judge. A variant that did what the correct engine does has nothing to be judged for."""
        known = (
            None if variant == REFERENCE_VARIANT else self._known(scenario)
        )  # a fault may leave a GPU on which nothing runs
        trace = self.run(scenario, variant)
        seen = digests(trace)
        record = Record(
            scenario=scenario.name,
            variant=variant,
            verdict=Verdict.PASS,
            steps=len(trace.steps),
            tokens=sum(row.tokens for step in trace.steps for row in step.rows),
            digest=combined(seen),
        )
        if known is None:
            self._correct[scenario.to_json()] = seen
        else:
            record = replace(record, acted=first_difference(seen, known))
            if record.acted is None:
                return record
        judgement = self.judge(scenario, trace)
        failed = [e for e in judgement.evidence if e.verdict is Verdict.FAIL and e.divergences]
        return replace(
            record,
            verdict=judgement.verdict,
            first=judgement.first,
            checks={e.check: min(divergence.at.step for divergence in e.divergences) for e in failed},
            observed=tuple(sorted(name for name, count in judgement.observed.items() if count)),
        )

    def _known(self, scenario: Scenario) -> Digests:
        key = scenario.to_json()
        if key not in self._correct:
            self._correct[key] = digests(self.run(scenario, REFERENCE_VARIANT))
        return self._correct[key]


@cache
def workbench(setting: Setting) -> Workbench:
    """This process's."""
    return Workbench(setting)
