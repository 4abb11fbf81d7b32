"""What a stream was, when it is over: its chunks with their tokens, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence

from harness.bench.record import Chunk, Kind, Outcome

Row = tuple[float, Kind, int | None, int | None, bool]
"""When, what, how many tokens it says it holds, usage so far, and whether its read brought an earlier event too."""

TOKENS = (Kind.CONTENT, Kind.REASONING, Kind.TOOL)
"""The kinds that count as output: a look at a tuple is cheaper than ``Kind.has_tokens``, and there are many chunks."""


def settled(rows: Sequence[Row]) -> tuple[Chunk, ...]:
    """The chunks, with token counts out of running usage where nothing better tells.

    Usage on the last chunk alone is the total and no count of that chunk: it runs only if the first one had it.
    """
    first = next((used for _, kind, _, used, _ in rows if kind in TOKENS), None)
    if first is not None and all(row[2] is None for row in rows):
        rows = _by_running_usage(rows)
    return tuple(
        [
            Chunk(at=at, kind=kind, tokens=tokens, coalesced=coalesced)
            for at, kind, tokens, _, coalesced in rows
        ]
    )


def _by_running_usage(rows: Sequence[Row]) -> list[Row]:
    told, so_far = [], 0
    for at, kind, tokens, used, coalesced in rows:
        if used is not None:
            tokens, so_far = used - so_far, used
            if kind not in TOKENS:  # a token that came with the finish reason and without text
                kind, tokens = (Kind.CONTENT, tokens) if tokens else (kind, None)
        told.append((at, kind, tokens, used, coalesced))
    return told


def verdict(
    finish_reason: str | None, done: bool, claimed: int | None, chunks: Sequence[Chunk]
) -> tuple[Outcome, str]:
    """How a stream without an error ended. ``claimed``: completion tokens of its usage."""
    if finish_reason is None:
        return Outcome.CUT, "the stream ended without a finish reason"
    if not done:
        return Outcome.CUT, "the stream ended without [DONE]"
    if claimed is None:
        return Outcome.NO_USAGE, "the server counted no completion tokens"
    came = [chunk for chunk in chunks if chunk.kind in TOKENS]
    counts = [chunk.tokens for chunk in came]
    if came and None not in counts:
        if (held := sum(filter(None, counts))) != claimed:
            return Outcome.USAGE_DIFFERS, f"usage says {claimed} tokens, the chunks hold {held}"
    elif len(came) > claimed and all(chunk.kind is Kind.CONTENT for chunk in came):
        return Outcome.USAGE_DIFFERS, f"usage says {claimed} tokens, and {len(came)} chunks came"
    elif not came and claimed > 1:  # one may be the end of the text, which has no chunk
        return Outcome.USAGE_DIFFERS, f"usage says {claimed} tokens, and no chunk came"
    return Outcome.COMPLETE, ""
