"""Result files of `vllm bench serve` (Python and Rust), 0.10.2 to 0.33.0, with or without --save-detailed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from harness.bench.importers.imported import Imported, clock, number, pace, per_chunk, table, text, unmeasured
from harness.bench.metrics.trust import warm_up_warning
from harness.bench.record import Chunk, Kind, Outcome, RequestRecord

CLOCKS = {
    "ttft": "ttft",
    "tpot": "tpot",
    "itl": "icl",
    "e2el": "e2el",
    "client_queue_time": "client_queue",
    "e2el_including_client_queue": "e2el_from_schedule",
}
PLAIN = {
    "completed": "completed",
    "failed": "failed",
    "duration": "duration_s",
    "request_throughput": "throughput.request",
    "output_throughput": "throughput.output",
    "total_token_throughput": "throughput.total",
    "request_goodput": "goodput.per_second",
    "max_output_tokens_per_s": "vllm.peak_chunks_per_second",
    "max_concurrent_requests": "vllm.requests_in_one_second",
    "spec_decode_acceptance_length": "acceptance.length",
}
NOTES = (
    "its ITL is one sample per chunk: here icl",
    "streams with an error object in them or without [DONE] count as completed",
)
_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "latencies")


def from_vllm(found: Mapping[str, Any], tool: str = "vllm") -> Imported:
    """Read a parsed result."""
    metrics = metrics_of_vllm(found)
    ours = table(found.get("specharness"))
    told = ours.get("warnings")
    return Imported(
        tool="specharness" if ours else tool,
        model=text(found.get("model_id")),
        load=pace(found.get("request_rate"), found.get("max_concurrency")),
        metrics={**metrics, **table(ours.get("metrics"))},
        result={key: value for key, value in found.items() if key != "specharness"},
        records=records_of_vllm(found),
        warnings=tuple(map(str, told)) if isinstance(told, list) else warnings_of(metrics),
        notes=() if ours else NOTES,
    )


def metrics_of_vllm(found: Mapping[str, Any]) -> dict[str, float | None]:
    """Its figures in our names. Where nothing was completed its zeros are none."""
    metrics = {ours: number(found[key]) for key, ours in PLAIN.items() if key in found}
    for theirs, ours in CLOCKS.items():
        metrics |= dict(clock(found, theirs, ours))
    rate = number(found.get("spec_decode_acceptance_rate"))
    if rate is not None:
        metrics["acceptance.rate"] = rate / 100
    metrics["chunks.tokens_per_chunk"] = per_chunk(metrics)
    return metrics if metrics.get("completed") else unmeasured(metrics)


def records_of_vllm(found: Mapping[str, Any]) -> tuple[RequestRecord, ...]:
    """Its requests chunk by chunk, where it kept them. Tokens of a chunk are not in it, nor when a stream was closed
    (taken: with its last chunk). Empty where a list is missing or lists do not fit each other."""
    lists = [found.get(name) for name in _LISTS]
    if not all(isinstance(values, list) for values in lists):
        return ()
    rows = [values for values in lists if isinstance(values, list)]
    if len({len(values) for values in rows}) != 1:
        return ()
    errors = found.get("errors")
    begin = min((at for at in rows[4] if number(at) is not None), default=0.0)
    records = []
    for place, (prompt, tokens, ttft, gaps, start, latency) in enumerate(zip(*rows, strict=True)):
        error = errors[place] if isinstance(errors, list) and place < len(errors) else ""
        numbers = [number(value) for value in (ttft, start, latency)]
        if not isinstance(gaps, list) or any(number(gap) is None for gap in gaps) or None in numbers:
            return ()
        sent = start - begin
        times = list(accumulate([sent + ttft, *gaps])) if not error else []
        records.append(
            RequestRecord(
                id=f"{place}",
                scheduled=sent,
                sent=sent,
                closed=sent + latency,
                outcome=Outcome.HTTP_ERROR if error else Outcome.COMPLETE,
                detail=str(error),
                chunks=tuple(Chunk(at=at, kind=Kind.CONTENT) for at in times),
                prompt_tokens=int(prompt) if number(prompt) is not None else None,
                completion_tokens=int(tokens) if number(tokens) is not None and not error else None,
            )
        )
    return tuple(records)


def warnings_of(metrics: Mapping[str, float | None]) -> tuple[str, ...]:
    """What can be said of any tool's run from its figures alone."""
    lines = [warm_up_warning(metrics.get("ttft.mean_ms"), metrics.get("ttft.median_ms"))]
    if not metrics.get("completed"):
        lines.append("nothing was completed: none of its figures was measured")
    elif failed := metrics.get("failed"):
        lines.append(f"{failed:g} requests failed")
    return tuple(line for line in lines if line)
