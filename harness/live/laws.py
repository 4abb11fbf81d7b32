"""A token's log-probability under a grammar, from the law of all tokens: renormalised over what may follow.

Servers mask before they compute log-probabilities (vLLM) or behind (ours); only the best tokens of a law are known, so
a renormalised value is an interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.exchange import Place
from harness.oracle.grammar import Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where a log-probability must lie."""

    low: float
    high: float

    def distance(self, value: float) -> float:
        """How far outside; NaN stays NaN."""
        return max(self.low - value, value - self.high, 0.0) if value == value else value


def free(place: Place) -> Interval:
    """Without a grammar, or where the mask comes later."""
    return Interval(low=place.logprob, high=place.logprob)


def renormalised(place: Place, allowed: Mask) -> Interval:
    """Tokens that are not among the best share what is left: all of it may be allowed, or nothing."""
    known = {int(token): _probability(value) for token, value in place.best.items()}
    legal = sum(p for token, p in known.items() if _is_allowed(allowed, token))
    unknown = (
        0.0
        if all(not allowed[t] or t in known for t in range(len(allowed)))
        else max(0.0, 1 - sum(known.values()))
    )
    least = max(_probability(place.logprob), math.ulp(0.0))  # -9999 stands for what cannot be
    return Interval(
        low=place.logprob - math.log(max(legal + unknown, least)),
        high=place.logprob - math.log(max(legal, least)),
    )


def better(place: Place, allowed: Mask | None) -> float:
    """How much likelier than the token the best legal one is that is known; 0 where the token is the best."""
    others = [
        value for token, value in place.best.items() if allowed is None or _is_allowed(allowed, int(token))
    ]
    return max([value - place.logprob for value in others if value > place.logprob], default=0.0)


def _probability(logprob: float) -> float:
    """1 where a server claims more."""
    return math.exp(min(logprob, 0.0))


def _is_allowed(allowed: Mask, token: int) -> bool:
    """A token that the tokenizer does not have is not."""
    return token < len(allowed) and bool(allowed[token])
