"""Grammars for a model: its vocabulary as xgrammar sees it, and a compiler that refuses what would never come back."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xgrammar

from harness.errors import ModelError, UsageError

KINDS = ("json_schema", "regex", "ebnf", "choice", "structural_tag")

# xgrammar compiles in this process and cannot be interrupted. These bounds keep it under about 2 s with a tiny
# vocabulary: 64 KiB of properties of one object take 75 s, and a schema of depth 2,000 never comes back.
MOST_BYTES = 64 * 1024
MOST_PROPERTIES = 1000
MOST_DEPTH = 100
CACHE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of a model as its grammars see them."""

    info: xgrammar.TokenizerInfo
    size: int
    """Columns of the logits: the model's padded size."""
    stop_ids: frozenset[int]
    silent_ids: frozenset[int]
    """Special and padded ids: no text, so no grammar allows them."""

    @property
    def words(self) -> int:
        """int32 words in a row of a mask."""
        return -(-self.size // 32)

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        """Reads ``tokenizer.json`` (byte-level), ``config.json`` and, if there, ``generation_config.json``.

        Raises:
            ModelError: a file is missing or unreadable, the tokenizer is not byte-level, or nothing names a size
                or a stop token.
        """
        config = _read_json(folder / "config.json")
        config = {**config, **config.get("text_config", {})}
        generation = folder / "generation_config.json"
        stop = (_read_json(generation) if generation.exists() else {}).get("eos_token_id")
        stop = config.get("eos_token_id") if stop is None else stop
        stop_ids = [each for each in (stop if isinstance(stop, list) else [stop]) if isinstance(each, int)]
        size = config.get("vocab_size")
        if not isinstance(size, int) or not stop_ids:
            raise ModelError(
                f"{folder}: expected a vocab_size and at least one eos_token_id, got {size!r} and {stop!r}"
            )
        info = xgrammar.TokenizerInfo(
            _token_texts(folder / "tokenizer.json", size),
            vocab_type=xgrammar.VocabType.BYTE_LEVEL,
            vocab_size=size,
            stop_token_ids=stop_ids,
            add_prefix_space=False,
        )
        silent_ids = frozenset(info.special_token_ids) - frozenset(stop_ids)
        return cls(info=info, size=size, stop_ids=frozenset(stop_ids), silent_ids=silent_ids)


class Compiler:
    """Compiles grammars for one vocabulary, and remembers them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._compiler = xgrammar.GrammarCompiler(
            vocabulary.info, max_threads=1, cache_limit_bytes=CACHE_BYTES
        )

    def compile(self, kind: str, text: str) -> xgrammar.CompiledGrammar:
        """``kind`` is one of ``KINDS``; the text of a ``choice`` is a JSON list of strings, that of a
        ``structural_tag`` xgrammar's description of free text with tagged parts.

        Raises:
            UsageError: an unknown kind, or a text that is too large or no such grammar.
        """
        if kind not in KINDS:
            raise UsageError(f"unknown kind of grammar {kind!r}; there are {', '.join(KINDS)}")
        try:
            if len(text.encode()) > MOST_BYTES:
                raise ValueError(f"{len(text.encode())} bytes, at most {MOST_BYTES} are allowed")
            if kind == "json_schema":
                _check_extent(json.loads(text))
                # free whitespace lets a model write blanks for ever (vLLM's disable_any_whitespace)
                return self._compiler.compile_json_schema(text, any_whitespace=False)
            if kind == "structural_tag":
                _check_extent(json.loads(text))
                return self._compiler.compile_structural_tag(text)
            if kind == "regex":
                return self._compiler.compile_regex(text)
            return self._compiler.compile_grammar(text if kind == "ebnf" else _choice_to_ebnf(text))
        except (RuntimeError, ValueError) as error:  # RuntimeError: xgrammar's, and json's on deep nesting
            reason = re.sub(r"^\[[\d:]+\] \S+: ", "", str(error)).strip()
            raise UsageError(
                f"this {kind} does not compile: {reason}; the text is {_shorten(text)}"
            ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content


def _token_texts(path: Path, size: int) -> list[str]:
    """Text of each id; empty where there is none, and for special tokens, which JSON strings would allow otherwise."""
    tokenizer = _read_json(path)
    decoder = (tokenizer.get("decoder") or {}).get("type")
    if decoder != "ByteLevel":
        raise ModelError(f"{path}: expected a byte-level tokenizer, got the decoder {decoder!r}")
    added = tokenizer.get("added_tokens", [])
    ids = {**tokenizer["model"]["vocab"], **{token["content"]: token["id"] for token in added}}
    special = {token["id"] for token in added if token["special"]}
    texts = [""] * size
    for text, token in ids.items():
        if token < size and token not in special:
            texts[token] = text
    return texts


def _choice_to_ebnf(text: str) -> str:
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) for each in choices):
        raise ValueError("expected a JSON list of at least one string")
    return "root ::= " + " | ".join(json.dumps(each, ensure_ascii=False) for each in choices)


def _check_extent(schema: Any) -> None:
    layer, depth = [schema], 0
    while layer:
        widest = max((len(each) for each in layer if isinstance(each, dict)), default=0)
        if depth > MOST_DEPTH or widest > MOST_PROPERTIES:
            raise ValueError(
                f"{widest} keys of an object at depth {depth}, at most {MOST_PROPERTIES} and {MOST_DEPTH} are allowed"
            )
        parents = (
            each.values() if isinstance(each, dict) else each
            for each in layer
            if isinstance(each, dict | list)
        )
        layer, depth = [child for parent in parents for child in parent], depth + 1


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
