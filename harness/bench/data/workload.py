"""Named workloads, and the digest by which two runs know that they asked the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random

from harness.bench.data.ask import Ask
from harness.bench.data.drawn import Lengths, drawn
from harness.bench.data.guides import bundled, guided
from harness.bench.data.vocabulary import Vocabulary
from harness.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``concurrency`` requests at once, closed loop. ``guided``: share with one of the bundled schemas."""

    name: str
    requests: int
    concurrency: int
    lengths: Lengths
    guided: float = 0.0

    @property
    def longest(self) -> int:
        """Tokens that the model has to have room for."""
        most = 1 + self.lengths.ratio
        return int(self.lengths.prompt * most) + int(self.lengths.output * most)

    def asks(self, vocabulary: Vocabulary, seed: int, *, as_text: bool = False) -> list[Ask]:
        """The same for the same seed and tokenizer, whatever ``guided`` is: prompts have a generator of their own."""
        asks = drawn(vocabulary, self.requests, self.lengths, Random(f"{seed} prompts"), as_text=as_text)
        if not self.guided:
            return asks
        return guided(asks, bundled(), Random(f"{seed} guides"), share=self.guided)


PRESETS = {
    workload.name: workload
    for workload in (
        # The thread of vllm#24957: 100 requests, concurrency 10, 204,357 tokens in and 97,082 out.
        Workload(name="pr24957", requests=100, concurrency=10, lengths=Lengths(prompt=2044, output=971)),
        Workload(name="quick", requests=16, concurrency=4, lengths=Lengths(prompt=64, output=64)),
    )
}


def preset(name: str) -> Workload:
    """UsageError lists what there is."""
    if name not in PRESETS:
        raise UsageError(f"saw workload {name!r}, expected one of {', '.join(PRESETS)}")
    return PRESETS[name]


def digest(asks: Sequence[Ask]) -> str:
    """16 hex digits over everything that is asked, order included: part of a run's fingerprint."""
    told = hashlib.sha256()
    for ask in asks:
        guide = None if ask.guide is None else asdict(ask.guide) | {"kind": ask.guide.kind.value}
        told.update(
            json.dumps(
                [ask.id, ask.prompt, ask.max_tokens, ask.ignore_eos, ask.at, ask.seed, guide], sort_keys=True
            ).encode()
        )
    return told.hexdigest()[:16]
