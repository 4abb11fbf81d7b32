"""Tokens as text: of a whole answer, piece by piece while it comes, and one by one beside their log-probabilities."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from harness.engine.grammars import Vocabulary


class Texts:
    """A model's tokens. Special tokens have names, and no place in a text."""

    def __init__(self, folder: Path, vocabulary: Vocabulary) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._pieces: list[bytes] = vocabulary.info.decoded_vocab
        self.size = vocabulary.size

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids; ``special``: with those that the tokenizer puts around a text."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.bytes_of, tokens)).decode(errors="replace")

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token, none for special and padded ids."""
        return self._pieces[token]

    def name(self, token: int) -> str:
        """A token on its own; a part of a character is U+FFFD, a special token its name."""
        piece = self._pieces[token]
        return piece.decode(errors="replace") if piece else self._tokenizer.id_to_token(token) or ""


class AnswerText:
    """The text of one answer as it grows. What may be the beginning of a stop text is held back."""

    def __init__(self, texts: Texts, stops: Sequence[str]) -> None:
        self._texts = texts
        self._stops = stops
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def feed(self, tokens: Sequence[int], finish_reason: str | None) -> str:
        """The text to give out after these tokens. The stop text that ended the answer, and what follows it in the
        last token, are no part of it."""
        before = 0  # characters before the last token
        for token in tokens:
            before = len(self._held)
            self._held += self._decoder.decode(self._texts.bytes_of(token))
        if finish_reason is None:
            kept = max(map(len, self._stops), default=1) - 1
            given = len(self._held) - kept
            return self._take(max(given, 0))
        self._held += self._decoder.decode(b"", final=True)
        ends = (self._held.find(stop, max(before - len(stop) + 1, 0)) for stop in self._stops)
        end = min((end for end in ends if end >= 0), default=len(self._held))
        return self._take(end if finish_reason == "stop" else len(self._held))

    def _take(self, count: int) -> str:
        given, self._held = self._held[:count], self._held[count:]
        return given
