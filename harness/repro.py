"""``make repro ISSUE=N``: every scenario of a case under every variant, and what that proves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from harness.cases import REFERENCE_VARIANT as REFERENCE_VARIANT
from harness.check.gauge import Gauge, Gauges
from harness.codec import decode, encode
from harness.run import Judge, Judgement
from harness.rundir import RunDir
from harness.scenario import Scenario
from harness.targets.protocols import EngineTarget
from harness.trace import Trace
from harness.verdict import Evidence, Verdict, worst

Progress = Callable[[str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One scenario: its gauges and a judgement per variant."""

    scenario: Scenario
    gauges: Gauges
    judgements: dict[str, Judgement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """All results of a case, and the sentences they add up to."""

    results: tuple[Result, ...]

    @property
    def reproduced(self) -> bool | None:
        """Every variant that ran failed as documented and passed where it must; ``None``: nothing is documented."""
        known = [
            j.documented
            for result in self.results
            for j in result.judgements.values()
            if j.documented is not None
        ]
        passing = [
            result.judgements[name].verdict.exit_code == 0
            for result in self.results
            for name in result.scenario.passes
            if name in result.judgements
        ]
        return all(known) and all(passing) if known else None

    @property
    def has_reference(self) -> bool:
        """Whether the variant that must pass everything was among them."""
        return any(REFERENCE_VARIANT in result.judgements for result in self.results)

    @property
    def fixed(self) -> bool:
        """The reference variant passed everything."""
        mine = [j.verdict for result in self.results if (j := result.judgements.get(REFERENCE_VARIANT))]
        return bool(mine) and all(verdict.exit_code == 0 for verdict in mine)

    @property
    def exit_code(self) -> int:
        """0: fixed, and all that is documented was reproduced; 125: something decided nothing; 1: no proof."""
        if self.fixed and self.reproduced is not False:
            return 0
        mine = [j.verdict for result in self.results if (j := result.judgements.get(REFERENCE_VARIANT))]
        undecided = not mine or worst(mine) in (Verdict.INCONCLUSIVE, Verdict.UNSUPPORTED)
        return 125 if undecided else 1

    @property
    def gauge(self) -> Gauge:
        """The state gauge that decides least well of all scenarios."""
        return min((result.gauges.state for result in self.results), key=lambda gauge: gauge.ratio)

    def verdict(self, variant: str) -> Verdict:
        """A variant's verdict over all scenarios."""
        return worst(r.judgements[variant].verdict for r in self.results if variant in r.judgements)

    @property
    def variants(self) -> list[str]:
        """The variants that ran, the reference first."""
        names = dict.fromkeys(name for result in self.results for name in result.judgements)
        return sorted(names, key=lambda name: name != REFERENCE_VARIANT)

    @property
    def unexpected(self) -> list[str]:
        """What is not as it must be: the reference does not pass, or a documented failure is not what was seen."""
        lines = []
        for result in self.results:
            for name, judgement in result.judgements.items():
                must_pass = name == REFERENCE_VARIANT or name in result.scenario.passes
                if must_pass and judgement.verdict.exit_code:
                    lines.append(
                        f"{result.scenario.name!r} on {name}: must pass, is {judgement.verdict.value}"
                    )
                elif judgement.documented is False:
                    known = result.scenario.documented[name]
                    seen = judgement.first.told if judgement.first else judgement.verdict.value
                    lines.append(
                        f"{result.scenario.name!r} on {name}: documented is {known}, seen was {seen}"
                    )
        return lines

    def first_failures(self) -> Iterator[tuple[str, Result, Judgement]]:
        """For each variant that failed, its first failing scenario; of one variant alone, the first of each kind."""
        for name in self.variants:
            kinds = set()
            for result in self.results:
                judgement = result.judgements.get(name)
                if judgement and judgement.verdict is Verdict.FAIL and judgement.first:
                    alone, odd = len(self.variants) == 1, judgement.documented is False
                    kind = (judgement.first.kind if alone else None, odd)
                    if kind not in kinds:
                        yield name, result, judgement
                    kinds.add(kind)


def reproduce(
    scenarios: Iterable[Scenario],
    variants: Iterable[str],
    open_variant: Callable[[str], EngineTarget],
    judge: Judge,
    run_dir: RunDir,
    progress: Progress = lambda scenario, variant: None,
) -> Reproduction:
    """Run and judge everything; each cell is on disk as soon as it is known, and is not run again on resume."""
    order = sorted(variants, key=lambda name: name != REFERENCE_VARIANT)
    results = []
    for scenario in scenarios:
        results.append(_scenario(scenario, order, open_variant, judge, run_dir, progress))
        judge.forget()
    return Reproduction(results=tuple(results))


def _scenario(
    scenario: Scenario,
    variants: list[str],
    open_variant: Callable[[str], EngineTarget],
    judge: Judge,
    run_dir: RunDir,
    progress: Progress,
) -> Result:
    """The reference variant runs first: noise and signal are measured on its tokens."""
    run_dir.write_scenario(scenario)
    saved = run_dir.run.setdefault("gauges", {}).get(scenario.name)
    gauges = decode(Gauges, saved, scenario.name) if saved else None
    reference: Trace | None = None
    judgements = {}
    for name in variants:
        if gauges and (cell := run_dir.cell(scenario.name, name)):
            judgements[name] = decode(Judgement, cell, f"{scenario.name}, {name}")
            continue
        progress(scenario.name, name)
        target = open_variant(name)
        trace = target.run(scenario)
        if gauges is None:
            gauges = judge.calibrate(target, scenario, trace)
            run_dir.run["gauges"][scenario.name] = encode(gauges)
        if name == REFERENCE_VARIANT:
            reference = trace
        judgement = judge.judge(scenario, trace, gauges, scenario.documented.get(name))
        if reference is None and judgement.hit and not scenario.forced and REFERENCE_VARIANT in judgements:
            reference = open_variant(REFERENCE_VARIANT).run(scenario)  # its cell was recorded before a resume
        judgement = _with_power(judgement, trace, reference)
        judgements[name] = judgement
        if judgement.verdict is Verdict.FAIL and name not in run_dir.run.setdefault("traces", {}):
            path = run_dir.write_trace(name, trace)  # the first one only: they are large
            run_dir.run["traces"][name] = path.name
        run_dir.record(scenario.name, name, encode(judgement))
    assert gauges is not None
    return Result(scenario=scenario, gauges=gauges, judgements=judgements)


def _with_power(judgement: Judgement, trace: Trace, reference: Trace | None) -> Judgement:
    """Say how many requests with a wrong state also show a wrong token: under half, tokens are no evidence here."""
    compared = any(e.compared for e in judgement.evidence if e.check == "tokens")
    if reference is None or reference is trace or not judgement.hit or not compared or trace.crash:
        return judgement
    changed = [
        name for name in judgement.hit if trace.completions[name].tokens != reference.completions[name].tokens
    ]
    share = f"{len(changed)} of {len(judgement.hit)} requests with a wrong state changed a token"
    verdict = (
        "tokens are evidence here" if 2 * len(changed) >= len(judgement.hit) else "tokens prove nothing here"
    )

    def powered(evidence: Evidence) -> Evidence:
        return replace(evidence, power=f"{share}: {verdict}") if evidence.check == "tokens" else evidence

    return replace(judgement, evidence=tuple(powered(evidence) for evidence in judgement.evidence))
