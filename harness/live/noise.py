"""What a server's own log-probabilities are worth: the same text scored twice, alone and in a crowd.

Only prompts are scored, which no speculation touches; so noise is not measured on what is under suspicion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.exchange import Exchange, Fate
from harness.live.finding import Finding
from harness.live.transcript import Transcript
from harness.verdict import Verdict

FACTOR = 10.0
"""A difference counts from so many times the noise on."""
LEAST = 1e-4
"""A server whose noise is nil computes in float32, whose logits of about 10 are known to 1e-6: 100 times that."""
MOST = 0.5
"""Above this nothing could be said: a token that is 1.6 times as likely is another law."""
GRIDS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125)
"""Steps of bfloat16 between 0.5 and 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """``scored``: the largest difference between two scorings of one text. ``grid``: the step of the server's logits,
    where they are rounded; 0 where they are not. ``tolerance``: from where on a log-probability is another one."""

    compared: int
    scored: float
    grid: float

    @property
    def tolerance(self) -> float:
        """Ten times the noise; a logit that is rounded is known to half a step, and two of them are compared."""
        return max(FACTOR * self.scored, 2 * FACTOR * self.grid / 2 if self.grid else 0.0, LEAST)

    @property
    def gap(self) -> float:
        """Two tokens that are closer than this may change places: both of them are off by the tolerance at most."""
        return 2 * self.tolerance


def measure(transcript: Transcript) -> Noise:
    """From the scorings alone and together, and the spacing of the laws."""
    differences = [
        abs(one.logprob - other.logprob)
        for first, second in _pairs(transcript)
        for one, other in zip(first.answer.prompt_places, second.answer.prompt_places, strict=False)
    ]
    return Noise(compared=len(differences), scored=max(differences, default=0.0), grid=_grid(transcript))


def judged(noise: Noise, transcript: Transcript) -> Finding:
    """Whether anything can be measured with it."""
    if not noise.compared:
        why = transcript.offer.lacks.get(
            "prompt_logprobs", "the audit ended before anything was scored twice"
        )
        supported = Verdict.INCONCLUSIVE if transcript.offer.prompt_logprobs else Verdict.UNSUPPORTED
        return Finding(check="noise", verdict=supported, told=why)
    rounding = f", logits in steps of {noise.grid:g}" if noise.grid else ""
    told = (
        f"{noise.scored:.1e} between two scorings of {noise.compared} places{rounding}: "
        f"{noise.tolerance:.1e} is a difference"
    )
    fine = noise.tolerance <= MOST
    return Finding(check="noise", verdict=Verdict.PASS if fine else Verdict.INCONCLUSIVE, told=told)


def _pairs(transcript: Transcript) -> Iterator[tuple[Exchange, Exchange]]:
    alone = {e.ask.about: e for e in transcript.of("score") if e.answer.fate is Fate.COMPLETE}
    for exchange in transcript.of("score together"):
        if exchange.ask.about in alone and exchange.answer.fate is Fate.COMPLETE:
            yield alone[exchange.ask.about], exchange


def _grid(transcript: Transcript) -> float:
    """Gaps between log-probabilities of one place are gaps between logits. In float32 they are anything; where the
    logits were bfloat16, they are whole numbers of steps."""
    gaps = [
        gap
        for exchange in transcript.of("score")
        for place in exchange.answer.prompt_places
        if (gap := place.gap) is not None
    ]
    for grid in GRIDS:
        whole = sum(abs(gap / grid - round(gap / grid)) < 1e-3 for gap in gaps)
        if gaps and whole > 0.9 * len(gaps):
            return grid
    return 0.0
