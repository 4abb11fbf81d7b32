"""When requests are due, and that they go then: schedules, and the loop that keeps them."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import uvloop

from harness.bench.load import arrivals
from harness.bench.load.call import Call, chat, completion, warm_up_calls
from harness.bench.load.clock import Clock
from harness.bench.load.drive import drive
from harness.bench.load.health import Bounds, Pulse, Pulses, merged
from harness.bench.load.seeds import Seeds
from harness.bench.load.shape import Closed, Open, share
from harness.bench.record import Chunk, Kind, Outcome, RequestRecord
from harness.errors import UsageError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_rescaling_is_vllm_s_and_native_times_are_as_drawn() -> None:
    """Trap 16."""
    drawn = np.array([0.5, 1.5, 2.0])
    assert arrivals.rescaled(drawn, 1.0).tolist() == [0.75, 2.25, 3.0]
    native = arrivals.poisson(1.0, 1000, rng())
    assert native.tolist() == np.cumsum(rng().exponential(1.0, 1000)).tolist()
    assert native[-1] != pytest.approx(1000.0, rel=1e-6)
    assert arrivals.rescaled(native, 1.0)[-1] == pytest.approx(1000.0)
    assert Open(times=native).times == tuple(native)


def test_rescaling_leaves_nothing_and_a_burst_as_they_are() -> None:
    assert arrivals.rescaled(np.array([]), 1.0).tolist() == []
    assert arrivals.rescaled(np.zeros(3), 1.0).tolist() == [0, 0, 0]


def test_constant_arrivals_begin_at_once_and_do_not_drift() -> None:
    times = arrivals.constant(3.0, 3001)
    assert times[0] == 0
    assert times[-1] == pytest.approx(1000.0)
    assert arrivals.offered_rate(times) == pytest.approx(3.0)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_mean_of_the_rate_and_the_spread_of_the_burstiness(burstiness: float) -> None:
    gaps = np.diff(arrivals.gamma(10.0, burstiness, 40_000, rng()), prepend=0.0)
    assert gaps.mean() == pytest.approx(0.1, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_infinite_burstiness_is_constant() -> None:
    assert arrivals.gamma(10.0, math.inf, 5, rng()).tolist() == arrivals.constant(10.0, 5).tolist()


@pytest.mark.parametrize(("start", "end"), [(10.0, 50.0), (50.0, 10.0)])
@pytest.mark.parametrize("is_exponential", [False, True])
def test_a_ramp_has_the_rate_of_every_moment(start: float, end: float, is_exponential: bool) -> None:
    times = arrivals.ramp(start, end, 20.0, 2000, is_exponential=is_exponential)
    assert (np.diff(times) > 0).all()
    for moment in (1.0, 10.0, 19.0, 25.0):
        inside = min(moment, 20.0) / 20.0
        rate = start * (end / start) ** inside if is_exponential else start + (end - start) * inside
        place = int(np.searchsorted(times, moment))
        assert 1 / (times[place + 1] - times[place]) == pytest.approx(rate, rel=0.04)


def test_a_poisson_ramp_offers_as_many_as_the_even_one() -> None:
    even = arrivals.ramp(10.0, 100.0, 30.0, 5000)
    drawn = arrivals.ramp(10.0, 100.0, 30.0, 5000, rng=rng())
    assert np.searchsorted(drawn, 30.0) == pytest.approx(np.searchsorted(even, 30.0), rel=0.1)
    assert arrivals.ramp(5.0, 5.0, 1.0, 3).tolist() == pytest.approx([0.0, 0.2, 0.4])


def test_bursts_and_traces() -> None:
    assert arrivals.burst(3).tolist() == [0, 0, 0]
    assert arrivals.burst(5, size=2, every=1.5).tolist() == [0, 0, 1.5, 1.5, 3.0]
    assert arrivals.trace([7.0, 7.5, 9.0], speed=2.0).tolist() == [0, 0.25, 1.0]
    assert arrivals.offered_rate(arrivals.burst(3)) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: arrivals.constant(0, 3),
        lambda: arrivals.gamma(1.0, -1.0, 3, rng()),
        lambda: arrivals.ramp(1.0, 0.0, 1.0, 3),
        lambda: arrivals.trace([0.0, 2.0, 1.0]),
        lambda: arrivals.trace([0.0, math.nan]),
        lambda: arrivals.trace([0.0, 1.0], speed=0),
        lambda: Open(times=(1.0, 0.5)),
        lambda: Open(times=(0.0,), most_in_flight=0),
        lambda: Closed(concurrency=0),
        lambda: share(Closed(concurrency=2), 0, 3),
    ],
)
def test_what_cannot_be_is_a_usage_error(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match="saw"):
        make()


def test_one_seed_makes_three_that_differ_and_come_back() -> None:
    seeds = Seeds.of(7)
    assert seeds == Seeds.of(7)
    assert len({seeds.arrivals, seeds.prompts, seeds.sampling, Seeds.of(8).arrivals}) == 4
    drawn = [seeds.for_request(i) for i in range(1000)]
    assert len(set(drawn)) == 1000
    assert 0 <= min(drawn) <= max(drawn) < 2**31


def test_shares_of_workers_make_the_whole() -> None:
    shape = Open(times=tuple(range(7)), most_in_flight=5)
    parts = [share(shape, k, 2) for k in range(2)]
    assert sorted(time for part in parts for time in part.times) == list(range(7))
    assert [part.most_in_flight for part in parts] == [3, 2]
    closed = [share(Closed(concurrency=5), k, 2) for k in range(2)]
    assert [part.concurrency for part in closed] == [3, 2]


class Fake:
    """A transport whose requests last ``service`` seconds and cost the client ``work`` seconds of its loop."""

    name = "fake"

    def __init__(self, clock: Clock, service: float, work: float = 0.0) -> None:
        self.clock, self.service, self.work = clock, service, work
        self.in_flight = self.most = 0

    async def send(self, call: Call, scheduled: float) -> RequestRecord:
        sent = self.clock.now()
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        time.sleep(self.work)  # nothing else happens in this loop meanwhile
        await asyncio.sleep(self.service)
        self.in_flight -= 1
        return record(call.id, scheduled, sent, self.clock.now())

    async def close(self) -> None: ...


def record(name: str, scheduled: float, sent: float, closed: float, **more: Any) -> RequestRecord:
    return RequestRecord(
        id=name, scheduled=scheduled, sent=sent, closed=closed, outcome=Outcome.COMPLETE, **more
    )


def calls(n: int) -> list[Call]:
    return [completion(str(i), "m", "x", 1) for i in range(n)]


def driven(shape: Any, n: int, **fake: float) -> tuple[list[RequestRecord], Fake, list[float]]:
    async def run() -> tuple[list[RequestRecord], Fake, list[float]]:
        clock = Clock()
        transport, kept, lags = Fake(clock, **fake), [], []
        await drive(transport, calls(n), shape, clock, kept.append, dispatched=lags.append)
        return sorted(kept, key=lambda each: int(each.id)), transport, lags

    return uvloop.run(run())


def test_an_absolute_schedule_does_not_drift_by_what_requests_cost() -> None:
    """Sleeping 10 ms behind each request would be 60 x 5 ms late at the end."""
    shape = Open(times=arrivals.constant(100, 61))
    tries = [driven(shape, 61, service=0.001, work=0.005) for _ in range(3)]
    kept, _, lags = min(tries, key=lambda told: told[0][-1].sent - told[0][0].scheduled)
    assert [each.scheduled - kept[0].scheduled for each in kept] == pytest.approx(list(shape.times))
    assert kept[-1].sent - kept[0].scheduled < 0.6 + 0.15  # the best: others use this machine too
    assert min(lags) >= 0, "nothing goes before its moment"
    assert len(lags) == 61


def test_waiting_for_a_place_counts_from_the_schedule() -> None:
    """Trap 5 at a tenth of its times: from send 50 ms; from the schedule 190 ms in the mean, 327 ms at P99."""

    def seen() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        kept, _, _ = driven(Open(times=arrivals.constant(100, 8), most_in_flight=1), 8, service=0.05)
        return (
            np.array([each.closed - each.sent for each in kept]),
            np.array([each.closed - each.scheduled for each in kept]),
        )

    from_send, from_schedule = min((seen() for _ in range(3)), key=lambda both: both[1].mean())
    assert from_send.mean() == pytest.approx(0.050, abs=0.01)
    assert from_schedule.mean() == pytest.approx(0.190, abs=0.03)
    assert np.percentile(from_schedule, 99) == pytest.approx(0.3272, abs=0.06)
    assert (from_schedule - from_send).mean() == pytest.approx(0.140, abs=0.03)


def test_a_closed_loop_keeps_all_places_full_and_no_more() -> None:
    kept, transport, _ = driven(Closed(concurrency=4), 20, service=0.01)
    assert transport.most == 4
    assert len(kept) == 20
    assert all(each.sent - each.scheduled < 0.005 for each in kept)


def test_an_open_loop_waits_for_nobody() -> None:
    _, transport, _ = driven(Open(times=arrivals.constant(200, 20)), 20, service=0.3)
    assert transport.most == 20


def test_a_burst_begins_in_one_moment() -> None:
    kept, transport, _ = driven(Open(times=arrivals.burst(50)), 50, service=0.05)
    assert transport.most == 50
    assert kept[-1].scheduled == kept[0].scheduled


def test_missed_ticks_count_each_with_its_own_lag() -> None:
    async def stalled() -> Pulses:
        pulse = Pulse(Clock())
        pulse.start()
        time.sleep(0.055)
        await asyncio.sleep(0)
        return pulse.stop()

    lags = sorted(uvloop.run(stalled()).loop_lags, reverse=True)
    assert len(lags) >= 5
    assert lags[0] >= 0.045
    assert np.diff(lags[:5]) == pytest.approx([-0.01] * 4)


def test_percentiles_of_lags_are_pooled_over_processes() -> None:
    """Trap 10: the mean of P99s would be 505 ms."""
    one = Pulses(loop_lags=[0.010] * 98 + [1.0] * 2, wall=1.0, cpu=0.1)
    two = Pulses(loop_lags=[0.010] * 100, wall=1.0, cpu=0.3)
    health = merged([one, two], [])
    assert health.loop_lag_p99 == pytest.approx(0.0199)
    assert health.cpu_share == pytest.approx(0.3)
    assert health.is_client_bound


def test_a_quiet_client_is_not_bound_and_lumps_alone_prove_nothing() -> None:
    lump = tuple(Chunk(at=1.0, kind=Kind.CONTENT, coalesced=i > 0) for i in range(10))
    records = [record(str(i), i * 0.1, i * 0.1, i * 0.1 + 1, chunks=lump) for i in range(20)]
    quiet = Pulses(loop_lags=[0.001] * 50, dispatch_lags=[0.001] * 20, wall=1.0, cpu=0.1)
    health = merged([quiet], records, offered=10.0)
    assert health.coalesced_share == pytest.approx(0.9)
    assert health.achieved_rate == pytest.approx(10.0)
    assert not health.is_client_bound


@pytest.mark.parametrize(
    ("pulses", "offered", "why"),
    [
        (Pulses(loop_lags=[0.02] * 100), None, "event-loop lag"),
        (Pulses(dispatch_lags=[0.05] * 100), None, "dispatch lag"),
        (Pulses(cpu=0.95, wall=1.0), None, "CPU 95%"),
        (Pulses(), 20.0, "sent 10.0 requests/s of 20.0"),
    ],
)
def test_each_fault_of_a_client_is_named(pulses: Pulses, offered: float | None, why: str) -> None:
    records = [record(str(i), i * 0.1, i * 0.1, i * 0.1 + 1) for i in range(20)]
    health = merged([pulses], records, offered=offered, bounds=Bounds())
    assert [why in each for each in health.because] == [True]


def test_lags_are_held_against_what_is_measured() -> None:
    def chunks(gap: float, n: int = 20) -> tuple[Chunk, ...]:
        return tuple(Chunk(at=1.0 + i * gap, kind=Kind.CONTENT) for i in range(n))

    lags = Pulses(loop_lags=[0.015] * 100)
    slow = merged([lags], [record("a", 0.0, 0.0, 9.0, chunks=chunks(0.4))])
    assert not slow.is_client_bound
    assert slow.bounds.loop_lag_p99 == pytest.approx(0.020)
    quick = merged([lags], [record("a", 0.0, 0.0, 9.0, chunks=chunks(0.02))])
    assert quick.is_client_bound
    lumps = merged([lags], [record("a", 0.0, 0.0, 9.0, chunks=chunks(0.0, 15) + chunks(0.4, 5))])
    assert lumps.is_client_bound, "reading late is no excuse for reading late"


def test_warm_up_is_in_no_measurement_of_health() -> None:
    warm = record("w", 0.0, 0.0, 1.0, warm_up=True, chunks=(Chunk(at=1, kind=Kind.CONTENT, coalesced=True),))
    health = merged([Pulses()], [warm])
    assert health.coalesced_share is None
    assert health.achieved_rate is None


def test_warm_up_has_the_run_s_shapes_and_not_its_prompts() -> None:
    run = [completion(f"f{i}", "m", list(range(100 * i, 100 * i + 50 + i)), 10 + i) for i in range(40)]
    run += [chat(f"g{i}", "m", " ".join(map(str, range(30))), 20, guide="note", seed=1) for i in range(40)]
    warm = warm_up_calls(run, 8, random.Random(0))
    assert len(warm) == 8
    assert all(each.warm_up for each in warm)
    assert {each.guide for each in warm} == {None, "note"}
    assert {each.path for each in warm} == {each.path for each in run}
    shapes = {(each.path, len(each.body), each.requested_tokens, each.guide) for each in run}
    assert {(w.path, len(w.body), w.requested_tokens, w.guide) for w in warm} <= shapes
    assert len({(len(w.body), w.requested_tokens) for w in warm}) > 3, "one repeated prompt warms one shape"
    assert not {w.body for w in warm} & {each.body for each in run}
    assert not {w.id for w in warm} & {each.id for each in run}
