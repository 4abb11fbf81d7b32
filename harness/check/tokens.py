"""Lossless: greedy tokens with speculation are those without, judged at each position by the oracle's own argmax."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np

from harness.check.gauge import NEAR_TIE, Gauge
from harness.check.grammar import Compile
from harness.check.ledger import guided_tokens
from harness.check.reference import Reference
from harness.scenario import Request, Scenario
from harness.trace import Array, Coordinate, Trace
from harness.verdict import Divergence, Evidence, Verdict, worst


def check_tokens(
    scenario: Scenario, trace: Trace, reference: Reference, judge_of: Compile, gauge: Gauge
) -> Evidence:
    """Each greedy token against the oracle's choice after the same tokens; only natural runs choose."""
    if scenario.forced:
        return Evidence(check="tokens", verdict=Verdict.PASS, summary="forced: the script chose the tokens")
    found: list[Divergence] = []
    verdicts: list[Verdict] = []
    compared = 0
    for request in scenario.requests:
        if request.sampling.temperature > 0:
            continue
        for step, index, token in _choices(request, trace):
            answers = reference.replay(request.id).logits
            if len(request.prompt) + index > len(answers):
                break  # behind a token that no vocabulary has
            logits = answers[len(request.prompt) + index - 1]
            allowed = _allowed(request, reference, judge_of, index, logits)
            best = int(np.where(allowed, logits, -np.inf).argmax())
            compared += 1
            if best == token:
                continue
            gap = float(logits[best] - logits[token]) if 0 <= token < len(logits) else inf
            tie = gap < NEAR_TIE * gauge.largest_noise * float(np.sqrt(np.mean(np.square(logits))))
            verdicts.append(Verdict.NEAR_TIE if tie else Verdict.FAIL)
            found.append(
                Divergence(
                    kind="tokens",
                    at=Coordinate(step=step, request=request.id, tensor="token"),
                    message=f"token {index} of the answer is {token}, plain decoding gives {best} (gap {gap:.3g})",
                )
            )
    summary = f"{compared} greedy tokens, {len(found)} differ" if compared else "no greedy request"
    verdict = worst(verdicts) if verdicts else Verdict.PASS
    return Evidence(
        check="tokens", verdict=verdict, summary=summary, divergences=tuple(found), compared=compared
    )


def _choices(request: Request, trace: Trace) -> Iterator[tuple[int, int, int]]:
    """(step, index in the answer, token) of every token the engine chose."""
    index = 0
    for step in trace.steps:
        for row in step.rows:
            if row.request != request.id or row.discarded:
                continue
            for token in row.committed:
                yield step.index, index, token
                index += 1


def _allowed(request: Request, reference: Reference, judge_of: Compile, index: int, logits: Array) -> Array:
    """Which tokens the grammar allows after ``index`` tokens of the answer, ``[vocab]``."""
    if request.grammar is None:
        return np.ones(logits.shape, dtype=np.bool_)
    start = len(request.prompt)
    answer = reference.histories[request.id][start : start + index]
    if request.reasoning_end is not None and request.reasoning_end not in answer:
        return np.ones(logits.shape, dtype=np.bool_)
    judge, history = judge_of(request.grammar), answer[len(answer) - guided_tokens(request, answer) :]
    if judge.legal_prefix(history) < len(history):
        return np.ones(logits.shape, dtype=np.bool_)
    return judge.replay(history).allowed()
