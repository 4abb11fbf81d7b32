"""Lets calls go as a shape says, on an absolute schedule, and hands every record on the moment it is there.

Sleeping an interval after each request drifts by what each request costs: 366 of a planned 494 requests a second
(bench.md d.3). Here each request has its moment, and waits until then and no longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from harness.bench.load.call import Call
from harness.bench.load.clock import Clock
from harness.bench.load.shape import Closed, Open, Shape
from harness.bench.load.transport import Transport
from harness.bench.record import RequestRecord

Keep = Callable[[RequestRecord], None]


async def drive(
    transport: Transport,
    calls: Sequence[Call],
    shape: Shape,
    clock: Clock,
    keep: Keep,
    *,
    begin: float | None = None,
    dispatched: Callable[[float], None] | None = None,
) -> None:
    """Send every call. ``begin``: the moment that is 0 of the shape, on the run's clock; left out: now.

    ``dispatched`` hears for each call of an open shape how many seconds behind its moment the client came to it. That
    is the client's own fault; the wait for a place that follows is the load's.
    """
    start = clock.now() if begin is None else begin
    if isinstance(shape, Closed):
        await _closed(transport, calls, shape, clock, keep, start)
    else:
        await _open(transport, calls, shape, clock, keep, start, dispatched)


async def _closed(
    transport: Transport, calls: Sequence[Call], shape: Closed, clock: Clock, keep: Keep, start: float
) -> None:
    """A call is due when a place is free, so it is scheduled when it is sent."""
    queue = iter(calls)
    await until(clock, start)

    async def client() -> None:
        for call in queue:
            keep(await transport.send(call, clock.now()))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(shape.concurrency, len(calls))):
            group.create_task(client())


async def _open(
    transport: Transport,
    calls: Sequence[Call],
    shape: Open,
    clock: Clock,
    keep: Keep,
    start: float,
    dispatched: Callable[[float], None] | None,
) -> None:
    places = None if shape.most_in_flight is None else asyncio.Semaphore(shape.most_in_flight)

    async def one(call: Call, due: float) -> None:
        if places is None:
            keep(await transport.send(call, due))
            return
        async with places:
            keep(await transport.send(call, due))

    async with asyncio.TaskGroup() as group:
        for call, time in zip(calls, shape.times, strict=True):
            due = start + time
            await until(clock, due)
            if dispatched is not None:
                dispatched(clock.now() - due)
            group.create_task(one(call, due))


async def until(clock: Clock, moment: float) -> None:
    """Sleep until a moment and never wake before it: the loop's timers are rounded to milliseconds."""
    while (left := moment - clock.now()) > 0:
        await asyncio.sleep(left)
