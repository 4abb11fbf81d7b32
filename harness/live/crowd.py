"""The same greedy request alone, in a crowd, and alone again: whoever is served beside it must not matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.exchange import Answer, Exchange, Fate
from harness.live.finding import Finding
from harness.live.noise import MOST, Noise
from harness.live.pattern import pattern
from harness.live.transcript import Transcript
from harness.verdict import Verdict


def compared(transcript: Transcript, noise: Noise) -> tuple[Finding, Finding]:
    """Alone against among others; and against alone again, behind the crowds: what they leave must not matter."""
    return (
        _compared("solo v crowd", transcript, noise, lambda leg: leg.startswith("crowd")),
        _compared("solo v again", transcript, noise, lambda leg: leg == "again"),
    )


def _compared(check: str, transcript: Transcript, noise: Noise, takes: Callable[[str], bool]) -> Finding:
    pairs = list(_pairs(transcript, takes))
    if not pairs:
        return Finding(
            check=check, verdict=Verdict.INCONCLUSIVE, told="nothing to compare: the audit ended before"
        )
    wrong: dict[str, tuple[Exchange, int]] = {}
    ties, unknown, worst, told = 0, 0, -1.0, ""
    for alone, other in pairs:
        index = first_difference(alone.answer, other.answer, noise.tolerance)
        if index is None:
            continue
        if _is_tie(alone.answer, other.answer, index, noise):
            ties += 1
            continue
        if may_be_tie(alone.answer, other.answer, index):
            unknown += 1
            continue
        wrong[other.ask.id] = other, index
        size, words = _told(other.ask.id, alone.answer, other.answer, index)
        if size > worst:
            worst, told = size, words
    if wrong:
        return Finding(
            check=check,
            verdict=Verdict.FAIL,
            told="answers depend on who was served beside them"
            if check == "solo v crowd"
            else "answers depend on who was served before them",
            hit=tuple(wrong),
            of=len(pairs),
            worst=told,
            cause=pattern(wrong, [other for _, other in pairs]),
        )
    if unknown or (ties and not noise.is_measured):
        return undecided(check, ties + unknown, len(pairs))
    tied = f"; {ties} differ at a near tie" if ties else ""
    return Finding(
        check=check,
        verdict=Verdict.NEAR_TIE if ties else Verdict.PASS,
        told=f"the same tokens{tied}",
        of=len(pairs),
    )


def first_difference(one: Answer, other: Answer, tolerance: float) -> int | None:
    """The first place where tokens or their log-probabilities differ; one answer may be the shorter one only where
    both ended for the same reason."""
    for index, (mine, theirs) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if mine != theirs:
            return index
        if index < min(len(one.places), len(other.places)):
            off = abs(one.places[index].logprob - other.places[index].logprob)
            if not off <= tolerance:
                return index
    if len(one.tokens) != len(other.tokens) or one.finish_reason != other.finish_reason:
        return min(len(one.tokens), len(other.tokens))
    if not one.tokens and one.text != other.text:
        return 0
    return None


def may_be_tie(one: Answer, other: Answer, index: int) -> bool:
    """Whether the answers part in a token, or in the text where none came, whose law is not known. Most
    servers' arithmetic depends on who is computed beside whom: a right one may choose either of two close ones."""
    if not one.tokens:
        return one.text != other.text
    if index >= min(len(one.tokens), len(other.tokens)) or one.tokens[index] == other.tokens[index]:
        return False
    return index >= len(one.places) or one.places[index].gap is None


def undecided(check: str, differ: int, of: int) -> Finding:
    """Where answers differ and it cannot be said whether noise explains it."""
    told = (
        f"{differ} of {of} differ: without token ids, log-probabilities and a measured noise "
        "a near tie is not told from a fault"
    )
    return Finding(check=check, verdict=Verdict.INCONCLUSIVE, told=told, of=of)


def _is_tie(one: Answer, other: Answer, index: int, noise: Noise) -> bool:
    """Different tokens whose log-probabilities are closer than two tolerances, and a tolerance that says something."""
    if noise.tolerance > MOST or index >= min(len(one.places), len(other.places)):
        return False
    if one.tokens[index : index + 1] == other.tokens[index : index + 1]:
        return False
    gap = one.places[index].gap
    return gap is not None and gap <= noise.gap


def _pairs(transcript: Transcript, takes: Callable[[str], bool]) -> Iterator[tuple[Exchange, Exchange]]:
    for exchange in transcript.generated:
        about = exchange.ask.about
        if about in transcript.exchanges and takes(exchange.ask.leg):
            alone = transcript.exchanges[about]
            if alone.answer.fate is Fate.COMPLETE and exchange.answer.fate is Fate.COMPLETE:
                yield alone, exchange


def _told(name: str, one: Answer, other: Answer, index: int) -> tuple[float, str]:
    """How much, and a sentence."""
    if index >= min(len(one.tokens), len(other.tokens)):
        return 0.0, (
            f"{name}: {len(other.tokens)} tokens, ended by {other.finish_reason}; alone {len(one.tokens)}, "
            f"ended by {one.finish_reason}"
        )
    if one.tokens[index] != other.tokens[index]:
        gap = one.places[index].gap if index < len(one.places) else None
        known = "" if gap is None else f"; alone the two best were {gap:.3g} apart"
        return 1e3 + (
            gap or 0.0
        ), f"{name}, token {index}: {other.tokens[index]}, alone {one.tokens[index]}{known}"
    mine, theirs = one.places[index].logprob, other.places[index].logprob
    return abs(mine - theirs), f"{name}, token {index}: decoded with {theirs:.4f}, alone with {mine:.4f}"
