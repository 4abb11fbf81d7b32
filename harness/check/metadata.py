"""What a metadata builder made of a step, against the ledger: every row's state, tokens and padding.

The batches come from the tokens that a trace committed. What must be is read off each row (``Row.reads``,
``Row.writes``); how an engine packs rows is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from harness.packing import Batch, Packed, PlainRows, Refused, Row, SpecRows
from harness.scenario import Scenario
from harness.trace import Trace

Kind = Literal[
    "crash", "count", "dropped row", "wrong slot", "stale state", "wrong tokens", "padding", "stale graph"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong with a packed step, in words."""

    kind: Kind
    step: int
    request: str
    message: str

    def __str__(self) -> str:
        who = f" {self.request}" if self.request else ""
        return f"step {self.step}{who}: {self.message}"


@dataclass(frozen=True, slots=True)
class _Place:
    """One row as a builder packed it: its tokens, the slot it starts from, and who leaves a state where."""

    tokens: tuple[int, ...]
    reads: int | None
    writes: dict[int, int]
    path: str


def batches(scenario: Scenario, trace: Trace) -> Iterator[Batch]:
    """The steps of a run in the words of the ledger; every request has k + 1 slots of its own."""
    prompt = {request.id: len(request.prompt) for request in scenario.requests}
    width = scenario.k + 1
    slots = {name: tuple(range(1 + i * width, 1 + (i + 1) * width)) for i, name in enumerate(prompt)}
    fed = dict.fromkeys(prompt, 0)
    answered = dict.fromkeys(prompt, 0)
    previous = dict.fromkeys(prompt, 1)
    unrefreshed = dict.fromkeys(prompt, 1)
    for step in trace.steps:
        rows = [
            Row(
                request=row.request,
                tokens=row.tokens,
                start=fed[row.request] + max(answered[row.request] - 1, 0),
                previous=previous[row.request],
                unrefreshed=unrefreshed[row.request],
                slots=slots[row.request],
                in_prompt=bool(row.prompt_tokens),
            )
            for row in step.rows
        ]
        yield Batch(
            rows=tuple(rows),
            k=scenario.k,
            max_num_seqs=scenario.max_num_seqs,
            capture_sizes=scenario.capture_sizes,
            step=step.index,
        )
        had_drafts = any(row.kept for row in step.rows)
        for row in step.rows:
            fed[row.request] += row.prompt_tokens
            answered[row.request] += row.accepted
            previous[row.request] = max(row.accepted, 1)
            if had_drafts:
                unrefreshed[row.request] = previous[row.request]


def judge(batch: Batch, packed: Packed | Refused) -> list[Finding]:
    """Everything that is wrong, the gravest kind of each row once; empty when the step is right."""
    if isinstance(packed, Refused):
        return [Finding(kind="crash", step=batch.step, request="", message=packed.message)]
    places = [*_spec(packed.spec), *_plain(packed.plain)]
    found = [finding for row, span in _spans(batch) if (finding := _row(batch, row, span, places))]
    return [*_counts(batch, packed), *found, *_padding(batch, packed), *_graph(batch, packed)]


def _spans(batch: Batch) -> Iterator[tuple[Row, tuple[int, ...]]]:
    start = 0
    for row in batch.rows:
        yield row, tuple(range(start, start + row.tokens))
        start += row.tokens


def _row(batch: Batch, row: Row, span: tuple[int, ...], places: Sequence[_Place]) -> Finding | None:
    """The first thing that is wrong with one row of the batch."""

    def wrong(kind: Kind, message: str) -> Finding:
        return Finding(kind=kind, step=batch.step, request=row.request, message=f"({row}) {message}")

    mine = [place for place in places if set(place.tokens) & set(span)]
    if not mine:
        return wrong("dropped row", f"its {row.tokens} tokens are in no row: it is never computed")
    if len(mine) > 1 or set(mine[0].tokens) != set(span):
        seen = " and ".join(_numbers(place.tokens) for place in mine)
        return wrong("wrong tokens", f"has tokens {_numbers(span)} of the step, is given {seen}")
    place = mine[0]
    if place.tokens != span:
        return wrong("wrong tokens", f"gets its tokens in the order {_numbers(place.tokens)}")
    if row.reads != place.reads:
        return _start(row, place, wrong)
    for token, slot in row.writes.items():
        if place.writes.get(token) != slot:
            seen = f"slot {place.writes[token]}" if token in place.writes else "no slot"
            return wrong(
                "wrong slot",
                f"leaves the state after token {token} in {seen}, its next step reads slot {slot} ({place.path} path)",
            )
    return None


