"""Our block, printed behind vLLM's: what that one cannot say."""

from __future__ import annotations

from collections.abc import Iterator

from harness.bench.block import row, rule
from harness.bench.equality import Equality
from harness.bench.metrics.acceptance import Acceptance
from harness.bench.metrics.summary import Summary
from harness.bench.validity import Validities

TITLE = " specharness "
_CLOCKS = (
    ("time to first answer token", "ttfo"),
    ("TPOT behind the first chunk", "tpot_decode"),
    ("inter-chunk latency", "icl"),
    ("ITL, amortised", "itl_amortised"),
    ("ITL, as tokens arrive", "itl_arrival"),
    ("ITL, mean of a request", "itl_request_mean"),
    ("TTFT from schedule", "ttft_from_schedule"),
    ("E2EL from schedule", "e2el_from_schedule"),
    ("client queue", "client_queue"),
)


def own_block(summary: Summary, validity: Validities | None = None, equality: Equality | None = None) -> str:
    """Verdict last, so that it is what stays on the screen."""
    return "\n".join(_lines(summary, validity, equality))


def _lines(summary: Summary, validity: Validities | None, equality: Equality | None) -> Iterator[str]:
    yield rule(TITLE, "=")
    yield from _streams(summary)
    yield from _rates(summary)
    yield rule("Latencies by their names")
    first = summary.clocks["ttft"]
    yield row("Samples (requests):", first.n if first else None, whole=True)
    gaps = summary.clocks["icl"]
    yield row("Samples (gaps between chunks):", gaps.n if gaps else None, whole=True)
    highest = max(summary.percentiles, default=50.0)
    for words, name in _CLOCKS:
        clock = summary.clocks[name]
        told = clock.scaled(1000) if clock else None
        yield row(f"Mean {words} (ms):", told.mean if told else None)
        yield row(f"P{highest:g} {words} (ms):", told.percentiles.get(highest) if told else None)
    if summary.acceptance is not None:
        yield from _drafts(summary.acceptance)
    if validity is not None:
        yield from _answers(validity)
    if equality is not None:
        yield rule("Greedy equality")
        yield row("Answers compared:", equality.compared, whole=True)
        yield row("Answers equal:", equality.equal, whole=True)
    for words, goods in (("Goodput", summary.goodput), ("Valid goodput", summary.valid_goodput)):
        if goods is not None:
            yield row(f"{words} (req/s):", goods.per_second)
            yield row(f"{words} (%):", _percent(goods.attainment))
    yield rule(line="=")
    yield from (f"INVALID RUN: {reason}" for reason in summary.trust.reasons)
    yield from (f"note: {line}" for line in summary.trust.warnings)


def _streams(summary: Summary) -> Iterator[str]:
    yield row("Streams complete:", summary.streams.completed, whole=True)
    for name, n in summary.streams.outcomes.items():
        if name != "complete":
            yield row(f"  {name.replace('_', ' ')}:", n, whole=True)
    if summary.streams.failed:
        yield row("Tokens of failed streams:", summary.streams.partial_tokens, whole=True)
    yield row("Tokens per chunk:", summary.chunking.tokens_per_chunk)
    yield row("Chunks with several tokens (%):", _percent(summary.chunking.several))
    yield row("Chunks read late or together (%):", _percent(summary.chunking.coalesced))


def _rates(summary: Summary) -> Iterator[str]:
    yield row("Computed token throughput (tok/s):", summary.throughput.computed)
    yield row("Peak output in one second (tok/s):", summary.peak_output)
    if summary.concurrency is not None:
        yield row("Mean concurrency:", summary.concurrency.mean)
        yield row("Peak concurrency:", summary.concurrency.peak, whole=True)
    if summary.steady is not None:
        yield row("Steady state (s):", summary.steady.span.seconds)
        yield row("Output in steady state (tok/s):", summary.steady.output)


def _drafts(found: Acceptance) -> Iterator[str]:
    yield rule("Drafts")
    yield row("Tokens per verify step:", found.length)
    yield row("Accepted of drafted (%):", _percent(found.rate))
    yield row("Drafts wasted:", found.wasted, whole=True)
    if found.request_length is not None:
        yield row("Tokens per verify step, by request:", found.request_length)
    if found.shortened is not None:
        yield row("Verify steps with fewer drafts (%):", _percent(found.shortened))
    for words, rates in (("of those drafted", found.over_reached), ("given earlier", found.given_earlier)):
        for place, rate in enumerate(rates or ()):
            yield row(f"  Position {place}, {words} (%):", _percent(rate))


def _answers(validity: Validities) -> Iterator[str]:
    yield rule("Guided answers")
    yield row("Valid (%):", _percent(validity.valid_share))
    for kind, n in sorted(validity.counts.items(), key=lambda item: -item[1]):
        yield row(f"  {kind.value}:", n, whole=True)


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100
