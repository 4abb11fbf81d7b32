"""Made-up text and JSON: the tokenizer is trained on it and the tiny model's successor tables are counted from it.

Everything is drawn from one numpy Generator, by integer draws only: one seed gives the same documents anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

ADJECTIVES = (
    "green quiet small bright old heavy open plain round sharp slow early distant careful warm hollow fast new long "
    "short cold deep broken simple empty narrow gentle silver"
).split()
NOUNS = (
    "engine river window garden signal market letter bridge kernel winter ladder harbor mirror copper lantern "
    "captain needle orchard pencil castle teacher valley record planet basket morning journey island cache token "
    "model batch request server forest painter station mountain library kitchen doctor village tower clock"
).split()
VERBS = (
    "follows carries watches measures holds finds repairs crosses remembers paints opens weighs answers writes reads "
    "builds keeps moves turns counts drops"
).split()
PREPOSITIONS = "near under behind over beside through beyond before after inside around against".split()
ADVERBS = "again slowly today often quietly twice together later always never soon here".split()
OPENERS = (
    "The",
    "A",
    "This",
    "Every",
    "One",
    "Then the",
    "Here the",
    "In winter the",
    "When the",
    "Because the",
)
REQUESTS = (
    "Write a short story about the", "List three facts about the", "Explain how the", "What is the",
    "Please describe the", "Return a JSON object for the", "Give me the name of the", "Which color is the",
    "Tell me about the",
)  # fmt: skip

WORD_KEYS = (
    "name city color status type kind title label unit country language category level answer tool reason location "
    "email sentiment priority summary state role mode format query function method source target"
).split()
NUMBER_KEYS = (
    "id age count price score year size index total width height rank temperature quantity amount confidence number "
    "month day limit offset"
).split()
NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 25, 40, 68, 100)
FLAG_KEYS = "ok active done valid enabled found success visible".split()
LIST_KEYS = "tags items values colors parts steps names".split()
NESTED_KEYS = ("result", "data", "address", "arguments", "user", "parameters")
WORD_VALUES = (
    "red blue green yellow open closed pending ready done failed low medium high yes no positive negative neutral "
    "Paris Berlin Oslo Lima Tokyo London Anna Boris Clara David Emma apple banana cherry orange north south east west "
    "kg cm search cat dog celsius small large true false get set user admin error warning info"
).split()

# How often the first, second, ... favourite is taken: skewed, so that a table of a few successors says most of it.
_FAVOUR = (0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3)


class Author:
    """Writes documents in which every word has its own few favourite followers."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._orders: dict[tuple[str, str], list[str]] = {}

    def documents(self, *, texts: int, objects: int) -> Iterator[str]:
        """``texts`` paragraphs and ``objects`` JSON values, as an assistant would answer them."""
        for _ in range(texts):
            yield self.paragraph(sentences=4)
        for _ in range(objects):
            yield self.json_object()

    def paragraph(self, *, sentences: int) -> str:
        return " ".join(self._sentence() for _ in range(sentences))

    def json_object(self) -> str:
        """One JSON object of two to four members, written as ``json.dumps`` writes it."""
        return json.dumps(self._members(depth=0))

    def _sentence(self) -> str:
        opener = self._any(OPENERS if self._rng.integers(5) else REQUESTS)
        adjective = self._after(opener.split()[-1], "adjective", ADJECTIVES)
        noun = self._after(adjective, "noun", NOUNS)
        verb = self._after(noun, "verb", VERBS)
        article = self._after(verb, "article", ["the", "a", "every", "another"])
        target = self._after(article, "noun", NOUNS)
        if self._rng.integers(3) == 0:
            return f"{opener} {adjective} {noun} {verb} {article} {target} {self._after(target, 'adverb', ADVERBS)}."
        preposition = self._after(target, "preposition", PREPOSITIONS)
        place = self._after(preposition, "adjective", ADJECTIVES)
        things = self._after(place, "noun", NOUNS) + "s"
        return f"{opener} {adjective} {noun} {verb} {article} {target} {preposition} {place} {things}."

    def _members(self, *, depth: int) -> dict[str, object]:
        members: dict[str, object] = {}
        previous = "{"
        for _ in range(int(self._rng.integers(2, 5))):
            kind = int(self._rng.integers(10))
            if kind < 5:
                key = self._after(previous, "key", WORD_KEYS)
                members[key] = self._after(key, "value", WORD_VALUES)
            elif kind < 7:
                key = self._after(previous, "number", NUMBER_KEYS)
                members[key] = self._any(NUMBERS)
            elif kind < 8:
                key = self._any(FLAG_KEYS)
                members[key] = bool(self._rng.integers(2))
            elif kind < 9 or depth:
                key = self._any(LIST_KEYS)
                members[key] = [
                    self._after(key, "value", WORD_VALUES) for _ in range(int(self._rng.integers(2, 5)))
                ]
            else:
                key = self._any(NESTED_KEYS)
                members[key] = self._members(depth=depth + 1)
            previous = key
        return members

    def _after(self, previous: str, role: str, words: list[str]) -> str:
        """A word of this role; every previous word ranks the candidates in its own order."""
        order = self._orders.setdefault(
            (previous, role), [words[i] for i in self._rng.permutation(len(words))]
        )
        return order[min(self._any(_FAVOUR), len(order) - 1)]

    def _any(self, options: Sequence[T]) -> T:
        return options[int(self._rng.integers(len(options)))]
