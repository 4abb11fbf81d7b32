"""Tokens and requests per second, and the highest second of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bench.metrics.span import Span, complete, per_second, span_of
from harness.bench.metrics.tokens import all_known, chunk_tokens, output_chunks, output_tokens
from harness.bench.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Per second of the span, of the requests that succeeded. ``total`` counts every prompt token, ``computed`` those
    that were not in the prefix cache; ``None`` where a request's count is not known."""

    input_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    request: float | None
    output: float | None
    total: float | None
    computed: float | None


def throughput(records: Sequence[RequestRecord], span: Span | None = None) -> Throughput:
    """Over ``span``, or from the first request to the end of the last. Nothing complete is no throughput, not 0."""
    kept = complete(records)
    over = (span or span_of(records)) if kept else None
    prompts = all_known([record.prompt_tokens for record in kept])
    cached = all_known([record.cached_tokens for record in kept])
    output = all_known([output_tokens(record) for record in kept])
    total = None if prompts is None or output is None else prompts + output
    return Throughput(
        input_tokens=prompts if kept else None,
        cached_tokens=cached if kept else None,
        output_tokens=output if kept else None,
        request=per_second(len(kept), over),
        output=per_second(output, over),
        total=per_second(total, over),
        computed=per_second(None if total is None or cached is None else total - cached, over),
    )


def peak_output(records: Sequence[RequestRecord], seconds: float = 1.0) -> float | None:
    """The most output tokens per second in any window of that length, each chunk weighted by its tokens.

    No buckets, so the phase of the clock does not matter. ``None`` for a run shorter than the window, and where the
    tokens of a chunk are not known. vLLM counts chunks instead (vllm#35471).
    """
    span = span_of(records)
    if span is None or span.seconds < seconds:
        return None
    arrivals: list[tuple[float, int]] = []
    for record in complete(records):
        counts = chunk_tokens(record)
        if counts is None:
            return None
        arrivals += [(chunk.at, count) for chunk, count in zip(output_chunks(record), counts, strict=True)]
    if not arrivals:
        return None
    arrivals.sort()
    first, held, most = 0, 0, 0
    for at, count in arrivals:
        held += count
        while at - arrivals[first][0] >= seconds:
            held -= arrivals[first][1]
            first += 1
        most = max(most, held)
    return most / seconds
