"""Legality of tokens under a grammar: a fresh matcher reads the whole history for every question.

No rollback, no fork, no matcher kept between questions: whatever an engine's matcher has been through, this one has
seen the committed tokens and nothing else.

After the stop token the request is over. Its masks constrain nothing (upstream fills a terminated row with ones: the
logits are computed and thrown away), yet no further token is legal: ``allowed`` is all true, ``legal_prefix`` is 0.

A request that reasons first has a judge of its own, ``ReasoningJudge``: it takes any token up to and with the marker.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from harness.errors import ModelError, ScenarioError

if TYPE_CHECKING:
    import xgrammar

Mask = npt.NDArray[np.bool_]

KINDS = ("json_schema", "regex", "ebnf", "choice")

Spacing = Literal["spaced", "compact", "any"]
"""How a grammar writes JSON: as json.dumps does, without any white space, or with as much as it likes."""
SPACINGS: dict[Spacing, dict[str, Any]] = {
    "spaced": {"any_whitespace": False},
    "compact": {"any_whitespace": False, "separators": (",", ":")},
    "any": {"any_whitespace": True},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a grammar needs to know of a model folder."""

    size: int  # rows of the output matrix: the tokenizer's tokens and padding
    encoded: tuple[str, ...]  # byte-level text per token id, empty for special tokens
    stop_ids: tuple[int, ...]

    @classmethod
    def read(cls, folder: Path) -> Vocabulary:
        """Stop tokens come from generation_config.json, else from config.json. Raises ModelError.

        Special tokens are blanked, or else a JSON string could contain ``<|im_end|>`` as text.
        """
        from tokenizers import Tokenizer

        if absent := [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]:
            raise ModelError(f"no {' and no '.join(absent)} in {folder}")
        config = json.loads((folder / "config.json").read_text())
        generation = folder / "generation_config.json"
        stop = json.loads(generation.read_text()).get("eos_token_id") if generation.is_file() else None
        stop = config.get("eos_token_id") if stop is None else stop
        if stop is None:
            raise ModelError(
                f"{folder}: neither generation_config.json nor config.json names an eos_token_id"
            )
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        special = {t for t, added in tokenizer.get_added_tokens_decoder().items() if added.special}
        text = {t: piece for piece, t in tokenizer.get_vocab().items() if t not in special}
        return cls(
            size=config["vocab_size"],
            encoded=tuple(text.get(t, "") for t in range(tokenizer.get_vocab_size())),
            stop_ids=tuple(stop) if isinstance(stop, list) else (stop,),
        )

    def text(self, tokens: Sequence[int]) -> bytes:
        """What tokens say, as bytes: a letter may span tokens. Special tokens and strangers say nothing."""
        spelled = (self.encoded[token] for token in tokens if 0 <= token < len(self.encoded))
        return bytes(_BYTES[letter] for piece in spelled for letter in piece)


def _byte_level_alphabet() -> dict[str, int]:
    """Letter -> byte of the byte-level spelling: printable bytes stand for themselves, the others for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_level_alphabet()


class GrammarJudge(ABC):
    """What can be asked about one compiled grammar. Every answer begins at the beginning."""

    vocabulary: Vocabulary

    @abstractmethod
    def legal_prefix(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens``, taken from the start of the output, are legal. Nothing is, after the stop token."""

    @abstractmethod
    def next_mask(self, history: Sequence[int]) -> Mask:
        """Tokens that may follow a legal, unfinished history: [vocab], True is allowed."""

    def ended(self, history: Sequence[int]) -> bool:
        """Whether a legal history holds the stop token."""
        return bool(history) and history[-1] in self.vocabulary.stop_ids

    def replay(self, tokens: Sequence[int]) -> GrammarPosition:
        """The point after a legal history. Raises ScenarioError, naming the first illegal token, if it is not legal."""
        history = tuple(tokens)
        if (legal := self.legal_prefix(history)) < len(history):
            raise ScenarioError(f"token {history[legal]} at index {legal} of the history is not legal")
        return GrammarPosition(judge=self, history=history)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarPosition:
    """The point after a legal history; each answer replays it from the beginning."""

    judge: GrammarJudge
    history: tuple[int, ...]  # legal

    @property
    def terminated(self) -> bool:
        """The stop token has been committed."""
        return self.judge.ended(self.history)

    def allowed(self) -> Mask:
        """Tokens that may come next: [vocab], True is allowed; all of them once terminated."""
        if self.terminated:
            return np.ones(self.judge.vocabulary.size, dtype=np.bool_)
        return self.judge.next_mask(self.history)

    def legal_prefix(self, drafts: Sequence[int]) -> int:
        """How many of these drafts could be committed here; a placeholder of -1 is never legal."""
        return self.judge.legal_prefix((*self.history, *drafts)) - len(self.history)


