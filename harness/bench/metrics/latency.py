"""Latencies of one request, in seconds. ``None``: it was not measured, or is not defined for this request."""

from __future__ import annotations

from harness.bench.metrics.tokens import chunk_tokens, output_chunks, output_tokens
from harness.bench.record import Kind, RequestRecord


def ttft(record: RequestRecord) -> float | None:
    """From send to the first output chunk, reasoning included; a chunk that only opens a chat is none (vllm#3768)."""
    chunks = output_chunks(record)
    return chunks[0].at - record.sent if chunks else None


def ttft_from_schedule(record: RequestRecord) -> float | None:
    """The same from when it should have been sent."""
    return _later(ttft(record), client_queue(record))


def ttfo(record: RequestRecord) -> float | None:
    """From send to the first chunk of the answer itself (content or tool call), behind any reasoning."""
    answers = [chunk for chunk in record.chunks if chunk.kind in (Kind.CONTENT, Kind.TOOL)]
    return answers[0].at - record.sent if answers else None


def e2el(record: RequestRecord) -> float | None:
    """From send to the last output chunk: not to usage, [DONE] or the end of the stream."""
    chunks = output_chunks(record)
    return chunks[-1].at - record.sent if chunks else None


def e2el_from_schedule(record: RequestRecord) -> float | None:
    """The same from when it should have been sent: what a user waits for (coordinated omission)."""
    return _later(e2el(record), client_queue(record))


def until_closed(record: RequestRecord) -> float:
    """From send to the end of the stream: SGLang's and GuideLLM's request latency."""
    return record.closed - record.sent


def client_queue(record: RequestRecord) -> float:
    """How long it waited in the client: from when it should have been sent to when it was."""
    return record.sent - record.scheduled


def decoding(record: RequestRecord) -> float | None:
    """From the first output chunk to the last; ``None`` where only one came, for then nothing was timed."""
    chunks = output_chunks(record)
    return chunks[-1].at - chunks[0].at if len(chunks) > 1 else None


def tpot(record: RequestRecord) -> float | None:
    """(last - first) / (n - 1): the common definition. Undefined for n <= 1, and where all came in one chunk."""
    took, tokens = decoding(record), output_tokens(record)
    if took is None or tokens is None or tokens <= 1:
        return None
    return took / (tokens - 1)


def tpot_decode(record: RequestRecord) -> float | None:
    """(last - first) / (n - tokens of the first chunk): right where the first chunk holds several."""
    took, tokens, each = decoding(record), output_tokens(record), chunk_tokens(record)
    if took is None or tokens is None or each is None or tokens <= each[0]:
        return None
    return took / (tokens - each[0])


def _later(latency: float | None, queued: float) -> float | None:
    return None if latency is None else latency + queued
