"""The grammar, by a fresh matcher for every question: which drafts were kept, what was masked, what was committed.

In the regime ``trim`` a row has the drafts that the grammar left, or fewer; in ``placeholder`` it has all of those that
its places hold, and placeholders behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from harness.check.masks import Surroundings, Window, before_placeholder, name_mistake
from harness.errors import Unsupported
from harness.oracle.foreign import ForeignGrammar
from harness.oracle.grammar import GrammarJudge, GrammarOracle, ReasoningJudge, Vocabulary
from harness.scenario import Grammar, Regime, Request, Scenario
from harness.trace import Coordinate, StepTrace, Trace
from harness.verdict import Divergence, Evidence, Verdict

Compile = Callable[[Grammar], GrammarJudge]


class GrammarBook:
    """Compiled grammars of one model folder, by their text: the oracle's, and those of a foreign library."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._judges: dict[Grammar, GrammarJudge] = {}
        self._foreign: dict[Grammar, GrammarJudge | None] = {}

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The model's tokens."""
        return Vocabulary.read(self._folder)

    def __call__(self, grammar: Grammar) -> GrammarJudge:
        """The judge for a grammar; ScenarioError if it does not compile."""
        if grammar not in self._judges:
            self._judges[grammar] = GrammarOracle.compile(self._folder, grammar.kind, grammar.text)
        return self._judges[grammar]

    def foreign(self, grammar: Grammar) -> GrammarJudge | None:
        """llguidance's judge for a grammar, ``None`` where it cannot express it."""
        if grammar not in self._foreign:
            try:
                self._foreign[grammar] = ForeignGrammar.compile(self._folder, grammar.kind, grammar.text)
            except Unsupported:
                self._foreign[grammar] = None
        return self._foreign[grammar]


def judge_for(request: Request, judge_of: Callable[[Grammar], GrammarJudge | None]) -> GrammarJudge | None:
    """Who judges a request's answers, reasoning included; ``None`` if nobody can, or it may say what it likes."""
    judge = judge_of(request.grammar) if request.grammar else None
    if judge is None or request.reasoning_end is None:
        return judge
    return ReasoningJudge(judge, request.reasoning_end)


def check_grammar(scenario: Scenario, trace: Trace, judge_of: Compile) -> Evidence:
    """Drafts kept, masks applied and tokens committed by every guided row. Rows that were discarded do not count."""
    found: list[Divergence] = []
    compared = bare = 0
    runs: dict[str, tuple[tuple[int, ...], ...]] = {request.id: () for request in scenario.requests}
    drafts: dict[str, tuple[int, ...]] = {}
    before: StepTrace | None = None
    for step in trace.steps:
        rows = [row for row in step.rows if not row.discarded]
        judges = {row.request: judge_for(scenario.request(row.request), judge_of) for row in rows}
        windows = {
            row.request: Window(
                row=row, judge=judge, runs=runs[row.request], last_drafts=drafts.get(row.request, ())
            )
            for row in rows
            if (judge := judges[row.request])
        }
        compared += len(windows)
        bare += sum(window.row.mask is None and window.row.logits is not None for window in windows.values())
        for window in windows.values():
            faults = _faults(window, scenario.regime, Surroundings(step=step, windows=windows, before=before))
            found += [
                Divergence(
                    kind="grammar",
                    at=Coordinate(step=step.index, request=window.row.request, tensor=fault.tensor),
                    message=fault.message,
                    cause=fault.cause,
                    diagnosis=fault.diagnosis,
                )
                for fault in faults
            ]
        for row in rows:
            runs[row.request] += (row.committed,) if row.committed else ()
            drafts[row.request] = before_placeholder(row.kept)
        before = step
    verdict = Verdict.FAIL if found else Verdict.INCONCLUSIVE if bare else Verdict.PASS
    summary = f"{compared} guided rows, {len(found)} break their grammar" if compared else "no guided request"
    summary += f"; {bare} rows had no mask to look at" if bare else ""
    return Evidence(
        check="grammar", verdict=verdict, summary=summary, divergences=tuple(found), compared=compared
    )