class ReasoningJudge(GrammarJudge):
    """Any token of the vocabulary up to and with the first ``marker``, and then what ``ruling`` says of the rest."""

    def __init__(self, ruling: GrammarJudge, marker: int) -> None:
        self.vocabulary = ruling.vocabulary
        self.ruling = ruling
        self.marker = marker

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        free, ruled = self._split(tokens)
        stray = next((i for i, token in enumerate(free) if not 0 <= token < self.vocabulary.size), None)
        if stray is not None:
            return stray
        return len(free) + (0 if ruled is None else self.ruling.legal_prefix(ruled))

    def next_mask(self, history: Sequence[int]) -> Mask:
        _, ruled = self._split(history)
        return (
            np.ones(self.vocabulary.size, dtype=np.bool_) if ruled is None else self.ruling.next_mask(ruled)
        )

    def ended(self, history: Sequence[int]) -> bool:
        _, ruled = self._split(history)
        return ruled is not None and self.ruling.ended(ruled)

    def _split(self, tokens: Sequence[int]) -> tuple[Sequence[int], Sequence[int] | None]:
        """The reasoning with its marker, and what lies behind it; ``None``: the reasoning goes on."""
        if self.marker not in tokens:
            return tokens, None
        begin = tokens.index(self.marker) + 1
        return tokens[:begin], tokens[begin:]


class GrammarOracle(GrammarJudge):
    """xgrammar, replayed."""

    def __init__(self, vocabulary: Vocabulary, compiled: xgrammar.CompiledGrammar) -> None:
        self.vocabulary = vocabulary
        self._compiled = compiled

    @classmethod
    def compile(cls, folder: Path | str, kind: str, text: str, spacing: Spacing = "spaced") -> GrammarOracle:
        """kind is one of KINDS; a choice's text is a JSON list of strings. Raises ScenarioError or ModelError."""
        import xgrammar

        vocabulary = Vocabulary.read(Path(folder))
        info = xgrammar.TokenizerInfo(
            list(vocabulary.encoded),
            xgrammar.VocabType.BYTE_LEVEL,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.stop_ids),
            add_prefix_space=False,
        )
        compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        try:
            if kind == "json_schema":
                compiled = compiler.compile_json_schema(text, **SPACINGS[spacing])
            elif kind == "regex":
                compiled = compiler.compile_regex(text)
            elif kind == "ebnf":
                compiled = compiler.compile_grammar(text)
            elif kind == "choice":
                compiled = compiler.compile_grammar("root ::= " + " | ".join(literals(text)))
            else:
                raise ScenarioError(f"unknown kind of grammar {kind!r}; there are {', '.join(KINDS)}")
        except RuntimeError as refusal:
            raise ScenarioError(f"xgrammar does not compile this {kind}: {refusal}") from refusal
        return cls(vocabulary, compiled)

    def legal_prefix(self, tokens: Sequence[int]) -> int:
        return self._read(tokens)[1]

    def next_mask(self, history: Sequence[int]) -> Mask:
        import xgrammar

        row = xgrammar.allocate_token_bitmask(1, self.vocabulary.size)  # [1, ceil(vocab / 32)] int32
        self._read(history)[0].fill_next_token_bitmask(row)
        return unpack(row.numpy(), self.vocabulary.size)

    def _read(self, tokens: Sequence[int]) -> tuple[xgrammar.GrammarMatcher, int]:
        """A fresh matcher that has read the legal tokens, and their number."""
        import xgrammar

        matcher = xgrammar.GrammarMatcher(self._compiled)
        for legal, token in enumerate(tokens):
            if matcher.is_terminated() or not matcher.accept_token(token):
                return matcher, legal
        return matcher, len(tokens)


def literals(choices: str) -> list[str]:
    """A JSON list of strings as quoted grammar literals. Raises ScenarioError."""
    try:
        options = json.loads(choices)
    except json.JSONDecodeError as error:
        raise ScenarioError(f"a choice is a JSON list of strings: {error}") from None
    if not isinstance(options, list) or not options or not all(isinstance(option, str) for option in options):
        raise ScenarioError(f"a choice is a JSON list of one string or more, not {choices}")
    return [json.dumps(option, ensure_ascii=False) for option in options]


def unpack(bits: npt.NDArray[Any], size: int) -> Mask:
    """A bit mask of the libraries' kind, lowest bit first, as [size] booleans."""
    return np.unpackbits(bits.reshape(-1).view(np.uint8), bitorder="little")[:size].astype(np.bool_)
