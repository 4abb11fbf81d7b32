"""Scenario x target -> trace -> verdict. Running and judging are separate: a trace can be judged again later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.check.counters import check_counters
from harness.check.diagnose import name_it
from harness.check.drafts import check_drafts
from harness.check.finish import check_finish
from harness.check.gauge import Gauges, measure, unmeasured
from harness.check.grammar import GrammarBook, check_foreign_grammar, check_grammar
from harness.check.ledger import check_ledger, last_lines
from harness.check.memory import check_memory
from harness.check.observe import demanded, missing, observe
from harness.check.padding import show_padding
from harness.check.plain import leaves_the_oracle, plain_pair, trusted
from harness.check.prefix import check_prefix
from harness.check.recompile import check_recompile
from harness.check.reference import Reference, ReferenceBook
from harness.check.schedule import check_schedule
from harness.check.state import judge_tensors
from harness.check.tokens import check_tokens
from harness.oracle.model import Oracle
from harness.scenario import Documented, Scenario
from harness.targets.protocols import EngineTarget
from harness.trace import Coordinate, Trace
from harness.verdict import Divergence, Evidence, Verdict, worst

_KIND_RANK = {
    "crash": 0,
    "state": 1,
    "memory": 2,
    "grammar": 3,
    "ledger": 4,
    "logits": 5,
    "drafts": 6,
    "tokens": 7,
    "finish": 8,
    "recompile": 9,
    "plain": 10,
}
PIECE = 7
"""Tokens a step when a history is fed in pieces of a prompt; prime, so that its edges meet few others."""
GAUGED_REQUESTS = 4
"""Histories that noise and signal are measured on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One scenario on one target: the verdict and what it rests on."""

    scenario: str
    target: str
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    observed: dict[str, int]
    first: Divergence | None = None
    ledger: tuple[str, ...] = ()
    documented: bool | None = None  # whether it failed as documented; None where nothing is documented
    hit: tuple[str, ...] = ()  # requests whose state diverged


class Judge:
    """The oracle of one model folder, with the gauges of one target kind."""

    def __init__(self, folder: Path, oracle: Oracle | None = None) -> None:
        self._book = ReferenceBook(oracle or Oracle.load(folder))
        self._grammars = GrammarBook(folder)

    def calibrate(self, target: EngineTarget, scenario: Scenario, trace: Trace) -> Gauges:
        """Noise of the target and signal of the least fault, on the tokens of a trace of this scenario."""
        reference = Reference(self._book, scenario, trace)
        histories = {name: reference.known(tokens) for name, tokens in reference.histories.items()}
        answered = [r for r in scenario.requests if len(histories[r.id]) > len(r.prompt)]
        if not answered:
            return unmeasured(self._book.oracle)
        requests = tuple(answered[:GAUGED_REQUESTS])
        pair = plain_pair(_only(scenario, requests), histories, PIECE)
        first, second = (target.run(plain) for plain in pair)
        runs = [
            (run, Reference(self._book, plain, run)) for plain, run in zip(pair, (first, second), strict=True)
        ]
        known = [trusted(run, reference) for run, reference in runs]
        both = {request.id: min(counts[request.id] for counts in known) for request in requests}
        used = [(len(request.prompt), histories[request.id]) for request in requests]
        gauges = measure(self._book.oracle, (first, second), used, both)
        wrong = (leaves_the_oracle(run, reference, both) for run, reference in runs)
        return replace(gauges, plain=next((divergence for divergence in wrong if divergence), None))

    def judge(
        self, scenario: Scenario, trace: Trace, gauges: Gauges, documented: Documented | None = None
    ) -> Judgement:
        """Every check on one trace."""
        reference = Reference(self._book, scenario, trace)
        evidence = [
            *([_crash(trace)] if trace.crash else []),
            *([_plain(gauges.plain)] if gauges.plain else []),
            *judge_tensors(trace, reference, gauges),
            check_memory(scenario, trace),
            check_ledger(scenario, trace, self._book.oracle.config.vocab_size),
            check_schedule(scenario, trace),
            check_counters(scenario, trace),
            check_drafts(scenario, trace, reference, gauges.logits),
            check_grammar(scenario, trace, self._grammars),
            check_tokens(scenario, trace, reference, self._grammars, gauges.logits),
            check_finish(scenario, trace, self._grammars),
        ]
        if scenario.prefix_caching:
            evidence.append(check_prefix(scenario, trace))
        if scenario.most_compilations is not None:
            evidence.append(check_recompile(scenario, trace))
        if scenario.capture_sizes:
            evidence.append(show_padding(trace))
        if foreign := check_foreign_grammar(scenario, trace, self._grammars):
            evidence.append(foreign)
        observed = observe(scenario, trace)
        if not trace.crash:
            demands = demanded(scenario, trace)
            evidence.append(_coverage(demands, list(missing(demands, observed))))
        first = first_divergence(evidence)
        if first:
            first = name_it(first, trace, reference, gauges)
        return Judgement(
            scenario=scenario.name,
            target=trace.target,
            verdict=worst(e.verdict for e in evidence),
            evidence=tuple(evidence),
            observed=dict(observed),
            first=first,
            ledger=tuple(last_lines(scenario, trace, first.at)) if first else (),
            documented=None if documented is None else _as_documented(first, documented),
            hit=tuple(sorted({d.at.request for e in evidence if e.check == "state" for d in e.divergences})),
        )

    def forget(self) -> None:
        """Drop what was kept for a scenario."""
        self._book.forget()


def first_divergence(evidence: Sequence[Evidence]) -> Divergence | None:
    """The earliest divergence of all failing checks; in one step, state before counts before what follows from them."""
    found = [d for e in evidence if e.verdict is Verdict.FAIL for d in e.divergences]
    return min(found, key=lambda d: (d.at.step, _KIND_RANK[d.kind], d.at), default=None)


def _as_documented(first: Divergence | None, documented: Documented) -> bool:
    if first is not None and first.kind == documented.otherwise:
        return True
    if first is None or first.kind != documented.failure:
        return False
    return (
        (documented.message is None or documented.message in first.message)
        and documented.tensor in (None, first.at.tensor)
        and documented.layer in (None, first.at.layer)
        and documented.step in (None, first.at.step)
    )


def _only(scenario: Scenario, requests: Sequence[object]) -> Scenario:
    kept = tuple(request for request in scenario.requests if request in requests)
    script = (
        None if scenario.script is None else {request.id: scenario.script[request.id] for request in kept}
    )
    return replace(scenario, requests=kept, script=script, events=())


def _crash(trace: Trace) -> Evidence:
    assert trace.crash is not None
    message = f"{trace.crash.kind}: {trace.crash.message} ({trace.crash.where})"
    divergence = Divergence(kind="crash", at=Coordinate(step=trace.crash.step), message=message)
    return Evidence(
        check="alive", verdict=Verdict.FAIL, summary=message, divergences=(divergence,), compared=1
    )


def _plain(divergence: Divergence) -> Evidence:
    return Evidence(
        check="plain", verdict=Verdict.FAIL, summary=divergence.message, divergences=(divergence,), compared=1
    )


def _coverage(demands: Mapping[str, int], absent: list[str]) -> Evidence:
    verdict = Verdict.INCONCLUSIVE if absent else Verdict.PASS
    summary = "; ".join(absent) if absent else f"all {len(demands)} demanded events happened"
    return Evidence(check="must observe", verdict=verdict, summary=summary, compared=len(demands))
