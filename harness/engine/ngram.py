"""Prompt lookup: what followed the last words when they were seen before is drafted again.

vLLM's ``ngram`` proposer, a drafter without a model: the longest suffix of the sequence (``max_n`` tokens,
then fewer, down to ``min_n``) that occurs earlier, and the tokens behind that occurrence.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from harness.errors import UsageError


def propose(tokens: Sequence[int], k: int, min_n: int, max_n: int) -> list[int]:
    """0 to ``k`` drafts that follow ``tokens`` (prompt and output so far).

    Among equally long matches the earliest counts, as upstream: it has the most tokens behind it. The match
    may overlap the suffix (``a a a`` drafts ``a``). No match, or nothing asked for, drafts nothing.

    Raises:
        UsageError: not ``1 <= min_n <= max_n``.
    """
    if not 1 <= min_n <= max_n:
        raise UsageError(f"n-gram lengths must satisfy 1 <= min_n <= max_n, got min_n={min_n}, max_n={max_n}")
    if k < 1:
        return []
    # A search for bytes runs at memory speed; a loop over tokens would cost more than the tiny model's forward pass.
    words = array("q", tokens)
    width, text = words.itemsize, words.tobytes()
    for n in range(min(max_n, len(tokens) - 1), min_n - 1, -1):
        start = _find_aligned(text, text[-n * width :], width)
        if start < len(tokens) - n:
            return list(tokens[start + n : start + n + k])
    return []


def _find_aligned(text: bytes, pattern: bytes, width: int) -> int:
    """Index, in tokens of ``width`` bytes, of the first ``pattern`` in ``text``; the pattern must be there."""
    at = text.index(pattern)
    while at % width:  # the bytes matched across token boundaries
        at = text.index(pattern, at + 1)
    return at // width
