"""Whether a text could still become JSON: was an answer cut off, or was it wrong?"""

from __future__ import annotations

import re

_SPACE = re.compile(r"[ \t\n\r]*")
_CHARS = re.compile(r'[^"\\\x00-\x1f]*')
_ANY_CHARS = re.compile(r'[^"\\]*')
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_BEGUN = re.compile(r"-?((0|[1-9]\d*)(\.\d*|(\.\d+)?[eE][+-]?\d*)?)?")
_LITERALS = ("true", "false", "null")


class _Cut(Exception):
    """The text ended where more could follow."""


class _Wrong(Exception):
    """No text that begins like this is JSON."""


def is_json_prefix(text: str, *, controls: bool = False) -> bool:
    """Whether some continuation of ``text`` is one JSON document (RFC 8259). Whole documents are prefixes too.

    ``controls``: raw control characters in strings are let through.
    """
    try:
        at = _value_and_space(text, _ANY_CHARS if controls else _CHARS)
    except _Cut:
        return True
    except _Wrong:
        return False
    return at == len(text)


def _value_and_space(text: str, chars: re.Pattern[str]) -> int:
    """Walk with a stack of our own: answers may be nested deeper than Python's."""
    closing: list[str] = []  # "}" or "]" of every open object and array
    at = _space(text, 0)
    while True:
        at = _into(text, at, closing, chars)
        while True:  # a value is behind us
            at = _space(text, at)
            if not closing:
                return at
            if at == len(text):
                raise _Cut
            if text[at] == ",":
                at = _space(text, at + 1)
                if closing[-1] == "}":
                    at = _key(text, at, chars)
                break
            if text[at] != closing.pop():
                raise _Wrong
            at += 1


def _into(text: str, at: int, closing: list[str], chars: re.Pattern[str]) -> int:
    """From where a value begins to behind it, or behind the first scalar (or empty container) within it."""
    while True:
        if at == len(text):
            raise _Cut
        if text[at] not in "{[":
            return _scalar(text, at, chars)
        close = "}" if text[at] == "{" else "]"
        at = _space(text, at + 1)
        if at < len(text) and text[at] == close:
            return at + 1
        closing.append(close)
        if close == "}":
            at = _key(text, at, chars)


def _key(text: str, at: int, chars: re.Pattern[str]) -> int:
    """From where a key begins to where its value does."""
    if at == len(text):
        raise _Cut
    if text[at] != '"':
        raise _Wrong
    at = _space(text, _string(text, at, chars))
    if at == len(text):
        raise _Cut
    if text[at] != ":":
        raise _Wrong
    return _space(text, at + 1)


def _scalar(text: str, at: int, chars: re.Pattern[str]) -> int:
    if text[at] == '"':
        return _string(text, at, chars)
    for literal in _LITERALS:
        if text.startswith(literal, at):
            return at + len(literal)
        if literal.startswith(text[at:]):
            raise _Cut
    if _BEGUN.fullmatch(text, at) and not _NUMBER.fullmatch(text, at):
        raise _Cut
    number = _NUMBER.match(text, at)
    if number is None:
        raise _Wrong
    return number.end()


def _string(text: str, at: int, chars: re.Pattern[str]) -> int:
    at += 1
    while True:
        found = chars.match(text, at)
        assert found is not None
        at = found.end()
        if at == len(text):
            raise _Cut
        if text[at] == '"':
            return at + 1
        if text[at] != "\\":
            raise _Wrong  # a raw control character
        escape = text[at + 1 : at + 6]
        if not re.fullmatch(r"[\"\\/bfnrt].*|u[0-9a-fA-F]{0,4}|", escape, re.DOTALL):
            raise _Wrong
        width = 6 if escape.startswith("u") else 2
        if at + width > len(text):
            raise _Cut
        at += width


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
