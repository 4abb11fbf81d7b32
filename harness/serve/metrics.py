"""Prometheus metrics under vLLM's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from harness.engine.engine import Engine, StepResult

LABELS = ("engine", "model_name")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
COUNTED = {
    "spec_decode_num_drafts": "Verify rows.",
    "spec_decode_num_draft_tokens": "Drafts in verify rows.",
    "spec_decode_num_accepted_tokens": "Drafts that were accepted.",
    "num_preemptions": "Requests that lost their memory and are computed again.",
    "prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
}
ENGINE_NAMES = {
    "num_preemptions": "preemptions",
    "prefix_cache_queries": "prefix_queries",
    "prefix_cache_hits": "prefix_hits",
}
"""The engine's own names of its counters, where they are not vLLM's without ``spec_decode_``."""


class Metrics(Collector):
    """What the server has done. Written by the engine's thread, read by whoever asks."""

    def __init__(self, engine: Engine, model_name: str) -> None:
        self._engine = engine
        self._labels = ("0", model_name)
        self._accepted_at: Counter[int] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens of answers.")
        self._success = PrometheusCounter(
            "vllm:request_success",
            "Finished requests.",
            (*LABELS, "finished_reason"),
            registry=self._registry,
        )
        self.first_token = self._histogram("time_to_first_token", "From arrival to the first token.")
        self.between_tokens = self._histogram("inter_token_latency", "Between runs of tokens, per run.")
        self.whole_request = self._histogram("e2e_request_latency", "From arrival to the last token.")

    def text(self) -> bytes:
        """The exposition format of Prometheus."""
        return generate_latest(self._registry)

    def finished(self, reason: str) -> None:
        """A request has ended."""
        self._success.labels(*self._labels, reason).inc()

    def count_step(self, step: StepResult) -> None:
        """Which places of the drafts were accepted."""
        for row in step.rows:
            if not row.in_prompt and not row.discarded:
                self._accepted_at.update(range(len(row.committed) - 1))

    def collect(self) -> Iterator[Metric]:
        """The engine's own counters and queues, as they are when somebody asks (a collector of prometheus_client)."""
        counters, scheduler = self._engine.counters, self._engine.scheduler
        for name, value in (
            ("num_requests_running", len(scheduler.running)),
            ("num_requests_waiting", len(scheduler.waiting)),
            ("kv_cache_usage_perc", 1 - scheduler.blocks.num_free / (self._engine.config.num_blocks - 1)),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", name.replace("_", " "), labels=LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, meaning in COUNTED.items():
            counter = CounterMetricFamily(f"vllm:{name}", meaning, labels=LABELS)
            counter.add_metric(
                self._labels, counters[ENGINE_NAMES.get(name, name.removeprefix("spec_decode_"))]
            )
            yield counter
        places = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Drafts that were accepted, by their place in the row.",
            labels=(*LABELS, "position"),
        )
        for place in range(self._engine.config.k):
            places.add_metric((*self._labels, str(place)), self._accepted_at[place])
        yield places

    def _counter(self, name: str, meaning: str) -> PrometheusCounter:
        counter = PrometheusCounter(f"vllm:{name}", meaning, LABELS, registry=self._registry)
        return counter.labels(*self._labels)

    def _histogram(self, name: str, meaning: str) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}_seconds", meaning, LABELS, registry=self._registry, buckets=SECONDS
        )
        return histogram.labels(*self._labels)
