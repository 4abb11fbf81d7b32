"""What a server's own log-probabilities are worth: the same text scored twice, alone and in a crowd.

Only prompts are scored, which no speculation touches; so noise is not measured on what is under suspicion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import numpy as np

from harness.exchange import Exchange, Fate
from harness.live.finding import Finding
from harness.live.transcript import Transcript
from harness.verdict import Verdict

FACTOR = 10.0
"""A difference counts from so many times the usual noise on, of which one place in a hundred has more ..."""
RARE = 3.0
"""... and from so many times the largest, which an expert makes that changes at a near tie."""
LEAST = 1e-4
"""A server whose noise is nil computes in float32, whose logits of about 10 are known to 1e-6: 100 times that."""
MOST = 0.5
"""Above this nothing could be said: a token that is 1.6 times as likely is another law."""
GRIDS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125)
"""Steps of bfloat16 between 0.5 and 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """``alone`` and ``together``: the largest difference of a text's scoring alone from another one alone, and from one
    among others; ``usual`` is what 99 places in 100 stay below. ``grid``: the step of the server's logits where they
    are rounded, 0 where they are not."""

    compared: int
    alone: float
    together: float
    usual: float
    grid: float

    @property
    def is_measured(self) -> bool:
        """Whether any text was scored twice."""
        return self.compared > 0

    @property
    def company_matters(self) -> bool:
        """Among others a text has another law altogether, and alone it has not: that is no noise."""
        return self.together > MOST and self.alone <= MOST / FACTOR

    @property
    def tolerance(self) -> float:
        """From where on a difference is none of noise, of the server's rounding, or of float32. Where none was
        measured, only what no noise explains is a difference."""
        if not self.is_measured:
            return MOST
        if self.company_matters:
            return max(FACTOR * self.alone, FACTOR * self.grid, LEAST)
        return max(FACTOR * self.usual, RARE * max(self.alone, self.together), FACTOR * self.grid, LEAST)

    @property
    def gap(self) -> float:
        """Two tokens that are closer than this may change places: each of them is off by the tolerance at most."""
        return 2 * self.tolerance


def measure(transcript: Transcript) -> Noise:
    """From the scorings and the spacing of the laws."""
    alone = differences(transcript, "score again")
    together = differences(transcript, "score together")
    return Noise(
        compared=len(alone) + len(together),
        alone=max(alone, default=0.0),
        together=max(together, default=0.0),
        usual=float(np.quantile(alone + together, 0.99)) if alone or together else 0.0,
        grid=_grid(transcript),
    )


def judged(noise: Noise, transcript: Transcript) -> Finding:
    """Whether anything can be measured with it; and a prompt's law must not depend on the company it is computed in."""
    check = "noise"
    if not noise.compared:
        why = transcript.offer.lacks.get(
            "prompt_logprobs", "the audit ended before anything was scored twice"
        )
        supported = Verdict.INCONCLUSIVE if transcript.offer.prompt_logprobs else Verdict.UNSUPPORTED
        return Finding(check=check, verdict=supported, told=why)
    if noise.company_matters:
        told = (
            f"the same prompt has another law among others: {noise.together:.2g} off, alone {noise.alone:.1e}"
        )
        return Finding(check=check, verdict=Verdict.FAIL, told=told)
    rounding = f", logits in steps of {noise.grid:g}" if noise.grid else ""
    told = (
        f"{max(noise.alone, noise.together):.1e} between scorings of {noise.compared} places{rounding}: "
        f"{noise.tolerance:.1e} is a difference"
    )
    fine = noise.tolerance <= MOST
    return Finding(check=check, verdict=Verdict.PASS if fine else Verdict.INCONCLUSIVE, told=told)


def differences(transcript: Transcript, leg: str) -> list[float]:
    """At each place of each text that was scored alone and in ``leg``."""
    return [
        abs(one.logprob - other.logprob)
        for first, second in _pairs(transcript, leg)
        for one, other in zip(first.answer.prompt_places, second.answer.prompt_places, strict=False)
    ]


def _pairs(transcript: Transcript, leg: str) -> Iterator[tuple[Exchange, Exchange]]:
    alone = {e.ask.prompt: e for e in transcript.of("score") if e.answer.fate is Fate.COMPLETE}
    for exchange in transcript.of(leg):
        if exchange.ask.prompt in alone and exchange.answer.fate is Fate.COMPLETE:
            yield alone[exchange.ask.prompt], exchange


def _grid(transcript: Transcript) -> float:
    """Gaps between log-probabilities of one place are gaps between logits. In float32 they are anything; where the
    logits were bfloat16, they are whole numbers of steps."""
    gaps = [
        gap
        for exchange in transcript.of("score")
        for place in exchange.answer.prompt_places
        if (gap := place.gap) is not None and isfinite(gap)
    ]
    for grid in GRIDS:
        whole = sum(abs(gap / grid - round(gap / grid)) < 1e-3 for gap in gaps)
        if gaps and whole > 0.9 * len(gaps):
            return grid
    return 0.0
