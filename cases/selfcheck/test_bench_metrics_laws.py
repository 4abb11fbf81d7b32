"""What holds of the metrics of every run: drawn records, whatever their order, clock and chunking."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from benching import scaled, shifted, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bench.metrics import itl, latency
from harness.bench.metrics.acceptance import acceptance
from harness.bench.metrics.compat import CHAT, compat
from harness.bench.metrics.concurrency import concurrency
from harness.bench.metrics.distribution import distribution, percentile
from harness.bench.metrics.goodput import goodput
from harness.bench.metrics.span import Span
from harness.bench.metrics.summary import flat, summarise
from harness.bench.metrics.throughput import peak_output, throughput
from harness.bench.metrics.tokens import chunk_tokens, output_tokens
from harness.bench.record import Chunk, Kind, Outcome, RequestRecord

QUICK = settings(max_examples=60, deadline=None)
TICK = 1 / 1024
"""Times are multiples of it: sums and differences are exact, so that laws hold without a tolerance."""


@st.composite
def requests(draw: st.DrawFn, name: str = "r") -> RequestRecord:
    scheduled = draw(st.integers(0, 5000))
    sent = scheduled + draw(st.integers(0, 500))
    at, chunks = sent, []
    for _ in range(draw(st.integers(1, 6))):
        at += draw(st.integers(1, 800))
        kind = draw(st.sampled_from([Kind.CONTENT, Kind.CONTENT, Kind.REASONING]))
        chunks.append(
            Chunk(at=at * TICK, kind=kind, tokens=draw(st.integers(1, 4)), coalesced=draw(st.booleans()))
        )
    steps = draw(
        st.lists(st.integers(0, 4).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))), max_size=4)
    )
    return RequestRecord(
        id=name,
        scheduled=scheduled * TICK,
        sent=sent * TICK,
        closed=(at + draw(st.integers(0, 5))) * TICK,
        outcome=draw(st.sampled_from([Outcome.COMPLETE] * 4 + [Outcome.CUT, Outcome.TIMEOUT])),
        chunks=tuple(chunks),
        prompt_tokens=draw(st.integers(1, 50)),
        cached_tokens=0,
        completion_tokens=sum(chunk.tokens or 0 for chunk in chunks),
        drafted=tuple(d for d, _ in steps),
        accepted=tuple(a for _, a in steps),
    )


RUNS = st.lists(requests(), min_size=1, max_size=8).map(
    lambda run: [replace(record, id=f"r{i}") for i, record in enumerate(run)]
)
ONE = requests().map(lambda record: replace(record, outcome=Outcome.COMPLETE))


def close(a: dict[str, float | None], b: dict[str, float | None]) -> None:
    assert a.keys() == b.keys()
    for key, value in a.items():
        other = b[key]
        assert value == (None if other is None else pytest.approx(other, rel=1e-9, abs=1e-9)), key


@QUICK
@given(RUNS, st.randoms(use_true_random=False))
def test_the_order_of_requests_does_not_matter(run: list[RequestRecord], dice: object) -> None:
    mixed = [*run]
    dice.shuffle(mixed)
    close(flat(summarise(mixed)), flat(summarise(run)))


@QUICK
@given(RUNS, st.integers(1, 100_000))
def test_when_a_run_began_does_not_matter(run: list[RequestRecord], by: int) -> None:
    moved = [shifted(record, by * TICK) for record in run]
    close(flat(summarise(moved)), flat(summarise(run)))


@QUICK
@given(RUNS, st.sampled_from([0.25, 2.0, 8.0]))
def test_a_clock_of_another_unit_scales_latencies_and_rates(run: list[RequestRecord], factor: float) -> None:
    before, after = flat(summarise(run)), flat(summarise([scaled(record, factor) for record in run]))
    rates = {"throughput.request", "throughput.output", "throughput.total", "throughput.computed"}
    rates |= {"steady.output", "steady.request"}
    for key, value in before.items():
        if key == "throughput.output_peak":  # its window does not scale
            continue
        by = factor if key.endswith(("_ms", "_s")) else 1 / factor if key in rates else 1
        wanted = None if value is None else pytest.approx(value * by, rel=1e-9, abs=1e-9)
        assert after[key] == wanted, key


@QUICK
@given(ONE, st.data())
def test_splitting_a_chunk_changes_only_what_counts_chunks(
    record: RequestRecord, data: st.DataObject
) -> None:
    wide = [i for i, chunk in enumerate(record.chunks) if (chunk.tokens or 0) > 1]
    if not wide:
        return
    place = data.draw(st.sampled_from(wide))
    chunk = record.chunks[place]
    assert chunk.tokens is not None
    first = data.draw(st.integers(1, chunk.tokens - 1))
    pieces = (replace(chunk, tokens=first), replace(chunk, tokens=chunk.tokens - first, coalesced=True))
    split = replace(record, chunks=(*record.chunks[:place], *pieces, *record.chunks[place + 1 :]))
    before, after = flat(summarise([record])), flat(summarise([split]))
    moved = {key for key in before if before[key] != after[key]}
    may = ("icl.", "itl_amortised.", "chunks.")
    # an answer that came whole has no TPOT; cut in two it has one, of no time at all
    whole = ("tpot.", "tpot_decode.", "itl_request_mean.") if len(record.chunks) == 1 else ()
    # the first chunk of a split first one holds fewer tokens, so more are decoded behind it
    moves = ("tpot_decode.",) if place == 0 else ()
    assert all(key.startswith(may + whole + moves) for key in moved), moved
    assert itl.itl_arrival(split) == itl.itl_arrival(record)
    assert sorted(itl.icl(split)) == sorted([*itl.icl(record), 0.0])


@QUICK
@given(ONE)
def test_every_itl_adds_up_to_the_time_of_decoding(record: RequestRecord) -> None:
    decoding = record.chunks[-1].at - record.chunks[0].at
    counts, n = chunk_tokens(record), output_tokens(record)
    assert counts is not None
    assert n is not None
    arrival, amortised = itl.itl_arrival(record), itl.itl_amortised(record)
    assert arrival is not None
    assert amortised is not None
    assert sum(itl.icl(record)) == sum(arrival) == decoding
    assert sum(amortised) == pytest.approx(decoding)
    assert len(arrival) == n - 1
    assert len(amortised) == n - counts[0]
    if len(record.chunks) > 1:
        assert np.mean(arrival) == pytest.approx(latency.tpot(record))
        assert np.mean(amortised) == pytest.approx(latency.tpot_decode(record))


@QUICK
@given(ONE)
def test_without_speculation_all_itls_are_the_same(record: RequestRecord) -> None:
    plain = replace(
        record,
        chunks=tuple(replace(chunk, tokens=1) for chunk in record.chunks),
        completion_tokens=len(record.chunks),
    )
    assert itl.icl(plain) == itl.itl_arrival(plain) == itl.itl_amortised(plain)
    assert latency.tpot(plain) == latency.tpot_decode(plain)


@QUICK
@given(ONE)
def test_clocks_of_a_request_stand_in_their_order(record: RequestRecord) -> None:
    first, last = latency.ttft(record), latency.e2el(record)
    assert first is not None
    assert last is not None
    assert 0 < first <= last <= latency.until_closed(record)
    answer = latency.ttfo(record)
    assert answer is None or first <= answer <= last
    due = latency.e2el_from_schedule(record)
    assert due == last + latency.client_queue(record)


@QUICK
@given(RUNS)
def test_sweep_line_and_littles_law_agree_where_everything_succeeds(run: list[RequestRecord]) -> None:
    found = concurrency([replace(record, outcome=Outcome.COMPLETE) for record in run])
    assert found is not None
    assert found.gap == pytest.approx(0, abs=1e-9)
    assert 0 < found.mean <= found.peak <= len(run)
    instants = [record.sent for record in run]
    assert found.peak == max(sum(r.sent <= at < r.closed for r in run) for at in instants)


@QUICK
@given(RUNS)
def test_the_peak_second_is_what_every_second_is_held_against(run: list[RequestRecord]) -> None:
    peak = peak_output(run)
    arrivals = [
        (chunk.at, chunk.tokens or 0)
        for record in run
        if record.outcome is Outcome.COMPLETE
        for chunk in record.chunks
    ]
    if peak is None:
        return
    assert peak == max(sum(k for at, k in arrivals if begin <= at < begin + 1) for begin, _ in arrivals)
    rate = throughput(run).output
    assert rate is not None
    seconds = summarise(run).span
    assert seconds is not None
    assert rate * seconds.seconds <= peak * math.ceil(seconds.seconds + 1)


@QUICK
@given(RUNS, st.floats(0.01, 3), st.floats(0, 1))
def test_a_looser_objective_is_met_by_more(run: list[RequestRecord], limit: float, more: float) -> None:
    tight, loose = ({"ttft": by, "tpot": by, "e2el": by} for by in (limit, limit + more))
    assert goodput(run, tight).good <= goodput(run, loose).good <= goodput(run, {}).good
    assert goodput(run, {}).good == summarise(run).streams.completed


@QUICK
@given(RUNS)
def test_acceptance_adds_up(run: list[RequestRecord]) -> None:
    found = acceptance(run)
    if found is None:
        return
    assert found.over_all is not None
    assert found.over_reached is not None
    assert found.given_earlier is not None
    assert found.lengths is not None
    assert found.length == pytest.approx(1 + sum(found.over_all))
    assert sum(d * n for d, n in found.lengths.items()) == found.drafted
    assert sum(found.lengths.values()) == found.steps
    assert list(found.over_all) == sorted(found.over_all, reverse=True)
    for every, reached, rest in zip(found.over_all, found.over_reached, found.given_earlier, strict=True):
        assert reached is None or every <= reached + 1e-12
        assert rest is None or (reached is not None and reached <= rest + 1e-12)


@QUICK
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.floats(0, 100))
def test_percentiles_are_numpys(samples: list[float], q: float) -> None:
    assert percentile(sorted(samples), q) == pytest.approx(np.percentile(samples, q), rel=1e-9, abs=1e-9)
    found = distribution(samples, [q])
    assert found is not None
    assert (found.mean, found.std) == pytest.approx((np.mean(samples), np.std(samples)), abs=1e-6)


@QUICK
@given(RUNS)
def test_compatible_values_agree_with_ours_where_definitions_do(run: list[RequestRecord]) -> None:
    told, ours = compat(run, dialect=CHAT), flat(summarise(run))
    for theirs, name in {
        "mean_ttft_ms": "ttft.mean_ms",
        "median_e2el_ms": "e2el.median_ms",
        "std_ttft_ms": "ttft.std_ms",
        "mean_itl_ms": "icl.mean_ms",
        "p99_itl_ms": "icl.p99_ms",
        "output_throughput": "throughput.output",
        "total_token_throughput": "throughput.total",
        "request_throughput": "throughput.request",
        "completed": "completed",
        "failed": "failed",
    }.items():
        wanted = ours[name]
        assert told[theirs] == (None if wanted is None else pytest.approx(wanted)), theirs


@QUICK
@given(RUNS, st.integers(1, 50))
def test_a_longer_span_thins_every_rate(run: list[RequestRecord], more: int) -> None:
    own = summarise(run).span
    assert own is not None
    wide = throughput(run, Span(begin=own.begin, end=own.end + more))
    narrow = throughput(run)
    if narrow.output is not None:
        assert wide.output is not None
        assert wide.output < narrow.output
        assert wide.output_tokens == narrow.output_tokens


def test_a_stream_of_no_output_has_no_clock() -> None:
    empty = stream(usage=0)
    assert {latency.ttft(empty), latency.e2el(empty), latency.tpot(empty), latency.ttfo(empty)} == {None}
