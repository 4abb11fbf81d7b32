"""Suspects out of a released engine: each judges a release on scenarios, one cell per scenario.

A suspect is anything with a name and ``judge``; the table and the bisection know no more of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.check.metadata import Finding, batches, judge
from harness.check.small_batches import small_batches
from harness.errors import HarnessError, Unsupported
from harness.packing import Batch
from harness.run import Judge
from harness.scenario import Scenario
from harness.targets.protocols import EngineTarget
from harness.targets.upstream.metadata import Answer, MetadataBuilder
from harness.targets.upstream.metadata_runner import Feed
from harness.targets.upstream.wheel import release_files
from harness.trace import Trace
from harness.verdict import Verdict

Tell = Callable[[str], None]
VLLM = "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A release on a scenario, as one suspect shows it.

    ``symptoms`` are the kinds of what was found, so that releases which both fail can still be told apart.
    """

    verdict: Verdict
    summary: str
    symptoms: tuple[str, ...] = ()


class Suspect(Protocol):
    """One part of a released engine."""

    @property
    def name(self) -> str:
        """How tables call it."""
        ...

    @property
    def left_out(self) -> Callable[[Scenario], str | None]:
        """Why a scenario is not for this suspect; ``None`` where it is."""
        ...

    def judge(self, release: str, scenarios: Sequence[Scenario]) -> Mapping[str, Cell]:
        """A cell for every scenario, by its name. Never raises for what the release cannot do: UNSUPPORTED says why."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What all small batches show of a release: how many, and the smallest that shows each kind of finding.

    Those with fewer rows than the largest are tried in other ways, too: ``fewer`` of them.
    """

    tried: int
    fewer: int
    smallest: dict[str, str]  # kind -> batch and finding, in words
    counts: dict[str, int]  # kind -> batches that show it
    other: dict[str, int]  # the same, with the other value for rows without drafts
    zero_draft: int  # the release's own value
    sources: dict[str, str]  # what the runner decides -> the line that says so
    retyped: tuple[str, ...]
    second: dict[str, str] | None = (
        None  # kind -> smallest batch as model runner V2 hands it over; None: no such runner
    )
    second_sources: dict[str, str] = field(default_factory=dict)


class MetadataSuspect:
    """The metadata builder. Its steps come from the correct engine's trace of each scenario."""

    name = "metadata builder"

    @staticmethod
    def left_out(scenario: Scenario) -> str | None:
        """It takes every scenario."""
        return None

    def __init__(self, cache: Path, run: Callable[[Scenario], Trace], tell: Tell) -> None:
        self._cache = cache
        self._run = run
        self._tell = tell
        self._steps: dict[str, list[Batch]] = {}

    def judge(self, release: str, scenarios: Sequence[Scenario]) -> dict[str, Cell]:
        """Every step of every scenario, as the release's runner hands it over."""
        try:
            builder = self._open(release)
            steps = [self._batches(scenario) for scenario in scenarios]
            flat = [batch for batches_of_one in steps for batch in batches_of_one]
            own = _findings(builder, flat, builder.own)
            other = _findings(builder, flat, builder.other)
        except HarnessError as error:
            return {scenario.name: _undecided(error) for scenario in scenarios}
        cells = {}
        for scenario, mine in zip(scenarios, steps, strict=True):
            theirs, own = own[: len(mine)], own[len(mine) :]
            tried, other = other[: len(mine)], other[len(mine) :]
            cells[scenario.name] = _cell(theirs, tried, builder)
        return cells

    def search(self, release: str) -> Search:
        """All small batches; Unsupported or TargetError as the builder raises them."""
        builder = self._open(release)
        tried = list(small_batches())
        fewer = [batch for batch in tried if len(batch.rows) < len(tried[-1].rows)]
        answer = builder.pack(tried, builder.own)
        smallest, counts = _tally(answer)
        second, second_sources = builder.second or (None, {})
        return Search(
            tried=len(tried),
            fewer=len(fewer),
            smallest=smallest,
            counts=counts,
            other=_tally(builder.pack(fewer, builder.other))[1],
            zero_draft=builder.own.zero_draft,
            sources=builder.facts.sources,
            retyped=answer.retyped,
            second=None if second is None else _tally(builder.pack(fewer, second))[0],
            second_sources=second_sources,
        )

    def _open(self, release: str) -> MetadataBuilder:
        return MetadataBuilder(release_files(VLLM, release, self._cache, self._tell))

    def _batches(self, scenario: Scenario) -> list[Batch]:
        if scenario.name not in self._steps:
            self._tell(f"steps of {scenario.name!r}, from the correct engine")
            self._steps[scenario.name] = list(batches(scenario, self._run(scenario)))
        return self._steps[scenario.name]


