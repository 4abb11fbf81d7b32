"""What a benchmark sends, in every cell the same: one workload, its seeds, its pace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import numpy as np

from harness.bench.calls import calls_of
from harness.bench.data.ask import Ask
from harness.bench.data.drawn import Lengths
from harness.bench.data.vocabulary import Vocabulary
from harness.bench.data.workload import Workload
from harness.bench.load.arrivals import poisson
from harness.bench.load.call import Call, warm_up_calls
from harness.bench.load.seeds import Seeds
from harness.bench.load.shape import Closed, Open, Shape

USUAL = Workload(name="usual", requests=48, concurrency=4, lengths=Lengths(prompt=64, output=128))
"""All four cells end within 4 minutes on 2 cores with the tiny model."""
BRIEF = Workload(name="brief", requests=16, concurrency=4, lengths=Lengths(prompt=64, output=64))
"""For runs that are repeated."""
TURNS = 4
WARM_UP_TOKENS = 16
"""Of a warm-up answer: by then every batch size, row shape and grammar of the run has been seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``rate``: requests per second, Poisson; ``None``: a closed loop of the workload's concurrency.

    ``most_in_flight`` limits an open loop. ``seed`` is the printed one; arrivals, prompts and sampling have their own.
    """

    workload: Workload
    seed: int = 0
    rate: float | None = None
    most_in_flight: int | None = None
    as_chat: bool = False

    def asks(self, vocabulary: Vocabulary, *, guided: bool) -> list[Ask]:
        """The same prompts under the same ids with and without a guide."""
        load = replace(self.workload, guided=1.0 if guided else 0.0)
        return load.asks(vocabulary, Seeds.of(self.seed).prompts, as_text=self.as_chat)

    def calls(self, asks: Sequence[Ask], model: str) -> tuple[Call, ...]:
        """Greedy, and with token ids: answers of two cells are compared by them."""
        return calls_of(asks, model, as_chat=self.as_chat, temperature=0, return_token_ids=True)

    def warm_up(self, asks: Sequence[Ask], model: str) -> tuple[Call, ...]:
        """One short answer for every guide, and as many as run at a time; the run's prompts in another order."""
        by_guide = {ask.guide.name if ask.guide else "": ask for ask in reversed(asks)}
        first = {ask.id: ask for ask in by_guide.values()}
        others = [ask for ask in asks if ask.id not in first]
        missing = max(0, self.workload.concurrency - len(first))
        chosen = [*first.values(), *others[:missing]]
        short = [replace(ask, max_tokens=min(ask.max_tokens, WARM_UP_TOKENS)) for ask in chosen]
        return tuple(warm_up_calls(self.calls(short, model), len(short), Random(f"{self.seed} warm-up")))

    @property
    def at_a_time(self) -> int:
        """Requests that run together, as far as it is known."""
        return self.most_in_flight or self.workload.concurrency

    @property
    def turns(self) -> int:
        """In how many shares cells are asked, each cell in turn, so that a slow minute is in all of them.

        A share has twice as many requests as run at a time, or more. Arrivals of an open loop are one share.
        """
        shares = self.workload.requests // (2 * self.workload.concurrency)
        return max(1, min(TURNS, shares)) if self.rate is None else 1

    @property
    def shape(self) -> Shape:
        """When requests are sent."""
        if self.rate is None:
            return Closed(concurrency=self.workload.concurrency)
        dice = np.random.default_rng(Seeds.of(self.seed).arrivals)
        times = poisson(self.rate, self.workload.requests, dice)
        return Open(times=times.tolist(), most_in_flight=self.most_in_flight)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; ``kept`` reads it."""
        return asdict(self)
