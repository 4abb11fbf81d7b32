"""The row started right; its tokens were folded in wrongly, or they were not its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from harness.check.hypotheses.first_layer import FirstLayer, join, pick
from harness.check.hypotheses.scene import Hypothesis, Scene, of, tokens
from harness.check.reference import start_of
from harness.oracle.gdn import Inputs
from harness.trace import Array, RowTrace

SHORT = 5
"""Tokens of a row up to which every order of them is tried."""
SWAPS = 300
"""Pairs of tokens up to which a swap between rows is tried."""
NEIGHBOURS = 16
"""How many tokens further on in the batch a row's tokens or gates are looked for."""


def wrong_update(scene: Scene) -> Iterator[Hypothesis]:
    """Tokens missing, twice, in another order, of another row, or under another rule."""
    request, count = scene.row.request, scene.count
    if not count:
        return
    twice = scene.reference.fork(request, count, scene.history[count - 1 : count]).states
    yield of("folded twice", "the last token was folded in twice", twice[count + 1])
    if len(scene.fed) > 1 and not scene.row.prompt_tokens:
        skipped = scene.reference.fork(request, scene.start, scene.fed[1:]).states
        words = "the row's first token is missing, the accepted drafts are there"
        yield of("first token missing", words, skipped[scene.start + len(scene.fed) - 1])
    if scene.first is not None and scene.fed:
        batch = _Batch.of(scene, scene.first)
        yield from _other_order(scene, scene.first, batch)
        yield from _other_tokens(scene, scene.first, batch)
        yield from _other_rows(scene, scene.first, batch)
        yield from _other_gates(scene, scene.first, batch)
        yield from _other_rule(scene, scene.first, batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The step's packed tokens, and where this row's begin; what each brings to the first layer in its own row."""

    names: list[str]  # "r0[12]" for each packed token
    ids: list[int]
    fed: Inputs  # of all packed tokens
    begin: int
    conv: Array  # what this row starts from
    recurrent: Array

    @staticmethod
    def of(scene: Scene, first: FirstLayer) -> _Batch:
        names: list[str] = []
        ids: list[int] = []
        parts: list[Inputs] = []
        begin = 0
        for row in scene.beside:
            if row is scene.row:
                begin = len(ids)
            start, fed = start_of(row), _tokens_of(scene, row)
            states = scene.reference.replay(row.request, also=[start]).states
            if start not in states or not fed:
                continue
            parts.append(first.read(fed, states[start].conv[0]))
            names += [f"{row.request}[{start + i}]" for i in range(len(fed))]
            ids += fed
        own = scene.states()[scene.start]
        return _Batch(
            names=names,
            ids=ids,
            fed=join(parts),
            begin=begin,
            conv=own.conv[0],
            recurrent=own.recurrent[0],
        )

    def shifts(self, length: int) -> Iterator[tuple[int, range]]:
        """Runs of ``length`` packed tokens other than the row's own: (how many tokens further on, their places)."""
        for shift in sorted(range(-NEIGHBOURS, NEIGHBOURS + 1), key=abs):
            first = self.begin + shift
            if shift and first >= 0 and first + length <= len(self.ids):
                yield shift, range(first, first + length)

    def told(self, places: Sequence[int]) -> str:
        """The tokens at packed places, in words; of many, the first and the last."""
        names = [self.names[place] for place in places]
        return " ".join(names if len(names) <= SHORT else [*names[:2], "...", names[-1]])


def _tokens_of(scene: Scene, row: RowTrace) -> list[int]:
    """All tokens that a row fed, drafts included; a placeholder is fed as token 0."""
    start = start_of(row)
    history = scene.reference.known(scene.reference.histories[row.request])
    if row.prompt_tokens:
        return list(history[start : row.num_computed])
    drafts = scene.reference.known([max(draft, 0) for draft in row.kept])
    return [*history[start : start + 1], *drafts]


def _other_order(scene: Scene, first: FirstLayer, batch: _Batch) -> Iterator[Hypothesis]:
    """The row's own tokens, in another order."""
    length = len(scene.fed)
    for order in _orders(length):
        moved = [scene.fed[i] for i in order]
        names = batch.told([batch.begin + i for i in order])
        yield scene.in_first_layer(
            "tokens out of order",
            f"the row's tokens were fed in the order {names}",
            *first.after(moved, batch.conv, batch.recurrent),
        )


def _orders(length: int) -> list[tuple[int, ...]]:
    """Orders of a row's tokens other than its own; of a long row only the reverse."""
    return list(permutations(range(length)))[1:] if length <= SHORT else [tuple(range(length))[::-1]]


def _other_tokens(scene: Scene, first: FirstLayer, batch: _Batch) -> Iterator[Hypothesis]:
    """The row was fed tokens of its neighbours in the batch, or those of its own step before."""
    length = len(scene.fed)
    for _, places in batch.shifts(length):
        moved = [batch.ids[place] for place in places]
        words = f"the row was fed the tokens {batch.told(places)}"
        yield scene.in_first_layer(
            "tokens of another row", words, *first.after(moved, batch.conv, batch.recurrent)
        )
    if scene.before and not scene.row.prompt_tokens:
        old = scene.before[-1]
        stale = _tokens_of(scene, old)[:length]
        yield scene.in_first_layer(
            "tokens of an earlier step",
            f"the row was fed the first {tokens(len(stale))} of its step before once more",
            *first.after(stale, batch.conv, batch.recurrent),
        )


def _other_rows(scene: Scene, first: FirstLayer, batch: _Batch) -> Iterator[Hypothesis]:
    """Behind the convolution: q, k, v and gates of other places in the batch."""
    length = len(scene.fed)
    own = list(range(batch.begin, batch.begin + length))
    conv = scene.live.conv[0]
    runs = [list(places) for _, places in batch.shifts(length)]
    if length * len(batch.ids) <= SWAPS:
        runs += [
            [*own[:i], place, *own[i + 1 :]]
            for i in range(length)
            for place in range(len(batch.ids))
            if place != own[i]
        ]
    runs += [[own[i] for i in order] for order in _orders(length)]
    for places in runs:
        words = f"behind the convolution the row was given {batch.told(places)}, not {batch.told(own)}"
        recurrent = first.fold(batch.recurrent, pick(batch.fed, places))
        yield scene.in_first_layer("rows mixed", words, conv, recurrent)


def _other_gates(scene: Scene, first: FirstLayer, batch: _Batch) -> Iterator[Hypothesis]:
    """Queries, keys and values are the row's own; decay and write strength are those of other tokens."""
    length = len(scene.fed)
    own = pick(batch.fed, range(batch.begin, batch.begin + length))
    for _, places in batch.shifts(length):
        other = pick(batch.fed, places)
        for name, changed in (
            ("decay and write strength", replace(own, g=other.g, beta=other.beta)),
            ("decay", replace(own, g=other.g)),
            ("write strength", replace(own, beta=other.beta)),
        ):
            words = (
                f"{name} are those of {batch.told(places)}"
                if " and " in name
                else f"the {name} is that of {batch.told(places)}"
            )
            yield scene.in_first_layer(
                "gates of another token", words, scene.live.conv[0], first.fold(batch.recurrent, changed)
            )


def _other_rule(scene: Scene, first: FirstLayer, batch: _Batch) -> Iterator[Hypothesis]:
    """The right inputs under a delta rule with one term missing."""
    own = pick(batch.fed, range(batch.begin, batch.begin + len(scene.fed)))
    for words, changed in (
        ("the row was folded in without decay", replace(own, g=np.zeros_like(own.g))),
        ("the row was folded in with twice the decay", replace(own, g=2 * own.g)),
        ("the row was written with full strength (beta = 1)", replace(own, beta=np.ones_like(own.beta))),
        ("the row decayed, and nothing was written", replace(own, beta=np.zeros_like(own.beta))),
    ):
        yield scene.in_first_layer(
            "another rule", words, scene.live.conv[0], first.fold(batch.recurrent, changed)
        )
