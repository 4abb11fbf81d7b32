"""Drafts: what was proposed is what a drafter without a past would propose after the same committed tokens.

A drafter cannot make an answer wrong, so nothing else notices when it reads a stale cache, another place or another
request: acceptance falls, and that is all.
"""

from __future__ import annotations

import numpy as np

from harness.check.gauge import NEAR_TIE, Gauge
from harness.check.proposals import Drafts, Proposal, explain, proposals
from harness.check.reference import Reference
from harness.oracle import ngram
from harness.oracle.accept import transform_logits
from harness.oracle.mtp import Drafter
from harness.scenario import Sampling, Scenario
from harness.trace import Array, Coordinate, Trace
from harness.verdict import Divergence, Evidence, Verdict, worst


def check_drafts(scenario: Scenario, trace: Trace, reference: Reference, gauge: Gauge) -> Evidence:
    """Every row's proposals before any trim; ``gauge`` is that of the logits."""
    judge = _Judge(scenario, trace, reference, NEAR_TIE * gauge.largest_noise)
    rows = list(proposals(scenario, trace))
    found = [divergence for proposal in rows if (divergence := judge(proposal))]
    verdicts = [Verdict.NEAR_TIE if divergence.cause is None else Verdict.FAIL for divergence in found]
    failed = verdicts.count(Verdict.FAIL)
    ties = f", {len(found) - failed} near ties" if len(found) > failed else ""
    return Evidence(
        check="drafts",
        verdict=worst(verdicts) if verdicts else Verdict.PASS,
        summary=f"proposals of {len(rows)} rows, {failed} differ{ties}",
        divergences=tuple(found),
        compared=len(rows),
    )


class _Judge:
    """One run beside fresh drafters, one for each request."""

    def __init__(self, scenario: Scenario, trace: Trace, reference: Reference, least: float) -> None:
        self._scenario = scenario
        self._trace = trace
        self._reference = reference
        self._least = least  # a relative difference of logits below this is a near tie
        self._heads: dict[str, Drafter] = {}

    def __call__(self, proposal: Proposal) -> Divergence | None:
        """What is wrong with a proposal; without a cause, rounding may have decided."""
        row, seen = proposal.row, proposal.row.proposed
        natural = not self._scenario.forced
        if natural and len(self._reference.known(proposal.tokens)) < len(proposal.tokens):
            return None  # behind a token that no vocabulary has
        k = len(seen) if proposal.k is None else proposal.k
        expected = () if row.prompt_tokens else self._after(proposal, len(proposal.tokens), k)
        if seen == expected:
            return None
        head = self._head(row.request) if natural and self._scenario.drafter == "mtp" and expected else None
        how = self._scenario.request(row.request).sampling
        drawn = head is not None and self._scenario.sample_drafts and how.temperature > 0
        place = self._first_wrong(proposal, head, how if drawn else Sampling()) if head else None
        if place is None and drawn and len(seen) == len(expected):
            return None
        cause: str | None = None
        words = f"saw {list(seen)}, expected {list(expected)}"
        if head is None or place is None or not self._is_tie(proposal, head, place):
            cause, why = explain(proposal, expected, lambda count: self._after(proposal, count, k), head)
            words = f"{why}: {words}"
        return Divergence(
            kind="drafts",
            at=Coordinate(step=proposal.step, request=row.request, tensor="proposed"),
            message=f"drafts after {len(proposal.tokens)} tokens differ",
            diagnosis=words,
            cause=cause,
        )

    def _after(self, proposal: Proposal, count: int, k: int) -> Drafts:
        """What is to be proposed after the first ``count`` tokens of the proposal's request; a script has its turn."""
        request = proposal.row.request
        if self._scenario.script is not None:
            here = count == len(proposal.tokens)
            return next(
                (t.drafts[:k] for t in self._scenario.script[request][proposal.turn :][:1] if here), ()
            )
        if not 2 <= count <= len(self._reference.known(self._reference.histories[request])) or not k:
            return ()
        if self._scenario.drafter == "ngram":
            return tuple(ngram.propose(self._reference.histories[request][:count], k))
        return tuple(self._head(request).after(count, k).tokens.tolist())

    def _head(self, request: str) -> Drafter:
        """The MTP head over all that a request committed."""
        if request not in self._heads:
            history = self._reference.known(self._reference.histories[request])
            hidden = self._reference.replay(request).hidden[: len(history) - 1]
            self._heads[request] = Drafter(self._reference.oracle, history, hidden)
        return self._heads[request]

    def _first_wrong(self, proposal: Proposal, head: Drafter, how: Sampling) -> int | None:
        """The first draft that could not have been drawn after those before it; greedy if nothing is drawn."""
        seen = proposal.row.proposed
        stray = next(
            (j for j, t in enumerate(seen) if not 0 <= t < self._reference.oracle.config.vocab_size), None
        )
        known = seen[:stray]
        laws = transform_logits(
            head.after(len(proposal.tokens), len(known), along=known).logits,
            temperature=how.temperature,
            top_k=how.top_k,
            top_p=how.top_p,
        )
        return next((j for j, token in enumerate(known) if not laws[j, token]), stray)

    def _is_tie(self, proposal: Proposal, head: Drafter, place: int) -> bool:
        """Whether rounding may have chosen the draft at ``place``, or the experts that it rests on."""
        seen = proposal.row.proposed[: place + 1]
        if not 0 <= seen[-1] < self._reference.oracle.config.vocab_size:
            return False
        fresh = head.after(len(proposal.tokens), len(seen), along=seen)
        logits = fresh.logits[place]
        size = float(np.sqrt(np.mean(np.square(logits))))
        return bool(
            logits.max() - logits[seen[-1]] < self._least * size
            or fresh.router_gap.min() < self._least
            or self._settled_tokens(proposal.row.request) < len(proposal.tokens) - 1
        )

    def _settled_tokens(self, request: str) -> int:
        """Tokens of a request before the first whose experts a near tie chose otherwise than in the oracle."""
        replay = self._reference.replay(request)
        chosen: dict[int, list[Array]] = {}  # several where a preempted request was fed again
        for row in (row for step in self._trace.steps for row in step.rows):
            if row.request == request and row.routing is not None and not row.discarded:
                start = row.num_computed - (row.prompt_tokens or row.accepted)
                for i, experts in enumerate(row.routing):
                    chosen.setdefault(start + i, []).append(experts)
        for place, layer in np.argwhere(replay.router_gap < self._least).tolist():
            # tokens of a prefix hit were routed in another request's row
            seen = [set(experts[layer]) for experts in chosen.get(place, [])]
            if not seen or any(experts != set(replay.routing[place, layer]) for experts in seen):
                return int(place)
        return len(replay.logits)
