"""Was it the client? What it was late by, how much of its reads were lumps, how busy it was, and what follows."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from harness.bench.load.clock import Clock
from harness.bench.load.ending import TOKENS
from harness.bench.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a client may be late by, in seconds, and its shares. Chosen so that TTFT and ITL stay right to some ms.

    ``of_measured``: the lags may also be this share of what is measured, where that is more: 15 ms are nothing beside
    chunks that come every 400 ms, and everything beside chunks that come every 20 ms.
    """

    loop_lag_p99: float = 0.010
    dispatch_lag_p99: float = 0.020
    cpu_share: float = 0.90
    coalesced_share: float = 0.20
    least_rate: float = 0.95  # of the offered one
    of_measured: float = 0.05

    def beside(self, records: Sequence[RequestRecord]) -> Bounds:
        """The bounds of a run: against its median gap between chunks, and its median time to the first one.

        Lumps have gaps of nothing, so a client that reads late gets no milder bound by reading late.
        """
        stamps = [[c.at for c in record.chunks if c.kind in TOKENS] for record in records]
        gaps = np.concatenate([np.diff(each) for each in stamps] or [np.empty(0)])
        firsts = [each[0] - record.sent for record, each in zip(records, stamps, strict=True) if each]
        usual = [float(np.median(values)) for values in (gaps, firsts) if len(values)]
        more = self.of_measured * min(usual, default=0.0)
        return replace(
            self,
            loop_lag_p99=max(self.loop_lag_p99, more),
            dispatch_lag_p99=max(self.dispatch_lag_p99, more),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The client's own measurements. Seconds, shares of 1, requests per second; ``None``: there was nothing to measure.

    ``coalesced_share``: chunks with tokens that came in one read with an earlier one. Servers cause it too, so alone it
    proves nothing. ``because``: why the run is client-bound; empty: it is not.
    """

    loop_lag_p50: float | None = None
    loop_lag_p99: float | None = None
    loop_lag_max: float | None = None
    dispatch_lag_p99: float | None = None
    dispatch_lag_max: float | None = None
    coalesced_share: float | None = None
    cpu_share: float | None = None  # of one core, of the busiest process
    gc_pause_max: float = 0.0
    gc_pause_total: float = 0.0
    offered_rate: float | None = None
    achieved_rate: float | None = None
    bounds: Bounds = field(default_factory=Bounds)  # what it was held against
    processes: int = 1
    parts: int = 1  # more than one: the run was resumed
    because: tuple[str, ...] = ()

    @property
    def is_client_bound(self) -> bool:
        """Its figures are the client's, not the server's: do not compare them."""
        return bool(self.because)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulses:
    """What one process measured of itself; ``merged`` makes a ``Health`` of all of them. Seconds."""

    loop_lags: list[float] = field(default_factory=list)
    dispatch_lags: list[float] = field(default_factory=list)
    gc_pauses: list[float] = field(default_factory=list)
    cpu: float = 0.0
    wall: float = 0.0


class Pulse:
    """Measures this process between ``start`` and ``stop``: a tick every 10 ms on an absolute grid.

    A loop that stalls for 41 ms misses four ticks, and each counts with its own lag; one sample for the whole stall
    would be the coordinated omission that this is about.
    """

    EVERY = 0.010

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pulses = Pulses()
        self._next = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._began = self._cpu = self._gc_began = 0.0

    def start(self) -> None:
        """Begin, inside a running loop."""
        self._began, self._cpu = self._clock.now(), time.process_time()
        self._next = self._began + self.EVERY
        gc.callbacks.append(self._collects)
        self._arm()

    def dispatched(self, lag: float) -> None:
        """A request was come to ``lag`` seconds behind its moment."""
        self._pulses.dispatch_lags.append(lag)

    def stop(self) -> Pulses:
        """End; what was measured."""
        self._tick()
        if self._timer is not None:
            self._timer.cancel()
        gc.callbacks.remove(self._collects)
        told = self._pulses
        return Pulses(
            loop_lags=told.loop_lags,
            dispatch_lags=told.dispatch_lags,
            gc_pauses=told.gc_pauses,
            cpu=time.process_time() - self._cpu,
            wall=self._clock.now() - self._began,
        )

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, self._next - self._clock.now()), self._tick_and_arm)

    def _tick_and_arm(self) -> None:
        self._tick()
        self._arm()

    def _tick(self) -> None:
        now = self._clock.now()
        while self._next <= now:
            self._pulses.loop_lags.append(now - self._next)
            self._next += self.EVERY

    def _collects(self, phase: str, _: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if phase == "start":
            self._gc_began = now
        else:
            self._pulses.gc_pauses.append(now - self._gc_began)


def merged(
    pulses: Sequence[Pulses],
    records: Iterable[RequestRecord],
    *,
    offered: float | None = None,
    parts: int = 1,
    bounds: Bounds | None = None,
) -> Health:
    """One certificate for all processes; lags are pooled, percentiles are never averaged (trap 10).

    ``offered``: the rate of an open shape without a limit of places; ``records``: those of the run, without warm-up.
    """
    measured = [record for record in records if not record.warm_up]
    loop_lags = np.concatenate([np.asarray(each.loop_lags) for each in pulses] or [np.empty(0)])
    dispatch = np.concatenate([np.asarray(each.dispatch_lags) for each in pulses] or [np.empty(0)])
    pauses = [pause for each in pulses for pause in each.gc_pauses]
    flags = [c.coalesced for record in measured for c in record.chunks if c.kind.has_tokens]
    sent = sorted(record.sent for record in measured)
    span = sent[-1] - sent[0] if len(sent) > 1 else 0.0
    health = Health(
        loop_lag_p50=_percentile(loop_lags, 50),
        loop_lag_p99=_percentile(loop_lags, 99),
        loop_lag_max=_percentile(loop_lags, 100),
        dispatch_lag_p99=_percentile(dispatch, 99),
        dispatch_lag_max=_percentile(dispatch, 100),
        coalesced_share=sum(flags) / len(flags) if flags else None,
        cpu_share=max((each.cpu / each.wall for each in pulses if each.wall > 0), default=None),
        gc_pause_max=max(pauses, default=0.0),
        gc_pause_total=sum(pauses),
        offered_rate=offered,
        achieved_rate=(len(sent) - 1) / span if span > 0 else None,
        processes=len(pulses),
        parts=parts,
    )
    return _judged(health, (bounds or Bounds()).beside(measured))


def _percentile(values: np.ndarray[Any, Any], q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None


def _judged(health: Health, bounds: Bounds) -> Health:
    because = []
    for what, seen, most in (
        ("event-loop lag P99", health.loop_lag_p99, bounds.loop_lag_p99),
        ("dispatch lag P99", health.dispatch_lag_p99, bounds.dispatch_lag_p99),
    ):
        if seen is not None and seen > most:
            because.append(f"{what} {seen * 1e3:.1f} ms, expected at most {most * 1e3:g} ms")
    if health.cpu_share is not None and health.cpu_share > bounds.cpu_share:
        because.append(f"CPU {health.cpu_share:.0%} of a core, expected at most {bounds.cpu_share:.0%}")
    if because and (health.coalesced_share or 0) > bounds.coalesced_share:
        because.append(f"{health.coalesced_share:.0%} of the chunks came in one read with an earlier one")
    offered, achieved = health.offered_rate, health.achieved_rate
    if offered is not None and achieved is not None and achieved < bounds.least_rate * offered:
        because.append(f"sent {achieved:.1f} requests/s of {offered:.1f} that were due")
    return replace(health, bounds=bounds, because=tuple(because))