def _start(row: Row, place: _Place, wrong: object) -> Finding:
    assert callable(wrong)
    if row.reads is None:
        return wrong(
            "stale state",
            f"reads slot {place.reads}, but the request starts from nothing ({place.path} path)",
        )
    if place.reads is None:
        return wrong("stale state", f"starts from nothing, but its state is in slot {row.reads}")
    why = "its state is in" if row.in_prompt else f"its accepted count of {row.previous} needs"
    return wrong("wrong slot", f"reads slot {place.reads} where {why} slot {row.reads} ({place.path} path)")


def _spec(side: SpecRows | None) -> Iterator[_Place]:
    if side is None:
        return
    for i in range(min(side.count, len(side.query_start_loc) - 1, len(side.slots))):
        tokens = _between(side.order, side.query_start_loc, i)
        column = side.accepted[i] - 1
        yield _Place(
            tokens=tokens,
            reads=side.slots[i][column] if 0 <= column < len(side.slots[i]) else None,
            writes=dict(enumerate(side.slots[i][: len(tokens)])),
            path="speculative",
        )


def _plain(side: PlainRows | None) -> Iterator[_Place]:
    if side is None:
        return
    for i in range(min(len(side.query_start_loc) - 1, len(side.slots))):
        tokens = _between(side.order, side.query_start_loc, i)
        decodes = i < side.decodes
        starts = decodes or side.has_initial_state is None or side.has_initial_state[i]
        yield _Place(
            tokens=tokens,
            reads=side.slots[i] if starts else None,
            writes={len(tokens) - 1: side.slots[i]},
            path="decode" if decodes else "prefill",
        )


def _between(order: Sequence[int], starts: Sequence[int], i: int) -> tuple[int, ...]:
    return tuple(order[starts[i] : starts[i + 1]])


def _counts(batch: Batch, packed: Packed) -> list[Finding]:
    """The counts must add up to the tokens of the step, or of the graph that it is padded to."""
    padded = {size for size in batch.capture_sizes if size >= batch.num_tokens}
    if packed.num_tokens == batch.num_tokens or packed.num_tokens in padded:
        return []
    message = f"counts {packed.num_tokens} tokens, the step has {batch.num_tokens}"
    return [Finding(kind="count", step=batch.step, request="", message=message)]


def _padding(batch: Batch, packed: Packed) -> list[Finding]:
    """Rows of no tokens are neither prompts nor do they hold anybody's slot."""
    found = []
    plain = packed.plain
    lengths = _lengths(plain.query_start_loc) if plain else []
    live = sum(length > 0 for length in lengths)
    if packed.num_prefills > live:
        extra = packed.num_prefills - live
        found.append(f"{extra} padded rows of no tokens are counted as prefills")
    held = {slot: row.request for row in batch.rows for slot in row.slots}
    spec = packed.spec
    padded = (
        list(zip([row[0] for row in spec.slots], _lengths(spec.query_start_loc), strict=False))
        if spec
        else []
    )
    padded += zip(plain.slots, lengths, strict=False) if plain else []
    empty = [slot for slot, length in padded if not length]
    found += [f"a padded row points at slot {slot} of {held[slot]}" for slot in empty if slot in held]
    return [Finding(kind="padding", step=batch.step, request="", message=message) for message in found]


def _graph(batch: Batch, packed: Packed) -> list[Finding]:
    """A replayed graph must read this step's rows."""
    if not packed.replays_stale:
        return []
    message = "every row has k + 1 tokens, so a captured graph is replayed, but it reads the rows of an earlier step"
    return [Finding(kind="stale graph", step=batch.step, request="", message=message)]


def _lengths(starts: Sequence[int]) -> list[int]:
    return [end - start for start, end in pairwise(starts)]


def _numbers(tokens: Sequence[int]) -> str:
    if len(tokens) > 2 and tuple(tokens) == tuple(range(tokens[0], tokens[-1] + 1)):
        return f"{tokens[0]}-{tokens[-1]}"
    return ",".join(map(str, tokens))
