"""Requests that met every objective that applies to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.bench.metrics import latency
from harness.bench.metrics.span import Span, complete, measured, per_second, span_of
from harness.bench.record import RequestRecord
from harness.errors import UsageError

CLOCKS: Mapping[str, Callable[[RequestRecord], float | None]] = {
    "ttft": latency.ttft,
    "ttft_from_schedule": latency.ttft_from_schedule,
    "ttfo": latency.ttfo,
    "tpot": latency.tpot,
    "tpot_decode": latency.tpot_decode,
    "e2el": latency.e2el,
    "e2el_from_schedule": latency.e2el_from_schedule,
}
"""What an objective may be about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """``good`` of ``sent``; ``attainment`` is their ratio, so a request that failed counts against it.

    ``not_applicable``: for each objective, how many requests it was not defined for (TPOT of a one-token answer). It
    does not apply to them: it neither passes nor fails.
    """

    good: int
    sent: int
    per_second: float | None
    attainment: float | None
    not_applicable: Mapping[str, int]


def objectives(pairs: Sequence[str]) -> dict[str, float]:
    """``["ttft:200", "tpot:50"]`` (milliseconds, as vLLM takes them) in seconds; UsageError says what is wrong."""
    found = {}
    for pair in pairs:
        name, _, text = pair.partition(":")
        try:
            limit = float(text)
        except ValueError:
            limit = -1.0
        if name not in CLOCKS or not 0 <= limit < float("inf"):
            raise UsageError(
                f"saw objective {pair!r}, expected NAME:MILLISECONDS",
                hint=f"names are {', '.join(CLOCKS)}",
            )
        found[name] = limit / 1000
    return found


def meets(record: RequestRecord, limits: Mapping[str, float]) -> bool:
    """Whether a request that succeeded keeps every limit (seconds) that applies to it; on the limit is kept."""
    clocks = [(CLOCKS[name](record), limit) for name, limit in limits.items()]
    return all(took is None or took <= limit for took, limit in clocks)


def goodput(
    records: Sequence[RequestRecord],
    limits: Mapping[str, float],
    *,
    span: Span | None = None,
    invalid: Collection[str] = (),
) -> Goodput:
    """``invalid``: ids of requests whose answer is wrong; with them this is valid-goodput."""
    kept = complete(records)
    sent = len(measured(records))
    good = sum(record.id not in invalid and meets(record, limits) for record in kept)
    return Goodput(
        good=good,
        sent=sent,
        per_second=per_second(good, (span or span_of(records)) if kept else None),
        attainment=good / sent if sent else None,
        not_applicable={name: sum(CLOCKS[name](record) is None for record in kept) for name in limits},
    )
