"""Which tokens like to follow which: counted from made-up documents, in plain integers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from harness.models.corpus import Author
from harness.models.tokenizer import IM_END, special_ids

_TEXTS, _OBJECTS = 1500, 1500
_COMMON, _GLUE = 64, 32


class Follower(NamedTuple):
    """A token that likes to come next, and how much compared with the favourite (1.0)."""

    token: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessorTable:
    """What the documents say about every token id of the vocabulary."""

    followers: list[list[Follower]]
    """Favourites of every token, best first; never empty."""
    common: list[bool]
    """The few tokens that everything is made of: quotes, commas, articles."""
    handicap: list[float]
    """1 for a token that the documents never show, or that is only white space; 0 for all others."""


def count(tokenizer: Tokenizer, rng: np.random.Generator, *, most: int) -> SuccessorTable:
    """Counts up to ``most`` followers of every token.

    A token that the documents never show gets common ones, so that any prompt soon leads back to familiar text.
    """
    author = Author(rng)
    [stop], [newline] = special_ids(tokenizer, IM_END), tokenizer.encode("\n").ids
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for number, document in enumerate(author.documents(texts=_TEXTS, objects=_OBJECTS)):
        ids = tokenizer.encode(document).ids
        for this, following in pairwise(ids):
            counts[this][following] += 1
        # An answer begins after the chat template's newline, and goes on after an ignored end of turn.
        counts[newline][ids[0]] += 1
        counts[stop][ids[0]] += 1
        # JSON ends with its last bracket; text hardly ever ends, so that free generation runs to its token budget.
        if number >= _TEXTS or number % 25 == 0:
            counts[ids[-1]][stop] += 1
    used: Counter[int] = sum(counts.values(), Counter())
    common = [token for token, _ in _ranked(used)[:_COMMON]]
    vocabulary = range(tokenizer.get_vocab_size())
    return SuccessorTable(
        followers=[
            _favourites(counts[this], most) if this in counts else _draw(common, rng) for this in vocabulary
        ],
        common=[this in common[:_GLUE] for this in vocabulary],
        handicap=[float(this not in used) + float(tokenizer.decode([this]).isspace()) for this in vocabulary],
    )


def _favourites(counts: Counter[int], most: int) -> list[Follower]:
    """Weights go with the square root of the counts: exact arithmetic, and close rivals stay close."""
    ranked = _ranked(counts)[:most]
    return [Follower(token, math.sqrt(times / ranked[0][1])) for token, times in ranked]


def _ranked(counts: Counter[int]) -> list[tuple[int, int]]:
    """Most frequent first, lower id first among equals: ``Counter.most_common`` leaves ties to insertion order."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _draw(common: list[int], rng: np.random.Generator) -> list[Follower]:
    return [
        Follower(common[i], weight)
        for i, weight in zip(rng.permutation(len(common)), (1.0, 0.75, 0.5), strict=False)
    ]
