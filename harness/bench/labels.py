"""The lines of the block that `vllm bench serve` prints: labels, keys of its JSON, order. Read in its released wheels.

``vllm-0.10.2`` is the set that the thread of vllm#24957 shows; ``current`` is that of 0.33.0.
"""

from __future__ import annotations

from dataclasses import dataclass

WIDTH = 50
TITLE = " Serving Benchmark Result "
SPECULATION = "Speculative Decoding"
PER_POSITION = "Per-position acceptance (%):"
POSITION = "  Position {}:"
STYLES = ("vllm-0.10.2", "current")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """``whole``: printed as it is, else with two decimals. ``optional``: left out where the run has no such setting."""

    label: str
    key: str
    whole: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A clock's block: ``word`` stands in its labels, ``clock`` in its keys."""

    header: str
    word: str
    clock: str


_COMPLETED = Line(label="Successful requests:", key="completed", whole=True)
_FAILED = Line(label="Failed requests:", key="failed", whole=True)
_SETTING = (
    Line(label="Maximum request concurrency:", key="max_concurrency", whole=True, optional=True),
    Line(label="Request rate configured (RPS):", key="request_rate", optional=True),
    Line(label="Benchmark duration (s):", key="duration"),
    Line(label="Total input tokens:", key="total_input_tokens", whole=True),
    Line(label="Total generated tokens:", key="total_output_tokens", whole=True),
    Line(label="Request throughput (req/s):", key="request_throughput"),
    Line(label="Request goodput (req/s):", key="request_goodput", optional=True),
    Line(label="Output token throughput (tok/s):", key="output_throughput"),
)
HEAD = {
    "vllm-0.10.2": (
        _COMPLETED,
        *_SETTING,
        Line(label="Total Token throughput (tok/s):", key="total_token_throughput"),
    ),
    "current": (
        _COMPLETED,
        _FAILED,
        *_SETTING,
        Line(label="Peak output token throughput (tok/s):", key="max_output_tokens_per_s"),
        Line(label="Peak concurrent requests:", key="max_concurrent_requests"),
        Line(label="Total token throughput (tok/s):", key="total_token_throughput"),
    ),
}

_CLOCKS = (
    Section(header="Time to First Token", word="TTFT", clock="ttft"),
    Section(header="Time per Output Token (excl. 1st token)", word="TPOT", clock="tpot"),
    Section(header="Inter-token Latency", word="ITL", clock="itl"),
    Section(header="End-to-end Latency", word="E2EL", clock="e2el"),
)
CLOCKS = {
    "vllm-0.10.2": _CLOCKS,
    "current": (
        *_CLOCKS,
        Section(header="Client-side Queueing", word="Client Queue Time", clock="client_queue_time"),
        Section(
            header="Queue-inclusive End-to-end Latency",
            word="E2EL incl. Client Queue",
            clock="e2el_including_client_queue",
        ),
    ),
}

DRAFTS = (
    Line(label="Acceptance rate (%):", key="spec_decode_acceptance_rate"),
    Line(label="Acceptance length:", key="spec_decode_acceptance_length"),
    Line(label="Drafts:", key="spec_decode_num_drafts", whole=True),
    Line(label="Draft tokens:", key="spec_decode_draft_tokens", whole=True),
    Line(label="Accepted tokens:", key="spec_decode_accepted_tokens", whole=True),
)
"""0.10.2 has none of it."""
POSITIONS = "spec_decode_per_position_acceptance_rates"


def percentile_label(key: str, section: Section) -> str | None:
    """``p99_ttft_ms`` -> ``P99 TTFT (ms):``; ``None`` for a key that is no percentile of this clock."""
    ending = f"_{section.clock}_ms"
    q = key.removesuffix(ending).removeprefix("p")
    if not key.endswith(ending) or not key.startswith("p") or not q.replace(".", "", 1).isdigit():
        return None
    return f"P{q} {section.word} (ms):"