def check_foreign_grammar(scenario: Scenario, trace: Trace, book: GrammarBook) -> Evidence | None:
    """Whole answers by a second library, since xgrammar is the suspect's own; ``None`` if it can read no grammar here.

    Where the two libraries disagree, nobody is convicted: the verdict is INCONCLUSIVE.
    """
    disputed: list[str] = []
    compared = 0
    for request in scenario.requests:
        judge, foreign = judge_for(request, book), judge_for(request, book.foreign)
        if judge is None or foreign is None:
            continue
        compared += 1
        answer = trace.completions[request.id].tokens
        mine, theirs = judge.legal_prefix(answer), foreign.legal_prefix(answer)
        if mine != theirs:
            disputed.append(
                f"{request.id}: xgrammar takes {mine} of {len(answer)} tokens, llguidance {theirs}"
            )
    if not compared:
        return None
    verdict = Verdict.INCONCLUSIVE if disputed else Verdict.PASS
    summary = "; ".join(disputed) or f"llguidance agrees on {compared} answers"
    return Evidence(check="foreign grammar", verdict=verdict, summary=summary, compared=compared)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """Something that a row got wrong, and the mistake behind it."""

    tensor: str
    message: str
    cause: str | None
    diagnosis: str
    position: int = 0  # of the first wrong mask row


def _faults(window: Window, regime: Regime, around: Surroundings) -> Iterator[_Fault]:
    """What a guided row got wrong, given the answer before it. An answer that broke before is not judged again."""
    if not window.follows_its_grammar:
        return
    mask = next(_mask_faults(window, around), None)
    for message, cause in _draft_faults(window, regime):
        yield _fault("drafts", message, cause, mask)
    if mask:
        yield mask
    row, position = window.row, window.judge.replay(window.history)
    legal = position.legal_prefix(row.committed)
    if legal < len(row.committed) and 0 <= row.committed[legal] < window.judge.vocabulary.size:
        place = len(window.history) + legal
        message = f"token {row.committed[legal]} is not legal after {place} tokens of the answer"
        known = mask if mask and mask.position <= legal else None
        yield _fault("committed", message, "illegal token committed", known)


def _fault(tensor: str, message: str, cause: str, mask: _Fault | None) -> _Fault:
    """A fault in a row; where its masks are wrong too, one mistake explains both."""
    if mask:
        return _Fault(tensor=tensor, message=message, cause=mask.cause, diagnosis=mask.diagnosis)
    return _Fault(tensor=tensor, message=message, cause=cause, diagnosis=f"{cause}: {message}")


def _draft_faults(window: Window, regime: Regime) -> Iterator[tuple[str, str]]:
    """(message, cause) of drafts that are in the row, or not, against the grammar."""
    row, position, known = window.row, window.judge.replay(window.history), window.drafts
    expected = position.legal_prefix(row.proposed)
    if row.proposed and row.grammar_kept != expected:
        yield (
            f"{row.grammar_kept} of {len(row.proposed)} drafts kept, the grammar accepts {expected}",
            "refused draft kept" if (row.grammar_kept or 0) > expected else "legal draft trimmed",
        )
    elif regime == "placeholder" and len(known) < min(expected, len(row.kept)):
        yield (
            f"a placeholder stands for draft {len(known)}, the grammar accepts {expected}",
            "legal draft trimmed",
        )
    legal = position.legal_prefix(known)
    if legal < len(known):
        yield f"draft {legal} of the row, token {known[legal]}, is not legal", "refused draft kept"
    if any(draft != -1 for draft in row.kept[len(known) :]):
        yield f"the row has drafts behind its placeholder: {list(row.kept)}", "draft behind a placeholder"


def _mask_faults(window: Window, around: Surroundings) -> Iterator[_Fault]:
    """Mask row i belongs to draft position i."""
    if window.row.mask is None:
        return
    seen, expected = window.seen(), window.expected()
    if all(mask is not None for mask in expected) and len(seen) != len(expected):
        message = f"the row has {len(seen)} masks for {len(expected)} rows of logits"
        yield _Fault(tensor="mask", message=message, cause="mask rows miscounted", diagnosis=message)
    for i, (mask, right) in enumerate(zip(seen, expected, strict=False)):
        if right is not None and not np.array_equal(mask, right):
            wrong = int(np.flatnonzero(mask != right)[0])
            does = "allows" if mask[wrong] else "forbids"
            cause, words = name_mistake(window, around)
            yield _Fault(
                tensor="mask",
                message=f"mask row {i} {does} token {wrong}, the grammar does not agree",
                cause=cause,
                diagnosis=words,
                position=i,
            )
