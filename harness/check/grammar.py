"""The grammar, by a fresh matcher for every question: which drafts were kept, what was masked, what was committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from harness.errors import Unsupported
from harness.oracle.foreign import ForeignGrammar
from harness.oracle.grammar import GrammarJudge, GrammarOracle, unpack
from harness.scenario import Grammar, Scenario
from harness.trace import Coordinate, RowTrace, Trace
from harness.verdict import Divergence, Evidence, Verdict

Compile = Callable[[Grammar], GrammarJudge]


class GrammarBook:
    """Compiled grammars of one model folder, by their text: the oracle's, and those of a foreign library."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._judges: dict[Grammar, GrammarJudge] = {}
        self._foreign: dict[Grammar, GrammarJudge | None] = {}

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


def check_grammar(scenario: Scenario, trace: Trace, judge_of: Compile) -> Evidence:
    """Drafts kept, masks applied and tokens committed by every guided row."""
    found: list[Divergence] = []
    compared = 0
    answers: dict[str, list[int]] = {request.id: [] for request in scenario.requests}
    for step in trace.steps:
        for row in step.rows:
            grammar = scenario.request(row.request).grammar
            if grammar is None:
                continue
            judge, history = judge_of(grammar), answers[row.request]
            faults = list(_faults(row, judge, history))
            compared += 1
            found += [
                Divergence(
                    kind="grammar",
                    at=Coordinate(step=step.index, request=row.request, tensor=what),
                    message=message,
                )
                for what, message in faults
            ]
            history += row.committed
    bare = sum(
        row.mask is None and row.logits is not None and scenario.request(row.request).grammar is not None
        for step in trace.steps
        for row in step.rows
    )
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
        judge = book.foreign(request.grammar) if request.grammar else None
        if judge is None or request.grammar is None:
            continue
        compared += 1
        answer = trace.completions[request.id].tokens
        mine, theirs = book(request.grammar).legal_prefix(answer), judge.legal_prefix(answer)
        if mine != theirs:
            disputed.append(
                f"{request.id}: xgrammar takes {mine} of {len(answer)} tokens, llguidance {theirs}"
            )
    if not compared:
        return None
    verdict = Verdict.INCONCLUSIVE if disputed else Verdict.PASS
    summary = "; ".join(disputed) or f"llguidance agrees on {compared} answers"
    return Evidence(check="foreign grammar", verdict=verdict, summary=summary, compared=compared)


def _faults(row: RowTrace, judge: GrammarJudge, history: Sequence[int]) -> Iterator[tuple[str, str]]:
    """What a guided row got wrong, given the answer before it. An answer that broke before is not judged again."""
    if judge.legal_prefix(history) < len(history):
        return
    position = judge.replay(history)
    expected_kept = position.legal_prefix(row.proposed)
    if row.proposed and row.grammar_kept != expected_kept:
        yield (
            "drafts",
            f"{row.grammar_kept} of {len(row.proposed)} drafts kept, the grammar accepts {expected_kept}",
        )
    if row.mask is not None:
        yield from _mask_faults(row, judge, history)
    legal = position.legal_prefix(row.committed)
    if legal < len(row.committed):
        yield (
            "committed",
            f"token {row.committed[legal]} is not legal after {len(history) + legal} tokens of the answer",
        )


def _mask_faults(row: RowTrace, judge: GrammarJudge, history: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Mask row i belongs to draft position i."""
    assert row.mask is not None
    for i in range(len(row.kept) + 1):
        prefix = [*history, *row.kept[:i]]
        if judge.legal_prefix(prefix) < len(prefix):
            if row.kept[i - 1] >= 0:  # a refused draft may leave a placeholder, never itself
                yield "drafts", f"draft {i - 1} of the row, token {row.kept[i - 1]}, is not legal"
            return
        allowed = judge.replay(prefix).allowed()
        masked = unpack(row.mask[i], allowed.size)
        if not np.array_equal(masked, allowed):
            wrong = int(np.flatnonzero(masked != allowed)[0])
            yield (
                "mask",
                f"mask row {i} {'allows' if masked[wrong] else 'forbids'} token {wrong}, the grammar does not agree",
            )
            return
