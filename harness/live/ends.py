"""Answers that are ended early: at a text, at a token, at a length.

A step commits several tokens at once, so an end may stand inside a run of them; what comes out must be the beginning of
the answer that was not ended.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from harness.exchange import Ask, Exchange, Fate, Offer
from harness.live.crowd import may_be_tie, undecided
from harness.live.finding import Finding
from harness.live.noise import MOST, Noise
from harness.live.session import Batches, Leg
from harness.live.transcript import Transcript
from harness.verdict import Verdict

LEG = "ended"
LETTERS = 3
"""Length of a stop text."""


def ended(offer: Offer, seed: int) -> Leg:
    """Every free subject's answer three times, all together; stop tokens where the server takes ids."""

    def plan(transcript: Transcript) -> Batches:
        rng = random.Random(f"{seed} ends")
        whole = [
            e
            for e in transcript.of("solo")
            if e.ask.grammar is None and len(e.answer.text) > 4 * LETTERS and "\ufffd" not in e.answer.text
        ]
        asks = [ask for e in whole if e.answer.fate is Fate.COMPLETE for ask in _asks(e, offer, rng)]
        return [asks] if asks else []

    return Leg(name=LEG, plan=plan)


def _asks(solo: Exchange, offer: Offer, rng: random.Random) -> Iterator[Ask]:
    """In the middle half of the answer, so that it was already under way."""
    answer, name = solo.answer, solo.ask.id
    start = rng.randrange(len(answer.text) // 4, 3 * len(answer.text) // 4)
    plain = replace(solo.ask, leg=LEG, about=name)
    yield replace(plain, id=f"{name}/text", stop=(answer.text[start : start + LETTERS],))
    count = len(answer.tokens) or answer.completion_tokens or 0
    if count > 4:
        yield replace(plain, id=f"{name}/length", max_tokens=rng.randrange(count // 4, 3 * count // 4))
    if offer.ids and len(answer.tokens) > 4:
        token = answer.tokens[rng.randrange(len(answer.tokens) // 4, 3 * len(answer.tokens) // 4)]
        yield replace(plain, id=f"{name}/token", stop_token_ids=(token,))


def ends(transcript: Transcript, noise: Noise) -> Finding:
    """Whether each ended answer is the beginning of the whole one, up to its end and no further."""
    check = "ends"
    wrong: dict[str, str] = {}
    ties = compared = unknown = 0
    for exchange in transcript.of(LEG):
        whole = transcript.exchanges.get(exchange.ask.about or "")
        if whole is None or {whole.answer.fate, exchange.answer.fate} != {Fate.COMPLETE}:
            continue
        compared += 1
        index = _parting(whole, exchange)
        if index is not None:
            gap = whole.answer.places[index].gap if index < len(whole.answer.places) else None
            if gap is not None and gap <= noise.gap and noise.tolerance <= MOST:
                ties += 1
            elif may_be_tie(whole.answer, exchange.answer, index):
                unknown += 1
            else:
                wrong[exchange.ask.id] = f"token {index} is not that of the whole answer"
        elif not whole.answer.text.startswith(exchange.answer.text) and not whole.answer.tokens:
            unknown += 1
        elif told := _end(whole, exchange):
            wrong[exchange.ask.id] = told
    if not compared:
        return Finding(
            check=check, verdict=Verdict.INCONCLUSIVE, told="no answer was ended: the audit ended before"
        )
    if not wrong and (unknown or (ties and not noise.is_measured)):
        return undecided(check, ties + unknown, compared)
    good = Verdict.NEAR_TIE if ties else Verdict.PASS
    first = next(iter(wrong.items()), None)
    return Finding(
        check=check,
        verdict=Verdict.FAIL if wrong else good,
        told="answers do not end where they should"
        if wrong
        else "answers end where they should, and say the same",
        hit=tuple(wrong),
        of=compared,
        worst=": ".join(first) if first else "",
    )


def _parting(whole: Exchange, exchange: Exchange) -> int | None:
    """The first place where the tokens differ, as far as both go."""
    pairs = zip(whole.answer.tokens, exchange.answer.tokens, strict=False)
    return next((i for i, (must, is_) in enumerate(pairs) if must != is_), None)


def _end(whole: Exchange, exchange: Exchange) -> str:
    """What is wrong with where it ends; nothing where it is right."""
    ask, answer, must = exchange.ask, exchange.answer, whole.answer
    if ask.stop:
        expected = must.text.partition(ask.stop[0])[0]
        if answer.text != expected:
            return (
                f"stops at {ask.stop[0]!r}: saw {answer.text[-40:]!r}, expected {expected[-40:]!r} at the end"
            )
        return "" if answer.finish_reason == "stop" else f"ended by {answer.finish_reason}, expected stop"
    if ask.stop_token_ids:
        stops = (n for n, token in enumerate(must.tokens, start=1) if token == ask.stop_token_ids[0])
        length = next(stops, len(must.tokens))
        reasons = ("stop",)
    else:
        length = ask.max_tokens
        reasons = ("length",)
    seen = len(answer.tokens) or answer.completion_tokens
    if seen is not None and seen not in (length, length - 1 if ask.stop_token_ids else length):
        return f"{seen} tokens, expected {length}"
    return (
        "" if answer.finish_reason in reasons else f"ended by {answer.finish_reason}, expected {reasons[0]}"
    )
