"""One printed seed, and three that follow from it: changing what one of them draws leaves the others' draws alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds:
    """For the moments of requests, for which prompts they have, and for the sampling of the server."""

    arrivals: int
    prompts: int
    sampling: int

    @classmethod
    def of(cls, seed: int) -> Seeds:
        """The three of a run's seed."""
        arrivals, prompts, sampling = np.random.SeedSequence(seed).generate_state(3, dtype=np.uint32)
        return cls(arrivals=int(arrivals), prompts=int(prompts), sampling=int(sampling))

    def for_request(self, place: int) -> int:
        """The ``seed`` field of one request's body, between 0 and 2**31 - 1: some servers take no more."""
        return int(np.random.SeedSequence([self.sampling, place]).generate_state(1)[0]) >> 1
