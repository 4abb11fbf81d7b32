"""The four things that are printed as "ITL", each under its own name. Seconds; one request's samples at a time.

With several tokens in a chunk (speculation) they differ by the acceptance length; see docs/metrics.md.
"""

from __future__ import annotations

from itertools import pairwise

from harness.bench.metrics.latency import tpot
from harness.bench.metrics.tokens import chunk_tokens, output_chunks
from harness.bench.record import RequestRecord


def icl(record: RequestRecord) -> list[float]:
    """Inter-chunk latency: the gap in front of each output chunk but the first. vLLM prints it as ITL."""
    return [after.at - before.at for before, after in pairwise(output_chunks(record))]


def itl_amortised(record: RequestRecord) -> list[float] | None:
    """Each gap divided by the tokens it brought, once for each of them. Tokens of the first chunk have no gap.

    ``None`` where the tokens of a chunk are not known. A chunk without a token leaves its gap to the next.
    """
    steps = _steps(record)
    if steps is None:
        return None
    return [sample for gap, tokens in steps[1:] for sample in [gap / tokens] * tokens]


def itl_arrival(record: RequestRecord) -> list[float] | None:
    """Time between tokens as a reader sees them: a chunk of k is one full gap and k - 1 zeros.

    n - 1 samples, so their mean is the request's TPOT. ``None`` where the tokens of a chunk are not known.
    """
    steps = _steps(record)
    if steps is None:
        return None
    arrivals = [sample for gap, tokens in steps for sample in [gap, *[0.0] * (tokens - 1)]]
    return arrivals[1:]


def itl_request_mean(record: RequestRecord) -> float | None:
    """One value for a request, (last - first) / (n - 1): what GuideLLM calls ITL and the others TPOT."""
    return tpot(record)


def _steps(record: RequestRecord) -> list[tuple[float, int]] | None:
    """(gap in front of it, its tokens) of every chunk that holds a token; the first gap is 0."""
    counts = chunk_tokens(record)
    if counts is None:
        return None
    holding = [
        (chunk.at, count) for chunk, count in zip(output_chunks(record), counts, strict=True) if count > 0
    ]
    times = [at for at, _ in holding]
    gaps = [0.0, *(after - before for before, after in pairwise(times))]
    return [(gap, count) for gap, (_, count) in zip(gaps, holding, strict=False)]
