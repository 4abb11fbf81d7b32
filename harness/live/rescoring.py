"""Every answer is fed back as a prompt: the law that each token was drawn from must be the law that a plain prefill
gives it. A prompt is computed without drafts, rollback or masks; so what differs was computed from a wrong state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from harness.exchange import Exchange, Fate, Place
from harness.live.finding import Finding
from harness.live.judges import Judges
from harness.live.laws import Interval, better, free, renormalised
from harness.live.noise import MOST, Noise
from harness.live.pattern import pattern
from harness.live.transcript import Transcript
from harness.oracle.grammar import Mask
from harness.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """An answer and the laws of its tokens by prefill."""

    exchange: Exchange
    laws: tuple[Place, ...]  # [tokens]
    masks: list[Mask] | None

    @property
    def places(self) -> Iterator[tuple[int, int, Place, Place, Mask | None]]:
        """(index, token, as it was decoded, as it was scored, what the grammar allows there)."""
        masks = [None] * len(self.laws) if self.exchange.ask.grammar is None else (self.masks or [])
        answer = self.exchange.answer
        for index, mask in zip(range(len(self.laws)), masks, strict=False):
            yield index, answer.tokens[index], answer.places[index], self.laws[index], mask


def scored(transcript: Transcript, judges: Judges) -> list[Scored]:
    """The answers that were scored. Equal texts share one scoring."""
    laws = {
        e.ask.prompt: e.answer.prompt_places for e in transcript.of("score") if e.answer.fate is Fate.COMPLETE
    }
    found = []
    for exchange in transcript.generated:
        answer = exchange.answer
        tokens = len(answer.tokens)
        text = answer.prompt + answer.tokens
        if tokens and answer.prompt and len(answer.places) == tokens and text in laws:
            mine = laws[text][len(answer.prompt) - 1 : len(text) - 1]
            found.append(Scored(exchange=exchange, laws=mine, masks=judges.masks(exchange)))
    return found


def rescoring(transcript: Transcript, noise: Noise, answers: list[Scored]) -> Finding:
    """Decoded log-probabilities against scored ones."""
    check = "rescoring"
    if unable := _unable(transcript, noise, answers, check):
        return unable
    masks_first = _masks_first(answers)
    wrong: dict[str, int] = {}
    compared, unknown, worst, told = 0, 0, 0.0, ""
    for one in answers:
        for index, _, decoded, law, mask in one.places:
            must = renormalised(law, mask) if mask is not None and masks_first else free(law)
            if must.high - must.low > MOST:
                unknown += 1  # the grammar allows much that is not among the best
                continue
            compared += 1
            off = must.distance(decoded.logprob)
            if not off <= noise.tolerance:
                name = one.exchange.ask.id
                wrong.setdefault(name, index)
                if off > worst or not told:
                    told = _told(name, index, decoded, must)
            worst = max(worst, off)
    verdict = Verdict.FAIL if wrong else Verdict.PASS
    hits = {one.exchange.ask.id: one.exchange for one in answers}
    return Finding(
        check=check,
        verdict=verdict,
        told=f"log-probabilities are not those of a prefill of the same tokens, by up to {worst:.2g}"
        if wrong
        else f"{compared} decoded log-probabilities are those of a prefill: {worst:.1e} off at most, "
        f"{noise.tolerance:.1e} is allowed" + (f"; {unknown} could not be compared" if unknown else ""),
        hit=tuple(wrong),
        of=len(answers),
        worst=told,
        cause=pattern({name: (hits[name], index) for name, index in wrong.items()}, list(hits.values())),
    )


def greedy(transcript: Transcript, noise: Noise, answers: list[Scored]) -> Finding:
    """A greedy token is the best one that the grammar allows, by the law of a prefill."""
    check = "greedy choice"
    mine = [one for one in answers if one.exchange.ask.temperature == 0]
    if unable := _unable(transcript, noise, mine, check):
        return unable
    wrong: dict[str, int] = {}
    ties, worst, told = 0, 0.0, ""
    for one in mine:
        for index, token, _, law, mask in one.places:
            lost = better(law, mask)
            ties += 0 < lost <= noise.gap
            if lost > noise.gap:
                name = one.exchange.ask.id
                wrong.setdefault(name, index)
                if lost > worst:
                    worst = lost
                    told = f"{name}, token {index} ({token}): a legal token is {lost:.3g} likelier by prefill"
    hits = {one.exchange.ask.id: one.exchange for one in mine}
    if wrong:
        return Finding(
            check=check,
            verdict=Verdict.FAIL,
            told=f"tokens that are not the best: another legal one is up to {worst:.3g} likelier",
            hit=tuple(wrong),
            of=len(mine),
            worst=told,
            cause=pattern({name: (hits[name], index) for name, index in wrong.items()}, list(hits.values())),
        )
    tied = f"; {ties} near ties" if ties else ""
    return Finding(
        check=check,
        verdict=Verdict.NEAR_TIE if ties else Verdict.PASS,
        told=f"every greedy token is the best legal one of a prefill's law{tied}",
        of=len(mine),
    )


def _unable(transcript: Transcript, noise: Noise, answers: list[Scored], check: str) -> Finding | None:
    if not transcript.offer.prompt_logprobs or not transcript.offer.logprobs:
        lacks = transcript.offer.lacks
        why = lacks.get("prompt_logprobs") or lacks.get("logprobs") or "no log-probabilities"
        return Finding(check=check, verdict=Verdict.UNSUPPORTED, told=why)
    if not answers:
        return Finding(
            check=check, verdict=Verdict.INCONCLUSIVE, told="no answer was scored: the audit ended before"
        )
    if noise.tolerance > MOST:
        return Finding(
            check=check, verdict=Verdict.INCONCLUSIVE, told=f"noise is too large: {noise.tolerance:.2g}"
        )
    return None


def _masks_first(answers: list[Scored]) -> bool:
    """Whether the server masks before it computes log-probabilities: the first token of an answer, which follows a
    prompt and no draft, fits one way or the other."""
    kept = renormed = 0.0
    for one in answers:
        for _, _, decoded, law, allowed in islice(one.places, 1):
            if allowed is None:
                continue
            kept += min(free(law).distance(decoded.logprob), 1.0)
            renormed += min(renormalised(law, allowed).distance(decoded.logprob), 1.0)
    return renormed < kept


def _told(name: str, index: int, decoded: Place, must: Interval) -> str:
    expected = f"{must.low:.4f}" if must.low == must.high else f"{must.low:.4f} to {must.high:.4f}"
    return f"{name}, token {index}: decoded with {decoded.logprob:.4f}, prefill says {expected}"
