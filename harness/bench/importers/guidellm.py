"""Reports of GuideLLM (benchmarks.json), as 0.8.1 writes them: one run for each benchmark in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.bench.importers.imported import Imported, number, pace, table, text, unmeasured
from harness.bench.importers.vllm import warnings_of

CLOCKS = {  # theirs: (ours, factor to milliseconds)
    "time_to_first_token_ms": (("ttft",), 1.0),
    "time_to_first_output_token_ms": (("ttfo",), 1.0),
    "inter_token_latency_ms": (("itl_request_mean", "tpot"), 1.0),
    "time_per_output_token_ms": (("guidellm.tpot",), 1.0),
    "request_latency": (("until_closed",), 1000.0),
    "request_scheduled_latency": (("guidellm.scheduled_latency",), 1000.0),
    "request_dispatch_delay": (("client_queue",), 1000.0),
}
RATES = {
    "requests_per_second": "throughput.request",
    "output_tokens_per_second": "throughput.output",
    "tokens_per_second": "throughput.total",
    "request_concurrency": "concurrency.mean",
    "output_tokens_per_iteration": "guidellm.output_tokens_per_iteration",
    "request_goodput": "goodput.per_second",
}
NOTES = (
    "its ITL is one mean per request, (last - first)/(n - 1): here itl_request_mean and tpot",
    "its TPOT divides by n and contains the first token: here guidellm.tpot",
    "its request latency lasts until the stream is closed: here until_closed",
)


def from_guidellm(found: Mapping[str, Any]) -> list[Imported]:
    """Read a parsed report."""
    version = text(table(found.get("metadata")).get("guidellm_version"))
    benchmarks = found.get("benchmarks")
    return [_benchmark(table(one), version) for one in (benchmarks if isinstance(benchmarks, list) else [])]


def _benchmark(found: Mapping[str, Any], version: str | None) -> Imported:
    theirs = table(found.get("metrics"))
    totals = table(theirs.get("request_totals"))
    metrics: dict[str, float | None] = {
        "completed": number(totals.get("successful")),
        "failed": number(totals.get("errored")),
    }
    for name, (names, factor) in CLOCKS.items():
        good = table(table(theirs.get(name)).get("successful"))
        for ours in names:
            metrics |= dict(_figures(good, ours, factor))
    for name, ours in RATES.items():
        good = table(table(theirs.get(name)).get("successful"))
        if good:
            metrics[ours] = number(good.get("mean"))
    clock = table(found.get("scheduler_metrics"))
    begin, end = number(clock.get("measure_start_time")), number(clock.get("measure_end_time"))
    metrics["duration_s"] = end - begin if begin is not None and end is not None else None
    if not metrics["completed"]:
        metrics = unmeasured(metrics)
    incomplete = number(totals.get("incomplete")) or 0
    config = table(found.get("config"))
    strategy = table(config.get("strategy"))
    return Imported(
        tool="guidellm",
        version=version,
        model=text(table(config.get("backend")).get("model")),
        load=pace(strategy.get("rate"), strategy.get("streams"), text(strategy.get("type_")) or ""),
        metrics=metrics,
        result=_result(theirs, metrics),
        warnings=(
            *warnings_of(metrics),
            *([f"{incomplete:g} requests were not finished when it ended"] if incomplete else []),
        ),
        notes=NOTES,
    )


def _figures(good: Mapping[str, Any], ours: str, factor: float) -> Iterator[tuple[str, float | None]]:
    """``mean``, ``median``, ``std_dev`` and the percentiles (``p99``, ``p999``, ``p01``) of one distribution."""
    names = {"mean": "mean", "median": "median", "std_dev": "std"}
    for key, figure in names.items():
        value = number(good.get(key))
        if value is not None:
            yield f"{ours}.{figure}_ms", value * factor
    for key, raw in table(good.get("percentiles")).items():
        value, q = number(raw), key.removeprefix("p")
        if value is None or not q.isdigit() or q == "50":
            continue
        shown = f"{q[:2]}.{q[2:]}" if len(q) > 2 else q
        yield f"{ours}.p{float(shown):g}_ms", value * factor


def _result(theirs: Mapping[str, Any], metrics: Mapping[str, float | None]) -> dict[str, Any]:
    """What vLLM's keys have an equal for: no ITL (no gap between chunks is kept), no end-to-end latency."""

    def total(name: str) -> float | None:
        good = table(table(theirs.get(name)).get("successful"))
        return number(good.get("total_sum")) if metrics["completed"] else None

    found: dict[str, Any] = {
        "completed": metrics["completed"],
        "failed": metrics["failed"],
        "duration": metrics["duration_s"],
        "total_input_tokens": total("prompt_token_count"),
        "total_output_tokens": total("output_token_count"),
        "request_throughput": metrics.get("throughput.request"),
        "output_throughput": metrics.get("throughput.output"),
        "total_token_throughput": metrics.get("throughput.total"),
    }
    for ours in ("ttft", "tpot"):
        for figure in ("mean", "median", "std", "p99"):
            if f"{ours}.{figure}_ms" in metrics:
                found[f"{figure}_{ours}_ms"] = metrics[f"{ours}.{figure}_ms"]
    return found
