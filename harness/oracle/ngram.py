"""Prompt lookup as a drafter without a past: what stood behind the same words when they were first written.

The longest suffix of 4 to 2 tokens that occurs earlier counts, of equally long occurrences the first; it may overlap
the suffix. (vLLM's ``ngram`` proposer.)
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2
"""Lengths of the suffix that is looked up."""


def propose(tokens: Sequence[int], k: int) -> list[int]:
    """Up to k tokens that stood behind the suffix of ``tokens``; none where it is new."""
    tokens = list(tokens)
    for length in range(LONGEST, SHORTEST - 1, -1):
        for end in range(length, len(tokens)):
            if tokens[end - length : end] == tokens[-length:]:
                return tokens[end : end + k]
    return []
