"""Result lines of `sglang.bench_serving` (JSONL, one line a run), as 0.5.23 writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.bench.importers.imported import Imported, clock, number, pace, per_chunk, table, text, unmeasured
from harness.bench.importers.vllm import warnings_of

PLAIN = {
    "completed": "completed",
    "duration": "duration_s",
    "request_throughput": "throughput.request",
    "output_throughput": "throughput.output",
    "total_throughput": "throughput.total",
    "concurrency": "concurrency.mean",
    "accept_length": "acceptance.length",
    "max_output_tokens_per_s": "sglang.peak_chunks_per_second",
    "max_concurrent_requests": "sglang.requests_in_one_second",
}
_AS_VLLM = {"total_throughput": "total_token_throughput"}
_NATIVE = ("sglang", "sglang-native")
_RETOKENISED = ("sglang-oai", "sglang-oai-chat")


def from_sglang(found: Mapping[str, Any]) -> Imported:
    """Read one parsed line."""
    backend = text(found.get("backend")) or ""
    amortised = backend in _NATIVE or (backend in _RETOKENISED and bool(number(found.get("accept_length"))))
    names = {
        "ttft": "ttft",
        "tpot": "tpot",
        "itl": "itl_amortised" if amortised else "icl",
        "e2e_latency": "until_closed",
    }
    metrics = {ours: number(found[key]) for key, ours in PLAIN.items() if key in found}
    for theirs, ours in names.items():
        metrics |= dict(clock(found, theirs, ours))
    metrics["chunks.tokens_per_chunk"] = per_chunk(metrics)
    if not metrics.get("completed"):
        metrics = unmeasured(metrics)
    server = table(found.get("server_info"))
    return Imported(
        tool="sglang",
        version=text(server.get("version")),
        model=text(server.get("model_path")),
        load=pace(found.get("request_rate"), found.get("max_concurrency")),
        metrics=metrics,
        result=_result(found),
        warnings=warnings_of(metrics),
        notes=_notes(found, amortised),
    )


def _result(found: Mapping[str, Any]) -> dict[str, Any]:
    """With vLLM's keys: end-to-end latency keeps out of it, for SGLang's lasts until the stream's last line."""
    same = {key: value for key, value in found.items() if not key.endswith("_e2e_latency_ms")}
    return {_AS_VLLM.get(key, key): value for key, value in same.items() if key != "server_info"}


def _notes(found: Mapping[str, Any], amortised: bool) -> tuple[str, ...]:
    notes = [
        "its ITL divides each gap by the chunk's tokens: here itl_amortised"
        if amortised
        else "its ITL is one sample per chunk: here icl",
        "its end-to-end latency lasts to the stream's last line, usage and [DONE] included: here until_closed",
        "TTFT contains the set-up of a connection of its own for every request",
        "it does not say how many requests failed",
    ]
    if number(found.get("accept_length")):
        notes.append("its accept length is the average of the server's lifetime, not of this run")
    return tuple(notes)
