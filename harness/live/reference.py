"""Two servers with the same weights, the second without speculation: the same tokens, the same log-probabilities."""

from __future__ import annotations

from harness.exchange import Fate
from harness.live.crowd import first_difference, may_be_tie, undecided
from harness.live.ends import LEG as ENDED
from harness.live.finding import Finding
from harness.live.noise import Noise
from harness.live.transcript import Transcript
from harness.verdict import Verdict


def reference(transcript: Transcript, other: Transcript | None, noise: Noise) -> Finding | None:
    """Every subject's answers on one server against its answer alone on the other; ``None`` without another."""
    if other is None:
        return None
    check = "reference"
    wrong: dict[str, str] = {}
    ties = compared = unknown = 0
    for exchange in transcript.generated:
        theirs = other.exchanges.get(exchange.ask.about or exchange.ask.id)
        if theirs is None or theirs.ask.leg != "solo" or exchange.ask.leg == ENDED:
            continue
        if {exchange.answer.fate, theirs.answer.fate} != {Fate.COMPLETE}:
            continue
        if exchange.answer.prompt != theirs.answer.prompt or exchange.ask.text != theirs.ask.text:
            continue  # another tokenizer, or another question: it is another model, or offers other things
        compared += 1
        mine, must = exchange.answer, theirs.answer
        index = first_difference(must, mine, noise.tolerance)
        if index is None:
            continue
        gap = must.places[index].gap if index < len(must.places) else None
        swapped = mine.tokens[index : index + 1] != must.tokens[index : index + 1]
        if swapped and gap is not None and gap <= noise.gap:
            ties += 1
        elif may_be_tie(must, mine, index):
            unknown += 1
        else:
            wrong[exchange.ask.id] = f"{exchange.ask.id}, token {index}: differs from the reference"
    if not compared:
        return Finding(
            check=check, verdict=Verdict.INCONCLUSIVE, told="no question was put to both in the same tokens"
        )
    if not wrong and (unknown or (ties and not noise.is_measured)):
        return undecided(check, ties + unknown, compared)
    good = Verdict.NEAR_TIE if ties else Verdict.PASS
    return Finding(
        check=check,
        verdict=Verdict.FAIL if wrong else good,
        told="answers differ from those of the reference" if wrong else f"as the reference; {ties} near ties",
        hit=tuple(wrong),
        of=compared,
        worst=next(iter(wrong.values()), ""),
    )
