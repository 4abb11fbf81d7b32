"""Where wrong places stand, and what that hints at: the client sees how many tokens each step committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.exchange import Exchange

Hits = Mapping[str, tuple[Exchange, int]]


def pattern(hits: Hits, everybody: Sequence[Exchange]) -> str:
    """A sentence about where the first wrong tokens stand; empty where nothing is hit.

    Chunks are steps as far as a client can see: ``a`` is the size of the chunk before the one that holds the token.
    """
    if not hits:
        return ""
    steps = [step for exchange, index in hits.values() if (step := _step(exchange, index)) is not None]
    sentences = [_guided(hits, everybody)]
    if steps:
        late = [before for before, _ in steps if before > 1]
        short = [(before, here) for before, here in steps if before > 1 and here < before]
        if len(late) == len(steps):
            sentences.append(
                f"each first one follows a step that committed several tokens ({_span(late)}): "
                "the accepted count of the step before is not used as it should be"
            )
        elif len(late) >= 0.6 * len(steps):
            sentences.append(
                f"{len(late)} of {len(steps)} first ones follow a step that committed several tokens"
            )
        if len(short) >= 0.6 * len(steps) and len(late) == len(steps):
            sentences.append(
                "and their own step is shorter: a row that was trimmed behind a longer run (vllm#24881, #39273)"
            )
        if all(before == 0 for before, _ in steps):
            sentences.append(
                "each first one stands right behind the prompt: what a prompt leaves behind is wrong"
            )
    return "; ".join(filter(None, sentences))


def _guided(hits: Hits, everybody: Sequence[Exchange]) -> str:
    """Whether only guided or only free requests are hit, where there were both."""
    both = {e.ask.grammar is None for e in everybody}
    seen = {e.ask.grammar is None for e, _ in hits.values()}
    if len(both) == 2 and len(seen) == 1:
        return "only free requests are hit" if seen == {True} else "only guided requests are hit"
    return ""


def _step(exchange: Exchange, index: int) -> tuple[int, int] | None:
    """(tokens of the chunk before, tokens of the chunk that holds the place); before the first: 0."""
    before, seen = 0, 0
    for size in exchange.answer.chunks:
        if seen + size > index:
            return before, size
        before, seen = size, seen + size
    return None


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"a = {low}" if low == high else f"a = {low} to {high}"
