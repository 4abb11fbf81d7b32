"""The figures that `vllm bench serve` would print of the same run, under its own keys, by its own rules.

They differ from ours in arithmetic only, never in which requests succeeded: streams that died count as failed here
too, where vLLM counts them as completed. Nothing measured is ``None``, where vLLM says 0.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from harness.bench.metrics.acceptance import Acceptance
from harness.bench.metrics.distribution import distribution
from harness.bench.metrics.span import Span, complete, measured, per_second, span_of
from harness.bench.metrics.tokens import all_known, output_tokens
from harness.bench.record import Kind, RequestRecord

_TOKENS = frozenset({Kind.REASONING, Kind.CONTENT, Kind.TOOL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Which chunks a client of vLLM takes for tokens, and which move the end of the request."""

    name: str
    counted: frozenset[Kind]
    ending: frozenset[Kind]


CHAT = Dialect(name="chat", counted=_TOKENS, ending=_TOKENS)
"""vLLM 0.33.0's chat client: neither the role-only chunk nor an empty finish."""
COMPLETIONS = Dialect(name="completions", counted=_TOKENS | {Kind.FINISH}, ending=_TOKENS | {Kind.FINISH})
"""Its completions client, in every version: an empty finish chunk is a chunk with choices, so it adds a gap."""
CHAT_0_32 = Dialect(
    name="chat-0.32",
    counted=_TOKENS | {Kind.ROLE, Kind.FINISH},
    ending=_TOKENS | {Kind.ROLE, Kind.FINISH},
)
"""The chat client up to 0.32.0: everything with choices, the role-only chunk first."""
CHAT_0_10 = Dialect(name="chat-0.10.2", counted=CHAT_0_32.counted, ending=CHAT_0_32.ending | {Kind.USAGE})
"""That of 0.10.2: its request also lasts until the usage chunk."""
DIALECTS = {dialect.name: dialect for dialect in (CHAT, COMPLETIONS, CHAT_0_32, CHAT_0_10)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request as vLLM's client would have it; seconds."""

    start: float
    ttft: float
    latency: float
    itls: tuple[float, ...]
    tokens: int

    @property
    def tpot(self) -> float:
        """0 for a one-token answer: that is what vLLM's goodput takes it for."""
        return (self.latency - self.ttft) / (self.tokens - 1) if self.tokens > 1 else 0.0


def seen(record: RequestRecord, dialect: Dialect) -> Seen | None:
    """``None`` where the client would not have got a first chunk."""
    times = [chunk.at for chunk in record.chunks if chunk.kind in dialect.counted]
    ends = [chunk.at for chunk in record.chunks if chunk.kind in dialect.ending]
    if not times:
        return None
    return Seen(
        start=record.sent,
        ttft=times[0] - record.sent,
        latency=ends[-1] - record.sent,
        itls=tuple(after - before for before, after in pairwise(times)),
        tokens=output_tokens(record) or 1,
    )


def would_complete(records: Sequence[RequestRecord], dialect: Dialect) -> int:
    """How many of the measured requests vLLM's client would call successful: any with status 200 and a first chunk."""
    return sum(
        record.status in (None, 200) and seen(record, dialect) is not None for record in measured(records)
    )


def compat(
    records: Sequence[RequestRecord],
    *,
    dialect: Dialect,
    span: Span | None = None,
    percentiles: Sequence[float] = (99.0,),
    limits: Mapping[str, float] | None = None,
    speculation: Acceptance | None = None,
    clocks: Sequence[str] = ("ttft", "tpot", "itl", "e2el"),
) -> dict[str, object]:
    """The result part of vLLM's JSON, keys in its order. ``limits``: ttft, tpot, e2el in seconds."""
    kept = complete(records)
    pairs = [(record, found) for record in kept if (found := seen(record, dialect)) is not None]
    over = span or span_of(records)
    rated = over if kept else None
    prompts = all_known([record.prompt_tokens for record in kept])
    output = all_known([output_tokens(record) for record in kept])
    outs = [found for _, found in pairs]
    rate, most = _buckets(outs)
    result: dict[str, object] = {
        "duration": over.seconds if over else None,
        "completed": len(kept),
        "failed": len(measured(records)) - len(kept),
        "total_input_tokens": prompts if kept else None,
        "total_output_tokens": output if kept else None,
        "request_throughput": per_second(len(kept), rated),
        "request_goodput": per_second(_good(outs, limits), rated) if limits else None,
        "output_throughput": per_second(output, rated),
        "total_token_throughput": per_second(
            None if prompts is None or output is None else prompts + output, rated
        ),
        "max_output_tokens_per_s": rate,
        "max_concurrent_requests": most,
        "rtfx": 0.0,
    }
    if speculation is not None:
        result |= _speculation(speculation)
    samples = {
        "ttft": [out.ttft for out in outs],
        "tpot": [out.tpot for out in outs if out.tokens > 1],
        "itl": [gap for out in outs for gap in out.itls],
        "e2el": [out.latency for out in outs],
        "client_queue_time": [record.sent - record.scheduled for record in kept],
        "e2el_including_client_queue": [
            found.latency + record.sent - record.scheduled for record, found in pairs
        ],
    }
    for clock in clocks:
        result |= _figures(clock, samples[clock], percentiles)
    return result


def percentile_key(q: float) -> str:
    """``99``, ``99.9``: how vLLM writes a percentile."""
    return str(int(q)) if int(q) == q else str(q)


def _figures(clock: str, samples: Sequence[float], percentiles: Iterable[float]) -> dict[str, object]:
    wanted = [*percentiles]
    found = distribution(samples, wanted)
    told = found.scaled(1000) if found else None
    return {
        f"mean_{clock}_ms": told.mean if told else None,
        f"median_{clock}_ms": told.median if told else None,
        f"std_{clock}_ms": told.std if told else None,
        **{f"p{percentile_key(q)}_{clock}_ms": told.percentiles[q] if told else None for q in wanted},
    }


def _good(outs: Sequence[Seen], limits: Mapping[str, float]) -> int:
    """Every objective applies to everybody: a one-token answer has a TPOT of 0, which passes."""
    clocks = {"ttft": lambda out: out.ttft, "tpot": lambda out: out.tpot, "e2el": lambda out: out.latency}
    known = {name: limit for name, limit in limits.items() if name in clocks}
    return sum(all(clocks[name](out) <= limit for name, limit in known.items()) for out in outs)


def _buckets(outs: Sequence[Seen]) -> tuple[float | None, int | None]:
    """Its two peaks: chunks (not tokens) in a second's bucket, and requests that touch a second's bucket."""
    if not outs:
        return None, None
    start = min(out.start for out in outs)
    seconds = ceil(max(out.start + out.latency for out in outs) - start) + 1
    chunks, touching = [0] * seconds, [0] * seconds
    for out in outs:
        at = out.start + out.ttft
        for gap in (0.0, *out.itls):
            at += gap
            if int(at - start) < seconds:
                chunks[int(at - start)] += 1
        for second in range(int(out.start - start), int(out.start + out.latency - start) + 1):
            touching[second] += 1
    return float(max(chunks)), max(touching)


def _speculation(found: Acceptance) -> dict[str, object]:
    """The rate in percent, the rates per position as fractions: as vLLM has it."""
    return {
        "spec_decode_acceptance_rate": None if found.rate is None else found.rate * 100,
        "spec_decode_acceptance_length": found.length,
        "spec_decode_num_drafts": found.steps,
        "spec_decode_draft_tokens": found.drafted,
        "spec_decode_accepted_tokens": found.accepted,
        "spec_decode_per_position_acceptance_rates": list(found.over_all or ()),
    }
