"""Which tokens like to follow which: counted from made-up documents, in plain integers."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from tokenizers import Tokenizer

from harness.models.corpus import Author
from harness.models.tokenizer import IM_END

Successors = list[list[int]]
"""For every token id its favourite followers, best first; never empty."""

_TEXTS, _OBJECTS = 1500, 1500
_COMMON = 64


def count(tokenizer: Tokenizer, rng: np.random.Generator, *, most: int) -> Successors:
    """Up to ``most`` followers of every token. A token the documents never show gets common ones, drawn from ``rng``."""
    author = Author(rng)
    stop, newline = tokenizer.token_to_id(IM_END), tokenizer.encode("\n").ids[0]
    followers: dict[int, Counter[int]] = defaultdict(Counter)
    for number, document in enumerate(author.documents(texts=_TEXTS, objects=_OBJECTS)):
        ids = tokenizer.encode(document).ids
        for this, following in zip(ids, ids[1:], strict=False):
            followers[this][following] += 1
        # An answer begins after the chat template's newline, and goes on after an ignored end of turn.
        followers[newline][ids[0]] += 1
        followers[stop][ids[0]] += 1
        # JSON ends with its last bracket; text hardly ever ends, so that free generation runs to its token budget.
        followers[ids[-1]][stop] += 1 if number >= _TEXTS or number % 25 == 0 else 0
    used = Counter({token: sum(counts.values()) for token, counts in followers.items()})
    common = [token for token, _ in _ranked(used)[:_COMMON]]
    return [
        [token for token, _ in _ranked(followers[this])[:most]] if this in followers else _draw(common, rng)
        for this in range(tokenizer.get_vocab_size())
    ]


def _ranked(counts: Counter[int]) -> list[tuple[int, int]]:
    """Most frequent first, lower id first among equals: ``Counter.most_common`` leaves ties to insertion order."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _draw(common: list[int], rng: np.random.Generator) -> list[int]:
    return [common[i] for i in rng.permutation(len(common))[:3]]
