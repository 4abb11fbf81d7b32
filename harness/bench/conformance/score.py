"""How a client does on every script: its records held against the scripts and against the server's own times."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bench.conformance.script import Script
from harness.bench.load.call import CHAT, Call, chat, completion
from harness.bench.load.clock import Clock
from harness.bench.load.transport import Endpoint, Transport
from harness.bench.record import Chunk, Outcome, RequestRecord

SILENCE = 1.5
"""Seconds without a byte after which a client gives up; the longest pause of a whole answer is a tenth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One script. ``lag``: the latest that a chunk was stamped behind its writing, in seconds; ``None``: no chunk."""

    name: str
    path: str
    expected: Outcome
    saw: Outcome
    faults: tuple[str, ...]
    lag: float | None = None

    @property
    def is_right(self) -> bool:
        """Nothing to complain of."""
        return not self.faults


async def score(
    open_transport: Callable[[Endpoint, Clock], Transport],
    url: str,
    scripts: Mapping[tuple[str, str], Script],
    *,
    tolerance: float = 0.02,
    at_once: int = 8,
) -> list[Score]:
    """Every script, so many at a time. ``tolerance``: seconds that a stamp may lie behind its write."""
    clock = Clock()
    transport = open_transport(Endpoint(url=url, silence=SILENCE, total=20.0), clock)
    mark = f"{time.monotonic_ns():x}"
    names = {f"{mark}-{i}": script for i, script in enumerate(scripts.values())}
    places = asyncio.Semaphore(at_once)

    async def one(name: str, script: Script) -> RequestRecord:
        async with places:
            return await transport.send(call_of(script, name), clock.now())

    try:
        records = await asyncio.gather(*(one(name, script) for name, script in names.items()))
    finally:
        await transport.close()
    log = await asyncio.to_thread(truth_log, url)
    return [
        judged(script, record, log.get(name, {}), clock, tolerance)
        for (name, script), record in zip(names.items(), records, strict=True)
    ]


def call_of(script: Script, name: str) -> Call:
    """The call that gets a script."""
    tokens = max(1, script.truth.completion_tokens or 8)
    make = chat if script.path == CHAT else completion
    return make(name, script.name, "tell", tokens)


def truth_log(url: str) -> dict[str, dict[str, Any]]:
    """What the server remembers, by request id."""
    with urllib.request.urlopen(f"{url}/truth", timeout=10) as answer:
        return json.load(answer)


def judged(
    script: Script, record: RequestRecord, entry: Mapping[str, Any], clock: Clock, tolerance: float
) -> Score:
    """A record against its script."""
    truth = script.truth
    is_whole = truth.outcome is Outcome.COMPLETE
    faults = []
    if record.outcome is not truth.outcome:
        faults.append(f"outcome {record.outcome.value} ({record.detail}), expected {truth.outcome.value}")
    wanted = [chunk for chunk in truth.chunks if is_whole or chunk[1].has_tokens]
    came = [chunk for chunk in record.chunks if is_whole or chunk.kind.has_tokens]
    for what, seen, expected in (
        (
            "chunks",
            [(c.kind.value, c.tokens) for c in came],
            [(k.value, n) for _, k, n in wanted],
        ),
        ("text", record.text, truth.text),
        ("usage", record.completion_tokens, truth.completion_tokens),
        ("finish reason", record.finish_reason, truth.finish_reason if truth.chunks else None),
    ):
        if seen != expected:
            faults.append(f"{what} {seen!r}, expected {expected!r}")
    lags = _lags(script, came, wanted, entry, clock)
    if lags and (max(lags) > tolerance or min(lags) < 0):
        faults.append(f"stamps {min(lags) * 1e3:.1f} to {max(lags) * 1e3:.1f} ms behind the writes")
    return Score(
        name=script.name,
        path=script.path,
        expected=truth.outcome,
        saw=record.outcome,
        faults=tuple(faults),
        lag=max(lags, default=None),
    )


def _lags(
    script: Script,
    came: Sequence[Chunk],
    wanted: Sequence[tuple[float, Any, Any]],
    entry: Mapping[str, Any],
    clock: Clock,
) -> list[float]:
    """Seconds between the write of each chunk and its stamp; nothing where the chunks are not those of the script."""
    written: list[float] = list(entry.get("written", ()))
    moments = {write.at: place for place, write in enumerate(script.writes)}
    if len(came) != len(wanted) or len(written) < len(script.writes):
        return []
    return [chunk.at - clock.at(written[moments[at]]) for chunk, (at, _, _) in zip(came, wanted, strict=True)]
