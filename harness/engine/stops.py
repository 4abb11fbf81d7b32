"""Where an answer ends inside the tokens that a verify step commits: a stop token, a stop text, the last allowed one.

A plain step adds one token and asks once. A verify step adds a run, and its end may lie anywhere in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from harness.engine.grammars import Vocabulary

# Decisions: where the known bugs live.


def tokens_compared(committed: int) -> range:
    """Which of the committed tokens are held against the stop tokens: all of them (transformers#47912)."""
    return range(committed)


def texts_searched(committed: int) -> range:
    """Behind which of the committed tokens a stop text may be complete: all of them (sglang#23802)."""
    return range(committed)


def looks_for_stops(committed: int, room: int) -> bool:
    """Whether a stop is looked for in a run that reaches the last allowed token: it may come first (sglang#31599)."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDecisions:
    """Every choice of this module that can be wrong; a fault is ``dataclasses.replace(CORRECT_STOPS, ...)``."""

    tokens_compared: Callable[[int], range] = tokens_compared
    texts_searched: Callable[[int], range] = texts_searched
    looks_for_stops: Callable[[int, int], bool] = looks_for_stops


CORRECT_STOPS = StopDecisions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How many of the committed tokens belong to the answer, and whether a stop ends it with the last of them."""

    tokens: int
    stops: bool


class Stops:
    """Finds the ends of answers written in one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, decisions: StopDecisions = CORRECT_STOPS) -> None:
        self._pieces: list[bytes] = vocabulary.info.decoded_vocab  # special tokens have no text
        self._decisions = decisions

    def cut(
        self,
        answer: Sequence[int],
        committed: Sequence[int],
        room: int,
        stop_ids: Collection[int] = (),
        texts: Sequence[str] = (),
    ) -> Cut:
        """Up to and with the first token that ends the answer.

        ``answer`` are its tokens before this step, ``room`` is how many more it may have. A stop text counts from the
        answer's beginning on, never in the prompt, and may begin in any token before the one that completes it.
        """
        count = len(committed)
        places = range(min(count, room) if self._decisions.looks_for_stops(count, room) else 0)
        compared, searched = self._decisions.tokens_compared(count), self._decisions.texts_searched(count)
        for i in places:
            stops = i in compared and committed[i] in stop_ids
            if stops or (i in searched and self._completes(answer, committed[: i + 1], texts)):
                return Cut(tokens=i + 1, stops=True)
        return Cut(tokens=min(count, room), stops=False)

    def _completes(self, answer: Sequence[int], committed: Sequence[int], texts: Sequence[str]) -> bool:
        """Whether the last token completes one of the texts."""
        before, last = self._text([*answer, *committed[:-1]]), self._text(committed[-1:])
        stops = (text.encode() for text in texts)
        return any(stop in before[max(len(before) - len(stop) + 1, 0) :] + last for stop in stops)

    def _text(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._pieces[token] for token in tokens if 0 <= token < len(self._pieces))
