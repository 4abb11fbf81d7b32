"""Fresh matchers for the grammars of an audit, from the model's tokenizer; there is none without its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from harness.errors import UsageError
from harness.exchange import Exchange, Fate
from harness.oracle.grammar import SPACINGS, GrammarJudge, GrammarOracle, Mask, Spacing, Vocabulary
from harness.scenario import Grammar

FEW = 5
"""Answers of which all must be strange."""


class Judges:
    """Compiled grammars by their text. ``folder`` holds ``config.json`` and ``tokenizer.json``; ``None``: not known.
    ``spacing`` is how the server's grammars write JSON. UsageError where the folder cannot be used."""

    def __init__(self, folder: Path | None, spacing: Spacing = "spaced") -> None:
        self.folder = folder
        self.spacing = spacing
        self._judges: dict[Grammar, GrammarJudge] = {}
        self._masks: dict[tuple[Grammar, tuple[int, ...]], Mask] = {}
        self._vocabulary = None if folder is None else _vocabulary(folder)

    def of(self, grammar: Grammar) -> GrammarJudge | None:
        """A judge of its own for each grammar."""
        if self.folder is None:
            return None
        if grammar not in self._judges:
            self._judges[grammar] = GrammarOracle.compile(
                self.folder, grammar.kind, grammar.text, self.spacing
            )
        return self._judges[grammar]

    def speaking_as(self, exchanges: Sequence[Exchange]) -> Judges:
        """These, or those for the white space that makes most of the answers' tokens legal: servers differ in it."""
        written = [e for e in exchanges if e.ask.grammar is not None and e.ask.grammar.kind == "json_schema"]
        if self.folder is None or not written:
            return self
        return max(
            (self, *(Judges(self.folder, s) for s in SPACINGS if s != self.spacing)), key=_legal(written)
        )

    def masks(self, exchange: Exchange) -> list[Mask] | None:
        """What might stand at each place of a legal answer, ``[tokens][vocab]``; shorter where it becomes illegal."""
        grammar, tokens = exchange.ask.grammar, exchange.answer.tokens
        judge = None if grammar is None else self.of(grammar)
        if judge is None or grammar is None:
            return None
        legal = judge.legal_prefix(tokens)
        masks = []
        for n in range(min(legal + 1, len(tokens))):
            key = (grammar, tokens[:n])
            if key not in self._masks:
                self._masks[key] = judge.next_mask(tokens[:n])
            masks.append(self._masks[key])
        return masks

    def is_stop(self, token: int) -> bool:
        """Whether a token ends an answer."""
        return self._vocabulary is not None and token in self._vocabulary.stop_ids

    def are_strange_to(self, exchanges: Sequence[Exchange]) -> bool:
        """Whether all of several answers have tokens that say something else than their text, as tokens do that are
        read with another model's tokenizer."""
        answers = [e.answer for e in exchanges if e.answer.fate is Fate.COMPLETE and not e.ask.stop]
        known = [(self.text(a.tokens), a.text) for a in answers if a.tokens and a.text.strip()]
        return len(known) >= FEW and all(said is not None and said != text for said, text in known)

    def text(self, tokens: tuple[int, ...]) -> str | None:
        """What tokens say."""
        return None if self._vocabulary is None else self._vocabulary.text(tokens).decode("utf-8", "replace")


def _vocabulary(folder: Path) -> Vocabulary:
    hint = (
        "--tokenizer FOLDER with config.json and tokenizer.json; without it grammars are judged by the text"
    )
    try:
        vocabulary = Vocabulary.read(folder)
        vocabulary.text(range(len(vocabulary.encoded)))
    except KeyError as error:
        why = f"no byte-level tokenizer, or a config.json without a key: {error}"
        raise UsageError(f"{folder}: {why}", hint=hint) from None
    except Exception as error:  # noqa: BLE001  the tokenizers library raises nothing narrower
        told = str(error).partition("\n")[0]
        raise UsageError(f"{folder}: its tokenizer cannot be read: {told}", hint=hint) from None
    return vocabulary


def _legal(exchanges: Sequence[Exchange]) -> Callable[[Judges], int]:
    """How many tokens of these answers are legal for some judges."""

    def count(judges: Judges) -> int:
        return sum(
            judge.legal_prefix(e.answer.tokens)
            for e in exchanges
            if e.ask.grammar is not None and (judge := judges.of(e.ask.grammar)) is not None
        )

    return count
