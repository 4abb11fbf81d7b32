"""How far a ratio of cells is known: from blocks of requests in the order in which they were asked.

Cells ask the same requests, so block k of one is held against block k of the other. Requests that run at a time share
their steps and are one observation, never several: a block holds as many of them as run at a time, or more. What
slowed one cell alone is in all of its blocks, and so in no such interval; cells that take turns share slow minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, exp, log, sqrt

import numpy as np
from scipy import special

from harness.bench.metrics.latency import until_closed
from harness.bench.metrics.span import complete
from harness.bench.metrics.tokens import output_tokens
from harness.bench.record import RequestRecord

FEWEST, MOST = 4, 12
"""Blocks: fewer than four give an interval that says nothing."""
CONFIDENCE = 0.95
Signs = Mapping[str, int]


def half_width(cells: Mapping[str, Sequence[RequestRecord]], signs: Signs, *, at_a_time: int) -> float | None:
    """Half of the 95 % interval of a sum of logarithms of the cells' rates, each with its sign (+1, -1).

    ``None``: a cell is missing, or there are too few requests.
    """
    if any(name not in cells for name in signs):
        return None
    pairs = {name: _speeds(cells[name]) for name in signs}
    ids = sorted(set.intersection(*(set(found) for found in pairs.values())))
    size = max(at_a_time, ceil(len(ids) / MOST))
    blocks = [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
    if len(blocks) < FEWEST:
        return None
    logs = np.asarray([sum(sign * _pace(pairs[n], block) for n, sign in signs.items()) for block in blocks])
    reach = float(special.stdtrit(len(blocks) - 1, 0.5 + CONFIDENCE / 2))
    return reach * float(logs.std(ddof=1)) / sqrt(len(blocks))


def around(ratio: float, half: float) -> tuple[float, float]:
    """The interval of a ratio."""
    return ratio * exp(-half), ratio * exp(half)


def _speeds(records: Sequence[RequestRecord]) -> dict[str, tuple[int, float]]:
    """Tokens and seconds of each success, by its id."""
    found = ((one.id, output_tokens(one), until_closed(one)) for one in complete(records))
    return {name: (tokens, took) for name, tokens, took in found if tokens and took > 0}


def _pace(speeds: Mapping[str, tuple[int, float]], block: Sequence[str]) -> float:
    """Logarithm of the tokens per second of a place."""
    tokens, seconds = (sum(part) for part in zip(*(speeds[name] for name in block), strict=True))
    return log(tokens / seconds)
