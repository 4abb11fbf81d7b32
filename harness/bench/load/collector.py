"""The garbage collector while the clock runs: it would walk every chunk that was ever kept, some ms at a time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = (100_000, 20, 100)
"""Thresholds of the three generations; Python's own first one, 700, is a few streams' chunks."""


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """What is there already is left alone, and new things are looked at seldom; afterwards all is as it was."""
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*ALLOCATIONS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
