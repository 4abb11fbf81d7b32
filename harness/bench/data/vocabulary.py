"""The ordinary tokens of a model, and prompts of an exact length made of them."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from harness.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TRIES = 200


class Vocabulary:
    """A tokenizer folder (``tokenizer.json``), read when it is first needed.

    Raises:
        UsageError: the folder has none, or it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "tokenizer.json"
        if not self._file.is_file():
            raise UsageError(
                f"{folder}: saw no tokenizer.json, expected the model's tokenizer",
                hint="pass --tokenizer FOLDER, the folder of the served model",
            )

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_file(str(self._file))
        except Exception as error:  # noqa: BLE001 - the library raises plain Exception
            raise UsageError(f"{self._file}: cannot be read: {error}") from None

    @cached_property
    def ordinary(self) -> tuple[int, ...]:
        """Ids a prompt may be drawn from, ascending: no special or added tokens, no holes of a padded vocabulary."""
        content = json.loads(self._file.read_text(encoding="utf-8"))
        added = {token["id"] for token in content.get("added_tokens", [])}
        return tuple(sorted(set(self._tokenizer.get_vocab(with_added_tokens=False).values()) - added))

    @cached_property
    def _stable(self) -> tuple[int, ...]:
        """Ids that decode to a text which encodes to themselves: texts are made of these."""
        return tuple(one for one in self.ordinary if self.encode(self.decode((one,))) == (one,))

    def encode(self, text: str) -> tuple[int, ...]:
        """A text as ids, without special tokens."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: tuple[int, ...]) -> str:
        """Ids as a text."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def count(self, text: str) -> int:
        """How many tokens a text has here; a server adds its chat template."""
        return len(self.encode(text))

    def draw(self, dice: Random, length: int) -> tuple[int, ...]:
        """``length`` ordinary ids, each as likely as any other."""
        return tuple(dice.choices(self.ordinary, k=length))

    def text(self, dice: Random, length: int) -> str:
        """A text that encodes to exactly ``length`` tokens. Decoding drawn ids is not enough: nearly all of such texts
        encode to another length (sglang#15732), so it is cut and filled until it does.

        Raises:
            UsageError: it did not within TRIES.
        """
        if not self._stable:
            raise UsageError(f"{self._file}: saw no token that decodes and encodes to itself")
        ids: tuple[int, ...] = ()
        for _ in range(TRIES):
            ids = (*ids[:length], *dice.choices(self._stable, k=max(0, length - len(ids))))
            text = self.decode(ids)
            ids = self.encode(text)
            if len(ids) == length:
                return text
        raise UsageError(
            f"{self._file}: saw {len(ids)} tokens after {TRIES} tries, expected a text of {length}",
            hint="send token ids to the completions endpoint instead",
        )
