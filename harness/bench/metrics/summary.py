"""Everything that is measured of a run, in one value, and flat for those who compare."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.bench.metrics import itl, latency
from harness.bench.metrics.acceptance import Acceptance, acceptance
from harness.bench.metrics.compat import percentile_key
from harness.bench.metrics.concurrency import Concurrency, concurrency
from harness.bench.metrics.distribution import PERCENTILES, Distribution, distribution
from harness.bench.metrics.goodput import Goodput, goodput
from harness.bench.metrics.span import Span, complete, span_of
from harness.bench.metrics.steady import Steady, steady
from harness.bench.metrics.throughput import Throughput, peak_output, throughput
from harness.bench.metrics.tokens import Chunking, Streams, chunking, streams
from harness.bench.metrics.trust import Trust, trust
from harness.bench.record import RequestRecord

PER_REQUEST: Mapping[str, Callable[[RequestRecord], float | None]] = {
    "ttft": latency.ttft,
    "ttft_from_schedule": latency.ttft_from_schedule,
    "ttfo": latency.ttfo,
    "tpot": latency.tpot,
    "tpot_decode": latency.tpot_decode,
    "e2el": latency.e2el,
    "e2el_from_schedule": latency.e2el_from_schedule,
    "until_closed": latency.until_closed,
    "client_queue": latency.client_queue,
    "itl_request_mean": itl.itl_request_mean,
}
"""One sample for each request that succeeded, where it is defined."""
POOLED: Mapping[str, Callable[[RequestRecord], Sequence[float] | None]] = {
    "icl": itl.icl,
    "itl_amortised": itl.itl_amortised,
    "itl_arrival": itl.itl_arrival,
}
"""Samples of all requests together: percentiles are never averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """``clocks``: a distribution (seconds) for each name of PER_REQUEST and POOLED; ``None``: nothing measured.

    ``percentiles``: those that were asked for. ``unknown``: for a pooled clock, how many requests had to be left out
    because tokens of their chunks are unknown.
    """

    percentiles: tuple[float, ...]
    span: Span | None
    streams: Streams
    clocks: Mapping[str, Distribution | None]
    unknown: Mapping[str, int]
    chunking: Chunking
    throughput: Throughput
    peak_output: float | None
    concurrency: Concurrency | None
    steady: Steady | None
    acceptance: Acceptance | None
    goodput: Goodput | None
    valid_goodput: Goodput | None
    trust: Trust


def summarise(
    records: Sequence[RequestRecord],
    *,
    percentiles: Sequence[float] = PERCENTILES,
    limits: Mapping[str, float] | None = None,
    invalid: Collection[str] | None = None,
    span: Span | None = None,
    speculation: Acceptance | None = None,
) -> Summary:
    """Measure a run.

    ``limits``: objectives in seconds (see ``goodput``); ``invalid``: ids whose answer breaks its guide (``None``: not
    judged); ``speculation``: acceptance from the server's counters, where requests do not report their own.
    """
    kept = complete(records)
    over = span or span_of(records)
    pooled = {name: [clock(record) for record in kept] for name, clock in POOLED.items()}
    clocks = {
        **{name: distribution(_known(map(clock, kept)), percentiles) for name, clock in PER_REQUEST.items()},
        **{
            name: distribution([gap for gaps in each if gaps is not None for gap in gaps], percentiles)
            for name, each in pooled.items()
        },
    }
    ended = streams(records)
    return Summary(
        percentiles=tuple(percentiles),
        span=over,
        streams=ended,
        clocks=clocks,
        unknown={name: n for name, each in pooled.items() if (n := each.count(None))},
        chunking=chunking(records),
        throughput=throughput(records, over),
        peak_output=peak_output(records),
        concurrency=concurrency(records, over),
        steady=steady(records),
        acceptance=acceptance(records) or speculation,
        goodput=goodput(records, limits, span=over) if limits else None,
        valid_goodput=None if invalid is None else goodput(records, limits or {}, span=over, invalid=invalid),
        trust=trust(ended, clocks, [q for q in percentiles if q > 50]),
    )


def flat(summary: Summary) -> dict[str, float | None]:
    """Every figure by a dotted name, times in milliseconds: what runs are compared by. All names are always there."""
    found: dict[str, float | None] = {
        "completed": summary.streams.completed,
        "failed": summary.streams.failed,
        "partial_tokens": summary.streams.partial_tokens,
        "duration_s": summary.span.seconds if summary.span else None,
        "throughput.request": summary.throughput.request,
        "throughput.output": summary.throughput.output,
        "throughput.total": summary.throughput.total,
        "throughput.computed": summary.throughput.computed,
        "throughput.output_peak": summary.peak_output,
        "chunks.tokens_per_chunk": summary.chunking.tokens_per_chunk,
        "chunks.several": summary.chunking.several,
        "chunks.coalesced": summary.chunking.coalesced,
    }
    at_once, settled, drafts = summary.concurrency, summary.steady, summary.acceptance
    found |= {
        "concurrency.mean": at_once.mean if at_once else None,
        "concurrency.peak": at_once.peak if at_once else None,
        "concurrency.little_gap": at_once.gap if at_once else None,
        "steady.output": settled.output if settled else None,
        "steady.request": settled.request if settled else None,
        "acceptance.rate": drafts.rate if drafts else None,
        "acceptance.length": drafts.length if drafts else None,
        "acceptance.shortened": drafts.shortened if drafts else None,
    }
    for name, goods in (("goodput", summary.goodput), ("valid_goodput", summary.valid_goodput)):
        found[f"{name}.per_second"] = goods.per_second if goods else None
        found[f"{name}.attainment"] = goods.attainment if goods else None
    for name, clock in summary.clocks.items():
        found |= _clock(name, clock.scaled(1000) if clock else None, summary.percentiles)
    return found


def _clock(name: str, clock: Distribution | None, percentiles: Sequence[float]) -> dict[str, float | None]:
    return {
        f"{name}.n": clock.n if clock else 0,
        f"{name}.mean_ms": clock.mean if clock else None,
        f"{name}.median_ms": clock.median if clock else None,
        f"{name}.std_ms": clock.std if clock else None,
        **{
            f"{name}.p{percentile_key(q)}_ms": clock.percentiles[q] if clock else None
            for q in percentiles
            if q != 50
        },
    }


def _known(samples: Iterable[float | None]) -> list[float]:
    return [sample for sample in samples if sample is not None]
