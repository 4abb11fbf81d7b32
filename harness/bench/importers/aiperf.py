"""Results of AIPerf (profile_export_aiperf.json), as 0.13.0 writes them; GenAI-Perf's shape is the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.bench.importers.imported import Imported, number, per_chunk, table, text, unmeasured
from harness.bench.importers.vllm import warnings_of

CLOCKS = {
    "time_to_first_token": ("ttft",),
    "time_to_first_output_token": ("ttfo",),
    "inter_token_latency": ("itl_request_mean",),
    "inter_chunk_latency": ("icl",),
    "request_latency": ("e2el",),
    "time_to_second_token": ("aiperf.time_to_second_token",),
}
PLAIN = {
    "request_count": "completed",
    "error_request_count": "failed",
    "request_throughput": "throughput.request",
    "output_token_throughput": "throughput.output",
    "total_token_throughput": "throughput.total",
    "goodput": "goodput.per_second",
    "spec_decode_token_weighted_acceptance_length": "acceptance.length",
}
_SECONDS = {"ns": 1e-9, "nanoseconds": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0, "seconds": 1.0}
NOTES = (
    "its ITL is one mean per request, its denominator without the first chunk's tokens where the server counts them",
    "streams with an error object in them or without [DONE] count as completed",
)


def from_aiperf(found: Mapping[str, Any]) -> Imported:
    """Read a parsed export."""
    figures = table(found.get("records")) or found
    metrics: dict[str, float | None] = {
        ours: number(table(figures[key]).get("avg")) for key, ours in PLAIN.items() if key in figures
    }
    metrics.setdefault("completed", None)
    metrics.setdefault("failed", 0.0 if metrics["completed"] else None)  # left out where none failed
    for theirs, names in CLOCKS.items():
        for ours in names:
            metrics |= dict(_figures(table(figures.get(theirs)), ours))
    duration = table(figures.get("benchmark_duration"))
    metrics["duration_s"] = _in_seconds(duration, "avg")
    rate = number(table(figures.get("spec_decode_overall_draft_acceptance_rate")).get("avg"))
    if rate is not None:
        metrics["acceptance.rate"] = rate / 100
    metrics["chunks.tokens_per_chunk"] = per_chunk(
        {**metrics, "tpot.mean_ms": metrics.get("itl_request_mean.mean_ms")}
    )
    if not metrics["completed"]:
        metrics = unmeasured(metrics)
    warnings = list(warnings_of(metrics))
    if found.get("was_cancelled") is True:
        warnings.append("the run was cancelled")
    if found.get("is_complete") is False:
        warnings.append(
            f"the run is not complete: {text(found.get('incomplete_reason')) or 'no reason given'}"
        )
    return Imported(
        tool="aiperf",
        version=text(found.get("aiperf_version")),
        model=_model(found),
        metrics=metrics,
        result=_result(figures, metrics),
        warnings=tuple(warnings),
        notes=NOTES,
    )


def _figures(found: Mapping[str, Any], ours: str) -> Iterator[tuple[str, float | None]]:
    names = {"avg": "mean", "p50": "median", "std": "std"}
    for key in found:
        figure = names.get(key) or (key if key[:1] == "p" and key[1:].isdigit() else None)
        value = _in_seconds(found, key)
        if figure is not None and value is not None:
            yield f"{ours}.{figure}_ms", value * 1000


def _in_seconds(found: Mapping[str, Any], key: str) -> float | None:
    value, unit = number(found.get(key)), text(found.get("unit"))
    factor = _SECONDS.get((unit or "").lower())
    return None if value is None or factor is None else value * factor


def _model(found: Mapping[str, Any]) -> str | None:
    items = table(table(found.get("input_config")).get("models")).get("items")
    return text(table(items[0]).get("name")) if isinstance(items, list) and items else None


def _result(figures: Mapping[str, Any], metrics: Mapping[str, float | None]) -> dict[str, Any]:
    """With vLLM's keys. Its mean per request is TPOT there; its inter-chunk latency is ITL there."""
    found: dict[str, Any] = {
        "completed": metrics["completed"],
        "failed": metrics["failed"],
        "duration": metrics["duration_s"],
        "total_input_tokens": number(table(figures.get("total_isl")).get("avg")),
        "total_output_tokens": number(table(figures.get("total_osl")).get("avg")),
        "request_throughput": metrics.get("throughput.request"),
        "output_throughput": metrics.get("throughput.output"),
        "total_token_throughput": metrics.get("throughput.total"),
    }
    for ours, theirs in {"ttft": "ttft", "itl_request_mean": "tpot", "icl": "itl", "e2el": "e2el"}.items():
        for figure in ("mean", "median", "std", "p99"):
            if f"{ours}.{figure}_ms" in metrics:
                found[f"{figure}_{theirs}_ms"] = metrics[f"{ours}.{figure}_ms"]
    return found
