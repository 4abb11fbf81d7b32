"""Proposals: what each row was given to verify, and why it may differ from what a fresh drafter gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from harness.oracle.attention import KeyValues, forget
from harness.oracle.mtp import Drafter
from harness.scenario import Scenario
from harness.trace import RowTrace, Trace

REACH = 4
"""How many tokens away another place is looked for."""

Drafts = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a row was given, and what its request had committed when that was drafted."""

    step: int
    row: RowTrace
    tokens: tuple[int, ...]  # prompt and answer so far
    k: int | None  # most drafts there could be; None: the target does not say
    turn: int  # steps of the request that committed something before
    earlier: tuple[RowTrace, ...]  # the request's rows before, latest first
    beside: tuple[RowTrace, ...]  # other requests' rows of this step


def proposals(scenario: Scenario, trace: Trace) -> Iterator[Proposal]:
    """What every row that counts was given, in the order of the run."""
    tokens = {request.id: list(request.prompt) for request in scenario.requests}
    earlier: dict[str, list[RowTrace]] = {name: [] for name in tokens}
    most: dict[str, int | None] = dict.fromkeys(tokens)
    for step in trace.steps:
        rows = [row for row in step.rows if not row.discarded]
        for row in rows:
            name = row.request
            yield Proposal(
                step=step.index,
                row=row,
                tokens=tuple(tokens[name]),
                k=most[name],
                turn=sum(bool(before.committed) for before in earlier[name]),
                earlier=tuple(reversed(earlier[name])),
                beside=tuple(other for other in rows if other is not row),
            )
            tokens[name] += row.committed
            earlier[name].append(row)
            most[name] = step.k


def explain(
    proposal: Proposal, expected: Drafts, after: Callable[[int], Drafts], head: Drafter | None
) -> tuple[str, str]:
    """The class of a mistake in a proposal, and how it reads.

    ``after`` gives a fresh drafter's proposals after so many tokens of the request, ``head`` is that of an MTP drafter.
    """
    seen = proposal.row.proposed
    if not seen:
        return "no drafts", "nothing was drafted"
    if seen == expected[: len(seen)]:
        return "drafts missing", f"{len(seen)} of {len(expected)} drafts are there"
    for age, row in enumerate(proposal.earlier):
        if row.proposed[: len(seen)] == seen:
            return "stale drafts", f"they were proposed {age + 1} rows before"
    if proposal.row.prompt_tokens and any(row.committed for row in proposal.earlier):
        return "stale drafts", "they are from before the request was fed again"
    if not expected:
        return "drafts out of place", "there is nothing to draft for"
    if seen[: len(expected)] == expected:
        return "too many drafts", f"{len(seen)} drafts, {len(expected)} may be"
    for row in proposal.beside:
        if row.proposed[: len(seen)] == seen:
            return "drafts of another request", f"they are those of request {row.request}"
    count = len(proposal.tokens)
    for off in sorted(range(-REACH, REACH + 1), key=abs):
        if off and after(count + off)[: len(seen)] == seen:
            where = f"{abs(off)} token{'s' * (abs(off) > 1)} {'later' if off > 0 else 'earlier'}"
            return "drafter read another place", f"a fresh drafter proposes them {where}"
    for lost in range(1, len(expected)):
        if seen[: len(expected) - lost] == expected[lost:]:
            return "drafts shifted", f"the first {lost} of them are missing"
    return next(_of_other_memory(proposal, head, seen), None) or ("drafts differ", "no known mistake fits")


def _of_other_memory(proposal: Proposal, head: Drafter | None, seen: Drafts) -> Iterator[tuple[str, str]]:
    """Mistakes in what the head read: its own cache, or the target's hidden state."""
    if head is None or len(proposal.tokens) < 3:
        return
    count, k = len(proposal.tokens), len(seen)
    right = head.past(count - 2)

    def fits(past: KeyValues, read: int | None = None) -> bool:
        return tuple(head.after_other(count, k, past, read).tokens.tolist()) == seen

    for off in range(1, min(REACH, count - 2) + 1):
        if fits(right, count - 2 - off):
            words = f"the head was given the target's hidden state of {off} token{'s' * (off > 1)} before"
            yield "drafter read another place", words
    if (ahead := _written_ahead(proposal, head, right)) and fits(ahead):
        yield (
            "drafter cache stale",
            "the head's cache holds the drafts before in the place of what was committed",
        )
    for row in proposal.earlier:
        start = row.num_computed - (row.prompt_tokens or row.accepted)
        if fits(forget(right, first=max(start - 1, 0), end=row.num_computed)):
            yield "drafter cache stale", f"the head's cache lacks tokens {start} to {row.num_computed - 1}"
        if row.cached and fits(forget(right, first=0, end=row.cached)):
            yield "drafter cache stale", f"the head's cache lacks the {row.cached} tokens of a prefix hit"
    if fits(forget(right, first=0, end=count)):
        yield "drafter cache stale", "the head's cache is empty"


def _written_ahead(proposal: Proposal, head: Drafter, right: KeyValues) -> KeyValues | None:
    """The head's cache, had the last row's accepted drafts kept the entries that drafting them had left."""
    row = proposal.earlier[0]
    if row.prompt_tokens or row.accepted < 2:
        return None
    count, end = len(proposal.tokens) - row.accepted, len(right.keys)
    drafted = head.after(count, len(row.proposed), along=row.proposed).past
    return KeyValues(
        keys=np.concatenate([right.keys[: count - 1], drafted.keys[count - 1 :], right.keys])[:end],
        values=np.concatenate([right.values[: count - 1], drafted.values[count - 1 :], right.values])[:end],
    )
