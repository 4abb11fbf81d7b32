"""Name a mistake in logits whose states are right: they belong elsewhere, or attention saw something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from harness.check.distance import logits_error
from harness.check.reference import Reference, accepted_counts, start_of
from harness.oracle.attention import forget
from harness.trace import Array, Coordinate, RowTrace, Trace

REACH = 8
"""How many tokens away other positions are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """Logits that a known mistake would have given: its class and how it reads."""

    cause: str
    words: str
    logits: Array  # [vocab]


def cause_of_logits(
    trace: Trace, reference: Reference, at: Coordinate, threshold: float
) -> tuple[str, str] | None:
    """The class of the first wrong position of a row's logits, and a sentence; ``None`` where there are none."""
    rows = [row for step in trace.steps if step.index == at.step for row in step.rows if not row.discarded]
    row = next((row for row in rows if row.request == at.request), None)
    if row is None or row.logits is None:
        return None
    right = reference.replay(row.request).logits
    counts = [count for count in accepted_counts(row) if 1 <= count <= len(right)][: len(row.logits)]
    errors = logits_error(row.logits[: len(counts)], right[[count - 1 for count in counts]])
    if not (errors > threshold).any():
        return None
    place = int((errors > threshold).argmax())
    seen, count = row.logits[place], counts[place]
    if not np.isfinite(seen).all():
        return (
            "not finite",
            f"{np.count_nonzero(~np.isfinite(seen))} of {seen.size} logits are NaN or infinite",
        )
    before = [r for s in trace.steps if s.index < at.step for r in s.rows if r.request == row.request]
    others = [*_elsewhere(reference, rows, row, count), *_other_memory(reference, before, row, count)]
    ranked = sorted(
        (
            (float(logits_error(seen[None], other.logits[None])[0]), i, other)
            for i, other in enumerate(others)
        ),
        key=lambda entry: entry[:2],
    )
    where = f"logits after {count} tokens (place {place} of the row)"
    if ranked and ranked[0][0] <= threshold:
        residual, _, best = ranked[0]
        return best.cause, f"{where}: {best.words} (residual {residual:.2g})"
    words = "no known mistake fits; states of linear layers are right, attention or its cache is left"
    return "attention", f"{where}: {words}"


def _elsewhere(reference: Reference, rows: list[RowTrace], row: RowTrace, count: int) -> Iterator[_Other]:
    """Right logits in the wrong place."""
    own = reference.replay(row.request).logits
    for other in range(max(count - REACH, 1), min(count + REACH, len(own)) + 1):
        if other != count:
            words = f"they are those after {other} tokens"
            yield _Other(cause="logits of another position", words=words, logits=own[other - 1])
    rejected = [] if row.prompt_tokens else reference.known(row.kept[max(row.accepted - 1, 0) :])
    if rejected:
        fork = reference.fork(row.request, row.num_computed, rejected).logits
        for j, logits in enumerate(fork):
            words = f"they are those behind rejected draft {j}"
            yield _Other(cause="logits of another position", words=words, logits=logits)
    for stranger in rows:
        if stranger.request != row.request:
            theirs = reference.replay(stranger.request).logits
            for other in range(max(start_of(stranger), 0), min(stranger.num_computed, len(theirs))):
                words = f"they are those of request {stranger.request} after {other + 1} tokens"
                yield _Other(cause="logits of another request", words=words, logits=theirs[other])


def _other_memory(
    reference: Reference, before: list[RowTrace], row: RowTrace, count: int
) -> Iterator[_Other]:
    """The row over a KV cache that was not written for some tokens."""
    start, history = start_of(row), reference.known(reference.histories[row.request])
    if not 0 < start < count <= len(history):
        return
    fold = reference.oracle.fold()
    fold.extend(history[:start])
    spans = {(0, start): "all tokens before the row", (0, row.cached): "the tokens of its prefix hit"}
    spans |= {
        (start_of(old), old.num_computed): f"tokens {start_of(old)} to {old.num_computed - 1}"
        for old in before[-REACH:]
    }
    for (first, end), what in spans.items():
        if 0 <= first < end <= start:
            other = fold.with_attention(partial(forget, first=first, end=end))
            logits = other.extend(history[start:count]).logits[-1]
            yield _Other(cause="attention sees too little", words=f"the KV cache lacks {what}", logits=logits)
