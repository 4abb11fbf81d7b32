"""The tokens that generated scenarios are written with."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from harness.lab import Lab

LETTERS, DIGITS = "abcdefghijklmnop", "01234567"
TEXTS = (
    "The green garden",
    "In winter the bright harbor holds",
    "When the heavy ladder",
    "A quiet river near the quiet river near",
    "Return a JSON object for the garden.",
    "Which color is the lantern? Answer in JSON:",
)
"""Beginnings that a tiny model goes on from with some certainty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alphabet:
    """What one kind of script is written with. The stop token and the two tokens that spell the stop text occur
    nowhere but where they are meant."""

    tokens: tuple[int, ...]
    stop: int
    stop_text: str
    spelled: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Token ids: a guided script writes digits, so a letter is what its grammar refuses."""

    letters: Alphabet
    digits: Alphabet
    texts: tuple[tuple[int, ...], ...]
    reasoning_end: int
    end: int

    @staticmethod
    def of(lab: Lab) -> Words:
        """Those of the lab's model."""

        def tokens(text: str) -> tuple[int, ...]:
            return tuple(lab.encode(character)[0] for character in text)

        def alphabet(usual: str, stop: str, stop_text: str) -> Alphabet:
            return Alphabet(
                tokens=tokens(usual), stop=tokens(stop)[0], stop_text=stop_text, spelled=tokens(stop_text)
            )

        return Words(
            letters=alphabet(LETTERS, "z", "st"),
            digits=alphabet(DIGITS, "9", "89"),
            texts=tuple(lab.encode(text) for text in TEXTS),
            reasoning_end=tokens("#")[0],
            end=lab.end_token,
        )

    def prompt(self, random: Random, length: int) -> tuple[int, ...]:
        """A prompt of ``length`` letters."""
        return tuple(random.choice(self.letters.tokens) for _ in range(length))
