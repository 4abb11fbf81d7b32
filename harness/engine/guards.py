"""Pools with guards around them and poison in them, and what a step changed in them.

A place is one state slot or one KV block. Before anything is written, every place holds a number that is its own, so
memory that nobody wrote can be told by whoever reads it; it is finite, since masked attention multiplies it by zero.
Place 0, which is nobody's, and the guards are no exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

GUARD = 4
"""Places before a pool and behind it that nothing may touch."""
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of a dtype's width: bits are compared, since NaN never equals itself."""


def poison(place: int) -> float:
    """The number that fills a place at first: eight significant bits, so bf16 holds it exactly."""
    exponent, step = divmod(place + GUARD, 128)
    return float((128 + step) << exponent)


def guarded(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device | str, rows: int = 1
) -> torch.Tensor:
    """A poisoned pool ``shape``, a view into a larger tensor. A place is ``rows`` entries of the first dimension."""
    places = range(-GUARD, shape[0] // rows + GUARD)
    tags = torch.tensor([poison(place) for place in places], dtype=torch.float64).repeat_interleave(rows)
    buffer = torch.empty(len(tags), *shape[1:], dtype=dtype, device=device)
    buffer.copy_(tags.view(-1, *[1] * (len(shape) - 1)))
    return buffer[GUARD * rows : GUARD * rows + shape[0]]


class Watch:
    """Which places of some pools, all of ``rows`` entries a place and equally many places, change.

    Every byte is compared with a kept copy, so a look costs time in proportion to the pools.
    """

    def __init__(self, pools: Iterable[torch.Tensor], rows: int = 1) -> None:
        self._pools = [_bits(pool, rows) for pool in pools]
        self._kept = [pool.clone() for pool in self._pools]

    def changed(self) -> tuple[int, ...]:
        """Places that differ from what they held at the last call, of any pool; guards are < 0 or >= P."""
        found: set[int] = set()
        for pool, kept in zip(self._pools, self._kept, strict=True):
            places = _differing(pool, kept)
            kept[places] = pool[places]
            found.update(places.tolist())
        return tuple(sorted(place - GUARD for place in found))


def _differing(pool: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Rows of two [P, W] that differ; on a CPU by numpy, which takes a third of the time."""
    if pool.device.type != "cpu":
        return (pool != kept).any(dim=1).nonzero().flatten()
    return torch.from_numpy((pool.numpy() != kept.numpy()).any(axis=1).nonzero()[0])


def _bits(pool: torch.Tensor, rows: int) -> torch.Tensor:
    """The whole tensor that ``guarded`` made, ``[GUARD + P + GUARD, ...]``, as integers, a place a row."""
    guard = GUARD * rows
    whole = pool.as_strided(
        (pool.shape[0] + 2 * guard, *pool.shape[1:]),
        pool.stride(),
        pool.storage_offset() - guard * pool.stride(0),
    )
    words: torch.Tensor = whole.flatten(1).view(_WORDS[pool.element_size()])
    words = words.view(whole.shape[0] // rows, -1)
    return words.view(torch.int64) if words.shape[1] * words.element_size() % 8 == 0 else words
