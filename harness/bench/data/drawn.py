"""Random prompts of exact length, and prompts that share their beginnings."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from harness.bench.data.ask import Ask
from harness.bench.data.vocabulary import Vocabulary
from harness.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens in and out; ``ratio`` r draws each from [(1 - r) x, (1 + r) x], 0 is exact. As vLLM's random dataset."""

    prompt: int
    output: int
    ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.prompt < 1 or self.output < 1 or not 0 <= self.ratio < 1:
            raise UsageError(
                f"saw {self.prompt} tokens in, {self.output} out, ratio {self.ratio}, expected 1 or more, and 0 to 1"
            )

    def draw(self, dice: Random) -> tuple[int, int]:
        """(in, out) of one request."""
        return self._one(dice, self.prompt), self._one(dice, self.output)

    def _one(self, dice: Random, length: int) -> int:
        spread = int(length * self.ratio)
        return max(1, dice.randint(length - spread, length + spread))


def drawn(
    vocabulary: Vocabulary, n: int, lengths: Lengths, dice: Random, *, as_text: bool = False
) -> list[Ask]:
    """``n`` requests of random tokens, as ids or (for a chat endpoint) as text of exactly that many tokens.

    No two prompts are the same where the vocabulary allows it: a prefix cache must not help (vllm#10753).
    """
    asks, known = [], set()
    for place in range(n):
        size, out = lengths.draw(dice)
        for _ in range(10):
            prompt = vocabulary.text(dice, size) if as_text else vocabulary.draw(dice, size)
            if prompt not in known:
                break
        known.add(prompt)
        asks.append(
            Ask(
                id=f"random-{place:05d}",
                prompt=prompt,
                prompt_tokens=size,
                max_tokens=out,
                ignore_eos=True,
            )
        )
    return asks


def repeated_prefixes(
    vocabulary: Vocabulary,
    n: int,
    dice: Random,
    *,
    prefixes: int,
    prefix_tokens: int,
    suffix_tokens: int,
    output_tokens: int,
) -> list[Ask]:
    """``n`` requests over ``prefixes`` shared beginnings, each with an end of its own, in random order.

    Every beginning is used as often as any other, give or take one.
    """
    if min(n, prefixes, prefix_tokens, suffix_tokens) < 1:
        raise UsageError("saw a count below 1, expected requests, prefixes and their tokens to be 1 or more")
    heads = [vocabulary.draw(dice, prefix_tokens) for _ in range(prefixes)]
    order = [place % prefixes for place in range(n)]
    dice.shuffle(order)
    return [
        Ask(
            id=f"prefix-{head:03d}-{place:05d}",
            prompt=heads[head] + vocabulary.draw(dice, suffix_tokens),
            prompt_tokens=prefix_tokens + suffix_tokens,
            max_tokens=output_tokens,
            ignore_eos=True,
        )
        for place, head in enumerate(order)
    ]