def _tally(answer: Answer) -> tuple[dict[str, str], dict[str, int]]:
    """The smallest batch that shows each kind of finding, and how many show it."""
    smallest: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for batch, packed in answer:
        found = judge(batch, packed)
        for finding in found:
            smallest.setdefault(
                finding.kind, f"`{batch}`: {finding.request} {finding.message}".replace(":  ", ": ")
            )
        counts.update({finding.kind for finding in found})
    return smallest, dict(counts)


class EngineSuspect:
    """Code of a release inside the correct engine, judged by its states: any part that a target can swap in.

    ``open_release`` gives the target of a release; Unsupported and TargetError are its answers, too. ``left_out`` says
    why a scenario is not for it. Noise and signal are measured on ``reference``, the correct engine.
    """

    def __init__(
        self,
        name: str,
        open_release: Callable[[str], EngineTarget],
        left_out: Callable[[Scenario], str | None],
        reference: EngineTarget,
        judge: Judge,
        tell: Tell,
    ) -> None:
        self.name = name
        self.left_out = left_out
        self._open_release = open_release
        self._reference = reference
        self._judge = judge
        self._tell = tell

    def judge(self, release: str, scenarios: Sequence[Scenario]) -> dict[str, Cell]:
        """Every scenario, on one target."""
        try:
            target = self._open_release(release)
        except HarnessError as error:
            return {scenario.name: _undecided(error) for scenario in scenarios}
        return {
            scenario.name: self._cell(target, scenario, f"{release}  {self.name}") for scenario in scenarios
        }

    def _cell(self, target: EngineTarget, scenario: Scenario, where: str) -> Cell:
        self._tell(f"{where}  {scenario.name}")
        try:
            trace = target.run(scenario)
        except HarnessError as error:
            return _undecided(error)
        gauges = self._judge.calibrate(self._reference, scenario, trace)
        judgement = self._judge.judge(scenario, trace, gauges)
        self._judge.forget()
        first = judgement.first
        if first is None:
            said = "; ".join(e.summary for e in judgement.evidence if e.verdict is judgement.verdict)
            return Cell(verdict=judgement.verdict, summary=said)
        summary = f"{first.at}: {first.diagnosis or first.message}"
        return Cell(verdict=judgement.verdict, summary=summary, symptoms=(first.kind,))


def _undecided(error: HarnessError) -> Cell:
    """A release that cannot do it is UNSUPPORTED; one that could not be asked decides nothing."""
    verdict = Verdict.UNSUPPORTED if isinstance(error, Unsupported) else Verdict.INCONCLUSIVE
    return Cell(verdict=verdict, summary=str(error).splitlines()[0])


def _findings(builder: MetadataBuilder, steps: Sequence[Batch], feed: Feed) -> list[list[Finding]]:
    return [judge(batch, packed) for batch, packed in builder.pack(steps, feed)]


def _cell(
    own: Sequence[Sequence[Finding]], other: Sequence[Sequence[Finding]], builder: MetadataBuilder
) -> Cell:
    """The verdict with the release's own value for rows without drafts; the other value's where it differs."""
    found = [finding for step in own for finding in step]
    elsewhere = {finding.kind for step in other for finding in step}
    kinds = tuple(dict.fromkeys(finding.kind for finding in found))
    verdict = Verdict.FAIL if found else Verdict.PASS if own else Verdict.INCONCLUSIVE
    wrong = sum(bool(step) for step in own)
    summary = f"{wrong} of {len(own)} steps; {found[0]}" if found else f"{len(own)} steps"
    if set(kinds) != elsewhere:
        shown = ", ".join(sorted(elsewhere)) or "PASS"
        summary += f" (rows without drafts arrive as {builder.own.zero_draft}; as {builder.other.zero_draft}: {shown})"
    return Cell(verdict=verdict, summary=summary, symptoms=kinds)
