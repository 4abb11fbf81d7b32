"""How many tokens a request had, and how they lay in its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bench.metrics.span import complete, measured
from harness.bench.record import Chunk, Kind, Outcome, RequestRecord

_OUTPUT = tuple(kind for kind in Kind if kind.has_tokens)


def output_chunks(record: RequestRecord) -> list[Chunk]:
    """What counts as output: no role, no finish, no usage, no [DONE]."""
    return [chunk for chunk in record.chunks if chunk.kind in _OUTPUT]


def chunk_tokens(record: RequestRecord) -> list[int] | None:
    """Tokens of each output chunk; ``None`` where that is not known.

    Where the server does not say, but its usage counts as many tokens as there are chunks, each holds one.
    """
    chunks = output_chunks(record)
    told = [chunk.tokens for chunk in chunks if chunk.tokens is not None]
    if len(told) == len(chunks):
        return told
    if not told and record.completion_tokens == len(chunks):
        return [1] * len(chunks)
    return None


def output_tokens(record: RequestRecord) -> int | None:
    """The server's usage; else what its chunks say; else its token ids. Never re-tokenised text (vllm#12288)."""
    if record.completion_tokens is not None:
        return record.completion_tokens
    told = chunk_tokens(record)
    if told is not None:
        return sum(told)
    return len(record.token_ids) or None


def partial_tokens(record: RequestRecord) -> int:
    """Tokens that came of a request that failed: at least one for each output chunk, usage does not count."""
    return max(sum(max(chunk.tokens or 1, 1) for chunk in output_chunks(record)), len(record.token_ids))


def all_known(counts: Sequence[int | None]) -> int | None:
    """Their sum; ``None`` where one is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunking:
    """How tokens lay in chunks: what every ITL has to be read beside. Shares are 0 to 1.

    ``tokens_per_chunk`` needs usage alone; ``several`` (chunks with more than one token) needs tokens of each chunk.
    ``coalesced``: output chunks whose bytes came in one read with an earlier event's, so that their time may be late.
    """

    chunks: int
    tokens_per_chunk: float | None
    several: float | None
    coalesced: float | None


def chunking(records: Sequence[RequestRecord]) -> Chunking:
    """Of the requests that succeeded."""
    kept = complete(records)
    chunks = [chunk for record in kept for chunk in output_chunks(record)]
    tokens = all_known([output_tokens(record) for record in kept])
    each = [chunk_tokens(record) for record in kept]
    known = [count for counts in each if counts is not None for count in counts]
    whole = all(counts is not None for counts in each)
    return Chunking(
        chunks=len(chunks),
        tokens_per_chunk=tokens / len(chunks) if chunks and tokens is not None else None,
        several=sum(count > 1 for count in known) / len(known) if known and whole else None,
        coalesced=sum(chunk.coalesced for chunk in chunks) / len(chunks) if chunks else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """How the measured streams ended; ``partial_tokens`` came of those that failed and count nowhere else."""

    completed: int
    failed: int
    outcomes: dict[str, int]
    partial_tokens: int

    @property
    def bad_share(self) -> float | None:
        """Failed of all; ``None`` where nothing was sent."""
        sent = self.completed + self.failed
        return self.failed / sent if sent else None


def streams(records: Sequence[RequestRecord]) -> Streams:
    """Count how they ended."""
    kept = measured(records)
    bad = [record for record in kept if record.outcome is not Outcome.COMPLETE]
    return Streams(
        completed=len(kept) - len(bad),
        failed=len(bad),
        outcomes={
            outcome.name.lower(): n
            for outcome in Outcome
            if (n := sum(record.outcome is outcome for record in kept))
        },
        partial_tokens=sum(partial_tokens(record) for record in bad),
    )
