"""Metrics of serving benchmarks: every known trap with its right value, and its neighbours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benching import chunk, said, shifted, stream

from harness.bench.metrics import itl, latency
from harness.bench.metrics.acceptance import acceptance, by_guide, from_counters
from harness.bench.metrics.compat import CHAT, CHAT_0_10, CHAT_0_32, COMPLETIONS, compat, would_complete
from harness.bench.metrics.concurrency import concurrency
from harness.bench.metrics.crossed import Crossed
from harness.bench.metrics.distribution import distribution, percentile
from harness.bench.metrics.goodput import goodput, objectives
from harness.bench.metrics.span import Span
from harness.bench.metrics.steady import steady, within
from harness.bench.metrics.summary import flat, summarise
from harness.bench.metrics.throughput import peak_output, throughput
from harness.bench.metrics.tokens import chunking, streams
from harness.bench.record import Outcome, RequestRecord
from harness.errors import UsageError

SEVERAL = said([100, 130, 160, 190], [1, 3, 2, 4])
CHATTY = stream(
    chunk(5, "role"),
    chunk(80),
    chunk(100),
    chunk(120),
    chunk(121, "finish"),
    chunk(122, "usage"),
    chunk(123, "done"),
    usage=3,
)


def ms(values: list[float] | None) -> list[float] | None:
    return None if values is None else [round(value * 1000, 6) for value in values]


# 1: several tokens in a chunk


def test_several_tokens_in_a_chunk_give_four_itls_of_four_names() -> None:
    assert latency.ttft(SEVERAL) == pytest.approx(0.1)
    assert latency.tpot(SEVERAL) == pytest.approx(0.01)
    assert ms(itl.icl(SEVERAL)) == [30, 30, 30]
    assert ms(itl.itl_amortised(SEVERAL)) == [10, 10, 10, 15, 15, 7.5, 7.5, 7.5, 7.5]
    assert ms(itl.itl_arrival(SEVERAL)) == [30, 0, 0, 30, 0, 30, 0, 0, 0]
    assert itl.itl_request_mean(SEVERAL) == pytest.approx(0.01)
    pooled = distribution(itl.itl_amortised(SEVERAL) or [])
    assert pooled is not None
    assert (pooled.mean, pooled.median, pooled.percentiles[99.0]) == pytest.approx((0.010, 0.010, 0.015))
    assert chunking([SEVERAL]).tokens_per_chunk == 2.5
    assert chunking([SEVERAL]).several == 0.75


def test_compatible_itl_counts_chunks() -> None:
    found = compat([SEVERAL], dialect=CHAT)
    assert found["mean_itl_ms"] == pytest.approx(30)
    assert found["mean_tpot_ms"] == pytest.approx(10)


def test_tokens_of_a_chunk_that_nobody_told_are_unknown_and_not_one() -> None:
    silent = stream(chunk(100), chunk(130), usage=5)
    assert itl.itl_amortised(silent) is None
    assert itl.itl_arrival(silent) is None
    assert ms(itl.icl(silent)) == [30]
    assert latency.tpot(silent) == pytest.approx(0.0075)
    found = chunking([silent])
    assert (found.tokens_per_chunk, found.several) == (2.5, None)
    assert summarise([silent, SEVERAL]).unknown == {"itl_amortised": 1, "itl_arrival": 1}


def test_as_many_tokens_as_chunks_are_one_each() -> None:
    assert ms(itl.itl_amortised(stream(chunk(100), chunk(130), usage=2))) == [30]


def test_a_chunk_without_a_token_leaves_its_gap_to_the_next() -> None:
    held_back = said([100, 130, 160], [1, 0, 2])
    assert ms(itl.itl_amortised(held_back)) == [30, 30]
    assert ms(itl.itl_arrival(held_back)) == [60, 0]
    assert ms(itl.icl(held_back)) == [30, 30]


# 2: the first chunk holds several


def test_decode_tpot_leaves_out_all_tokens_of_the_first_chunk() -> None:
    record = said([100, 140], [4, 4])
    assert latency.tpot(record) == pytest.approx(0.040 / 7)
    assert latency.tpot_decode(record) == pytest.approx(0.010)
    assert compat([record], dialect=CHAT)["mean_tpot_ms"] == pytest.approx(5.714, abs=1e-3)


def test_an_answer_in_one_chunk_has_no_tpot_and_vllm_has_zero() -> None:
    record = said([100], [4])
    assert latency.tpot(record) is None
    assert latency.tpot_decode(record) is None
    assert itl.icl(record) == []
    assert ms(itl.itl_arrival(record)) == [0, 0, 0]
    assert compat([record], dialect=CHAT)["mean_tpot_ms"] == 0.0
    assert compat([record], dialect=CHAT)["mean_itl_ms"] is None


def test_one_token_in_two_chunks_has_no_tpot() -> None:
    record = stream(chunk(100), chunk(140), usage=1)
    assert (latency.tpot(record), latency.tpot_decode(record), latency.e2el(record)) == (None, None, 0.14)


# 3: role, finish, usage, done


def test_only_output_chunks_are_timed() -> None:
    assert latency.ttft(CHATTY) == pytest.approx(0.080)
    assert latency.e2el(CHATTY) == pytest.approx(0.120)
    assert latency.tpot(CHATTY) == pytest.approx(0.020)
    assert ms(itl.icl(CHATTY)) == [20, 20]
    assert latency.until_closed(CHATTY) == pytest.approx(0.123)


@pytest.mark.parametrize(
    ("dialect", "ttft", "e2el", "itls"),
    [
        (CHAT, 80, 120, [20, 20]),
        (COMPLETIONS, 80, 121, [20, 20, 1]),
        (CHAT_0_32, 5, 121, [75, 20, 20, 1]),
        (CHAT_0_10, 5, 122, [75, 20, 20, 1]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_each_client_of_vllm_is_reproduced(
    dialect: object, ttft: float, e2el: float, itls: list[float]
) -> None:
    found = compat([CHATTY], dialect=dialect)
    assert found["mean_ttft_ms"] == pytest.approx(ttft)
    assert found["mean_e2el_ms"] == pytest.approx(e2el)
    assert found["mean_tpot_ms"] == pytest.approx((e2el - ttft) / 2)
    assert found["mean_itl_ms"] == pytest.approx(np.mean(itls))
    assert found["std_itl_ms"] == pytest.approx(np.std(itls))


# peaks, and concurrency 1


def test_back_to_back_requests_are_one_at_once_and_vllm_says_two() -> None:
    records = [shifted(said([50, 1500], id=f"r{i}"), by=1.5 * i) for i in range(4)]
    found = concurrency(records)
    assert found is not None
    assert (found.peak, found.mean, found.gap) == (1, pytest.approx(1.0), pytest.approx(0.0))
    assert compat(records, dialect=CHAT)["max_concurrent_requests"] == 2


def test_peak_weighs_chunks_by_tokens_and_vllm_counts_chunks() -> None:
    record = said([100, 200, 300, 1400], [4, 4, 4, 4])
    assert peak_output([record]) == 12
    assert compat([record], dialect=CHAT)["max_output_tokens_per_s"] == 3


def test_peak_does_not_depend_on_the_phase_of_the_clock() -> None:
    record = said([600, 900, 1100, 1400, 3000], [5] * 5)  # two buckets hold two each, one second holds four
    assert peak_output([record]) == 20
    assert peak_output([said([100, 200], [5, 5])]) is None  # a run shorter than a second has no second


def test_a_second_ends_before_it_begins_again() -> None:
    assert peak_output([said([0, 1000, 2000], [3, 3, 3])]) == 3


def test_a_failed_request_takes_its_place() -> None:
    dead = replace(said([100, 900], id="dead"), outcome=Outcome.CUT)
    found = concurrency([said([100, 900]), dead])
    assert found is not None
    assert (found.peak, found.mean) == (2, pytest.approx(2.0))
    assert found.little == pytest.approx(1.0)
    assert found.gap == pytest.approx(-0.5)


def test_what_lies_outside_a_span_is_not_under_way_in_it() -> None:
    records = [shifted(said([50, 1000], id=f"r{i}"), by=float(2 * i)) for i in range(3)]
    found = concurrency(records, Span(begin=1.5, end=2.5))
    assert found is not None
    assert (found.peak, found.mean) == (1, 0.5)
    assert concurrency(records, Span(begin=1.2, end=1.8)) is not None
    assert concurrency(records, Span(begin=1.2, end=1.8)).mean == 0


# 5: coordinated omission


def test_from_the_schedule_the_queue_in_the_client_counts() -> None:
    records = [
        replace(shifted(said([100, 500], id=f"r{i}"), by=0.5 * i), scheduled=0.1 * i) for i in range(8)
    ]
    found = summarise(records).clocks
    sent, due, queue = found["e2el"], found["e2el_from_schedule"], found["client_queue"]
    assert sent is not None
    assert due is not None
    assert queue is not None
    assert (sent.mean, sent.percentiles[99.0]) == pytest.approx((0.5, 0.5))
    assert (due.mean, due.percentiles[99.0]) == pytest.approx((1.9, 3.272))
    assert queue.mean == pytest.approx(1.4)
    early = found["ttft_from_schedule"]
    assert early is not None
    assert early.mean == pytest.approx(1.5)
    told = compat(records, dialect=CHAT, clocks=["e2el_including_client_queue", "client_queue_time"])
    assert told["p99_e2el_including_client_queue_ms"] == pytest.approx(3272)
    assert told["mean_client_queue_time_ms"] == pytest.approx(1400)


# 6, 7: acceptance


def drafting(steps: list[tuple[int, int]], **more: object) -> RequestRecord:
    return said([100, 200], drafted=tuple(d for d, _ in steps), accepted=tuple(a for _, a in steps), **more)


def test_acceptance_weighs_tokens_and_prints_requests_beside() -> None:
    a = drafting([(4, 3)] * 10, id="a")
    b = drafting([(4, 1)] * 45 + [(4, 0)] * 45, id="b")
    found = acceptance([a, b])
    assert found is not None
    assert (found.length, found.rate) == (1.75, 0.1875)
    assert (found.request_length, found.request_rate) == (2.75, 0.4375)
    assert (found.steps, found.drafted, found.accepted, found.wasted) == (100, 400, 75, 325)


def test_drafts_shortened_by_a_grammar_have_four_rates_per_position() -> None:
    found = acceptance([drafting([(4, 3), (4, 1), (1, 1), (1, 1)])])
    assert found is not None
    assert found.over_all == (1.0, 0.25, 0.25, 0.0)
    assert found.over_reached == (1.0, 0.5, 0.5, 0.0)
    assert found.given_earlier == (1.0, 0.5, 1.0, 0.0)
    assert (found.rate, found.length) == (pytest.approx(0.6), 2.5)
    assert found.shortened == 0.5
    assert found.lengths == {1: 2, 4: 2}


def test_what_a_grammar_shortens_shows_beside_the_free_requests() -> None:
    free = drafting([(4, 2), (4, 4)], id="a")
    person = drafting([(2, 1), (4, 1)], id="b", guide="person")
    note = drafting([(1, 1)], id="c", guide="note")
    found = by_guide([free, person, note, drafting([], id="d", guide="none")])
    assert {name: one.shortened for name, one in found.items()} == {"free": 0.0, "person": 0.5, "note": 1.0}
    assert {name: len(one.over_all or ()) for name, one in found.items()} == {
        "free": 4,
        "person": 4,
        "note": 4,
    }


def test_a_position_that_no_draft_reached_has_no_rate() -> None:
    found = acceptance([drafting([(2, 0), (1, 0)])], longest=3)
    assert found is not None
    assert found.over_reached == (0.0, 0.0, None)
    assert found.given_earlier == (0.0, None, None)
    assert found.shortened == 1.0


def test_a_step_without_a_draft_is_no_verify_step() -> None:
    found = acceptance([drafting([(0, 0), (2, 2), (0, 0)])])
    assert found is not None
    assert (found.steps, found.undrafted, found.length, found.rate) == (1, 2, 3.0, 1.0)
    assert acceptance([drafting([(0, 0)])]) is None


def test_counters_of_a_run_give_what_its_steps_give() -> None:
    own = acceptance([drafting([(4, 3), (4, 1), (1, 1), (1, 1)])])
    told = from_counters(4, 10, 6, [4, 1, 1, 0])
    assert own is not None
    assert told is not None
    assert (told.rate, told.length, told.over_all) == (own.rate, own.length, own.over_all)
    assert told.over_reached is None
    assert from_counters(0, 0, 0) is None


# 9: dead streams


def test_streams_that_died_are_no_successes() -> None:
    whole = [said([10 * i for i in range(1, 101)], id=f"r{i}") for i in range(8)]
    dead = [
        replace(
            said([10 * i for i in range(1, 31)], id=f"d{i}", usage=None),
            outcome=Outcome.IN_BAND_ERROR,
            status=200,
        )
        for i in range(2)
    ]
    found = summarise(whole + dead)
    assert (found.streams.completed, found.streams.failed, found.streams.partial_tokens) == (8, 2, 60)
    assert found.throughput.output == pytest.approx(800)
    assert found.clocks["e2el"] is not None
    assert found.clocks["e2el"].mean == pytest.approx(1.0)
    assert not found.trust.valid
    assert "in_band_error 2" in found.trust.reasons[0]
    assert would_complete(whole + dead, CHAT) == 10  # what vLLM would have counted
    assert compat(whole + dead, dialect=CHAT)["completed"] == 8
    assert compat(whole + dead, dialect=CHAT)["failed"] == 2


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.COMPLETE])
def test_no_other_end_counts_as_a_success(outcome: Outcome) -> None:
    found = streams([SEVERAL, replace(SEVERAL, id="x", outcome=outcome)])
    assert (found.completed, found.failed) == (1, 1)
    assert found.outcomes == {"complete": 1, outcome.name.lower(): 1}


def test_usage_of_a_dead_stream_is_not_taken_for_what_came() -> None:
    claimed = replace(said([100, 200], [1, 1], usage=16), outcome=Outcome.CUT)
    assert streams([claimed]).partial_tokens == 2


def test_every_chunk_of_a_dead_stream_was_a_token_at_least() -> None:
    silent = stream(chunk(100), chunk(200), chunk(210, "finish"), usage=9, outcome=Outcome.CUT)
    assert streams([silent]).partial_tokens == 2
    assert streams([replace(silent, token_ids=(1, 2, 3))]).partial_tokens == 3


# 10: percentiles


def test_percentiles_interpolate_and_are_pooled() -> None:
    assert percentile([10.0 * i for i in range(1, 11)], 99) == pytest.approx(99.1)
    a, b = [10.0] * 98 + [1000.0] * 2, [10.0] * 100
    pooled = distribution(a + b)
    assert pooled is not None
    assert percentile(a, 99) == 1000
    assert percentile(b, 99) == 10
    assert pooled.percentiles[99.0] == pytest.approx(19.9)


def test_a_percentile_says_how_many_samples_it_rests_on() -> None:
    found = distribution([float(i) for i in range(1000)])
    few = distribution([1.0] * 999)
    assert found is not None
    assert few is not None
    assert found.trusted(99)
    assert not few.trusted(99)
    assert few.trusted(95)
    lines = summarise([said([100, 200], id=str(i)) for i in range(20)]).trust.warnings
    assert any(line.startswith("P99 of 20 samples rests on fewer than ten above it: ttft") for line in lines)


def test_percentile_refuses_nothing_and_nonsense() -> None:
    for samples, q in (([], 50), ([1.0], 101), ([1.0], -1), ([1.0], float("nan"))):
        with pytest.raises(ValueError, match="expected at least one"):
            percentile(samples, q)


# 11: usage and reasoning


def test_reasoning_is_output_and_the_answer_has_a_clock_of_its_own() -> None:
    record = stream(chunk(100, "think"), chunk(300), chunk(650), usage=12, text="re-tokenises to seven")
    assert latency.ttft(record) == pytest.approx(0.1)
    assert latency.ttfo(record) == pytest.approx(0.3)
    assert latency.tpot(record) == pytest.approx(0.050)


def test_an_answer_that_is_all_reasoning_has_no_first_answer() -> None:
    assert latency.ttfo(stream(chunk(100, "think"), chunk(300, "think"), usage=2)) is None


def test_a_tool_call_is_an_answer() -> None:
    assert latency.ttfo(stream(chunk(100, "think"), chunk(300, "tool"), usage=2)) == pytest.approx(0.3)


# 13: one-token replies


def test_an_objective_that_is_not_defined_does_not_apply() -> None:
    records = [said([100, 120], id="a"), said([100, 120], id="b"), said([100], id="c")]
    found = summarise(records, limits=objectives(["tpot:50"]))
    assert found.clocks["tpot"] is not None
    assert found.clocks["tpot"].mean == pytest.approx(0.020)
    assert found.clocks["tpot"].n == 2
    assert found.goodput is not None
    assert (found.goodput.good, found.goodput.sent, found.goodput.attainment) == (3, 3, 1.0)
    assert found.goodput.not_applicable == {"tpot": 1}
    told = compat(records, dialect=CHAT, limits={"tpot": 0.015})
    assert told["mean_tpot_ms"] == pytest.approx(20)  # vLLM leaves it out of the mean too,
    assert told["request_goodput"] == pytest.approx(1 / 0.12)  # but takes it for 0 in goodput


def test_what_fails_is_sent_and_is_not_good() -> None:
    dead = replace(said([10, 20], id="dead"), outcome=Outcome.CUT)
    found = goodput([said([100, 120]), dead], {"tpot": 0.05})
    assert (found.good, found.sent, found.attainment) == (1, 2, 0.5)


def test_on_the_limit_is_within_it() -> None:
    exact = stream(chunk(125), chunk(250), usage=2)
    assert goodput([exact], {"tpot": 0.125}).good == 1
    assert goodput([exact], {"tpot": 0.1249}).good == 0
    assert goodput([exact], {"ttft": 1.0, "e2el": 0.2}).good == 0  # one kept, one broken


def test_valid_goodput_wants_a_valid_answer_too() -> None:
    records = [said([100, 120], id="a"), said([100, 120], id="b"), said([100, 900], id="slow")]
    found = summarise(records, limits={"tpot": 0.05}, invalid={"b"})
    assert found.goodput is not None
    assert found.valid_goodput is not None
    assert (found.goodput.good, found.valid_goodput.good) == (2, 1)
    assert summarise(records, limits={"tpot": 0.05}).valid_goodput is None


@pytest.mark.parametrize("pair", ["ttft", "ttft:x", "tttf:5", "ttft:-1", "ttft:nan", "ttft:inf", ":5", ""])
def test_objectives_that_make_no_sense_are_refused(pair: str) -> None:
    with pytest.raises(UsageError, match="expected NAME:MILLISECONDS"):
        objectives([pair])


# 15: late reader


def test_events_of_one_read_are_shown_as_coalesced() -> None:
    late = stream(chunk(61, coalesced=False), chunk(61, coalesced=True), chunk(61, coalesced=True), usage=3)
    assert latency.ttft(late) == pytest.approx(0.061)
    assert ms(itl.icl(late)) == [0, 0]
    assert chunking([late]).coalesced == pytest.approx(2 / 3)


# 17: cached prompt tokens


def test_computed_throughput_leaves_out_what_was_cached() -> None:
    record = said([500, 1000], [50, 50], prompt_tokens=1000, cached_tokens=900)
    found = throughput([record])
    assert (found.total, found.computed) == (pytest.approx(1100), pytest.approx(200))


def test_computed_throughput_is_unknown_where_one_server_does_not_say_what_was_cached() -> None:
    told = said([500, 1000], cached_tokens=0)
    assert throughput([told, said([500, 1000], id="x")]).computed is None
    assert throughput([told, said([500, 1000], id="x")]).total is not None


# 18: nothing measured


@pytest.mark.parametrize(
    "records",
    [[], [replace(SEVERAL, outcome=Outcome.HTTP_ERROR, chunks=())], [replace(SEVERAL, warm_up=True)]],
    ids=["no request", "no success", "warm-up alone"],
)
def test_nothing_measured_is_null_and_invalid_and_never_zero(records: list[RequestRecord]) -> None:
    found = summarise(records, limits={"ttft": 1.0}, invalid=set())
    assert not found.trust.valid
    assert set(found.clocks.values()) == {None}
    figures = flat(found)
    counts = {"completed", "failed", "partial_tokens", "concurrency.mean", "duration_s"}
    zeros = {key for key, value in figures.items() if value == 0} - counts
    assert all(key.endswith((".n", ".attainment")) for key in zeros), zeros
    assert figures["ttft.mean_ms"] is None
    assert figures["throughput.output"] is None
    told = compat(records, dialect=CHAT, limits={"ttft": 1.0})
    assert told["mean_ttft_ms"] is None
    assert told["p99_e2el_ms"] is None
    assert told["output_throughput"] is None
    assert told["max_output_tokens_per_s"] is None


# warm-up and steady state


def test_warm_up_is_measured_by_nobody() -> None:
    slow = replace(said([9000, 9900], id="w"), warm_up=True)
    assert flat(summarise([slow, SEVERAL])) == flat(summarise([SEVERAL]))
    assert compat([slow, SEVERAL], dialect=CHAT) == compat([SEVERAL], dialect=CHAT)


def test_a_few_slow_first_requests_are_told() -> None:
    records = [said([5000, 5100], id="slow"), *[said([100, 200], id=str(i)) for i in range(20)]]
    assert any("warm-up" in line for line in summarise(records).trust.warnings)
    assert not any("warm-up" in line for line in summarise(records[1:]).trust.warnings)


def test_the_steady_state_has_neither_ramp_nor_drain() -> None:
    ramp = [shifted(said([500, 10_000 - 1000 * i], id=f"r{i}"), by=float(i)) for i in range(4)]
    found = steady(ramp)  # all four are under way from 3 s to 10 s
    assert found is not None
    assert (found.span.begin, found.span.end) == (3.0, 10.0)
    assert found.sent == 1
    assert found.output == pytest.approx(1 / 7)
    assert [record.id for record in within(ramp, found.span)] == ["r3"]
    warm = [replace(record, warm_up=True) for record in ramp]
    assert steady([shifted(record, -9.0) for record in warm] + ramp) == found


def test_a_run_that_never_settles_has_no_steady_state() -> None:
    burst = [said([100, 110], id=f"b{i}") for i in range(9)]
    lone = [shifted(said([100, 1000], id=f"l{i}"), by=float(i)) for i in range(9)]
    assert steady(burst + lone) is None
    assert steady([]) is None


# speculation x grammar


def test_how_much_of_the_speed_up_survives_the_grammar() -> None:
    found = Crossed(free_off=100.0, free_on=300.0, guided_off=80.0, guided_on=160.0)
    assert (found.speedup_free, found.speedup_guided) == (3.0, 2.0)
    assert (found.cost_off, found.cost_on) == (0.8, pytest.approx(160 / 300))
    assert found.interaction == pytest.approx(2 / 3)
    assert found.kept == 0.5
    assert replace(found, guided_on=40.0).kept == -0.25
    assert replace(found, free_on=90.0).kept is None
    assert replace(found, guided_off=None).kept is None
    assert replace(found, guided_off=0.0).interaction is None
