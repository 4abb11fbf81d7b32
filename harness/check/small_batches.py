"""Every small batch: what is found wrong in one of them is found in its smallest form.

Verify rows with 0 to k drafts after every possible accepted count; pieces of prompts and whole prompts, of one token,
of k + 1 and of more; up to ``most`` rows, verify rows before prompts as every runner orders them; and rows of k + 1
tokens where a captured graph is larger than the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations_with_replacement, product

from harness.packing import Batch, Row

ORDERED = 3
"""Up to so many rows every order is tried; beyond, rows stand in one order."""
CONTEXT = 11
"""Tokens in cache before a row that goes on; prime, so that it meets no block or chunk edge by chance."""

Kind = tuple[int, int, int, bool]  # tokens, tokens in cache, a, in its prompt


def small_batches(k: int = 3, most: int = 4) -> Iterator[Batch]:
    """All of them, fewest rows first."""
    verify = [(n + 1, CONTEXT, a, False) for n in range(k + 1) for a in range(1, k + 2)]
    prompts = [(tokens, start, 1, True) for tokens in (1, k + 1, k + 2) for start in (CONTEXT, 0)]
    for size in range(1, most + 1):
        for kinds in _rows(verify, prompts, size):
            yield _batch(kinds, k)
        full = [kind for kind in (*verify, *prompts) if kind[0] == k + 1]
        for kinds in combinations_with_replacement(full, size):
            yield _batch(kinds, k, capture_sizes=((size + 1) * (k + 1),))


def _rows(verify: Sequence[Kind], prompts: Sequence[Kind], size: int) -> Iterator[tuple[Kind, ...]]:
    for beside in range(size + 1):
        for before in _chosen(verify, size - beside, size):
            for after in combinations_with_replacement(prompts, beside):
                yield (*before, *after)


def _chosen(kinds: Sequence[Kind], count: int, size: int) -> Iterable[tuple[Kind, ...]]:
    return product(kinds, repeat=count) if size <= ORDERED else combinations_with_replacement(kinds, count)


def _batch(kinds: Sequence[Kind], k: int, capture_sizes: tuple[int, ...] = ()) -> Batch:
    width = k + 1
    rows = (
        Row(
            request=f"r{i}",
            tokens=tokens,
            start=start,
            previous=a,
            unrefreshed=a,
            slots=tuple(range(1 + i * width, 1 + (i + 1) * width)),
            in_prompt=in_prompt,
        )
        for i, (tokens, start, a, in_prompt) in enumerate(kinds)
    )
    return Batch(rows=tuple(rows), k=k, max_num_seqs=64, capture_sizes=capture_sizes)
