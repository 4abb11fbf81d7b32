"""Forced requests, drawn: what the drafter proposes and what each step commits, legal whatever the schedule does.

A schedule may cut a row short (budget, length, a smaller k, a preemption), and then the step commits as much of its
turn as fits. So a guided script stays legal if any part of a turn is left out: it is digits, in any number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Literal

from harness.explore.words import Alphabet, Words
from harness.scenario import Grammar, Turn

Ending = Literal["script", "end", "ignored end", "stop token", "stop text"]
DIGITS_ONLY = Grammar(kind="regex", text="[0-9]*")
MOST_TURNS = 5


@dataclass(slots=True, kw_only=True)
class Script:
    """One request's turns, written one after the other."""

    random: Random
    words: Words
    k: int
    guided: bool
    reasons: bool = False  # the grammar waits for the end of the reasoning
    turns: list[Turn] = field(default_factory=list)

    def write(self, ending: Ending) -> None:
        """The first token, some verify steps, and how it ends."""
        self.turns.append(Turn(token=self._text(1)[0]))
        trim_after_many = self.random.random() < 0.4
        for _ in range(self.random.randint(0, MOST_TURNS)):
            n = self.random.choice((0, self.k, self.k, self.random.randint(0, self.k)))
            self._turn(n, self.random.choice((1, n + 1, n + 1, self.random.randint(1, n + 1))))
            if trim_after_many and self.turns[-1].accepted > 1:
                self._turn(0, 1)
                trim_after_many = False
        if ending != "script" and not self.reasons:
            self._end(ending)

    @property
    def answer(self) -> tuple[int, ...]:
        """All that is committed if no row is cut short."""
        return tuple(token for turn in self.turns for token in turn.committed)

    @property
    def alphabet(self) -> Alphabet:
        """What the next token is taken from."""
        return self.words.digits if self.guided and not self.reasons else self.words.letters

    def _turn(self, n: int, accepted: int) -> None:
        """n drafts that may stay in the row, accepted - 1 of them right; behind them what a grammar refuses."""
        right = self._text(accepted - 1)
        wrong = self._wrong(n - len(right))
        token = self._text(1, but=wrong[0] if wrong else None)[0]
        refused = [self.random.choice(self.words.letters.tokens) for _ in range(self.k - n)]
        drafts = (*right, *wrong, *(refused if self.guided else ()))
        self.turns.append(Turn(drafts=drafts, accepted=accepted, token=token))

    def _wrong(self, count: int) -> list[int]:
        """Drafts that are not accepted: perhaps the end of everything, or of the reasoning."""
        reasons = self.reasons
        drafts = self._text(count)
        self.reasons = reasons
        if drafts and self.random.random() < 0.2:
            drafts[self.random.randrange(count)] = self.words.end
        return drafts

    def _end(self, ending: Ending) -> None:
        """A last turn that commits an end somewhere in its row, with or without more behind it."""
        alphabet = self.alphabet
        last = {
            "end": (self.words.end,),
            "ignored end": (self.words.end,) if self.guided else (self.words.end, *self._text(1)),
            "stop token": (alphabet.stop,),
            "stop text": alphabet.spelled,
        }[ending]
        if len(last) > self.k + 1:
            return
        before = self._text(self.random.randint(0, self.k + 1 - len(last)))
        room = self.k + 1 - len(before) - len(last)
        if self.guided and self.words.end in last:
            room = min(room, 1)  # a grammar is over here, ignored or not, and refuses every draft behind
        behind = self._text(self.random.randint(0, room))
        text = [*before, *last, *behind]
        self.turns.append(Turn(drafts=tuple(text[:-1]), accepted=len(text), token=text[-1]))

    def _text(self, count: int, but: int | None = None) -> list[int]:
        """Tokens that may come next, the end of the reasoning among them."""
        text = []
        for _ in range(count):
            if self.reasons and self.random.random() < 0.25 and but != self.words.reasoning_end:
                text.append(self.words.reasoning_end)
                self.reasons = False
            else:
                text.append(self.random.choice([token for token in self.alphabet.tokens if token != but]))
        return text
