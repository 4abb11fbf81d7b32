"""States that known mistakes would have left, built from the reference alone.

A hypothesis is a whole state, so one list serves every layer and tensor. Where a mistake changes what deeper layers are
fed, only the first linear layer is told exactly: a diagnosis looks at the earliest coordinate, which is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.check.reference import Reference
from harness.oracle.model import State
from harness.trace import Array, RowTrace, Trace

REACH = 8
"""How many tokens a lag or a lead is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A mistake: the class it belongs to, how it reads, and the state it would have left."""

    cause: str
    words: str
    conv: Array  # [L, W - 1, D]
    recurrent: Array  # [L, HV, V, K]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The row whose state is wrong, its request's rows before, and everything else that ran."""

    trace: Trace
    reference: Reference
    step: int
    row: RowTrace

    @property
    def count(self) -> int:
        """Tokens that the wrong state claims to include."""
        assert self.row.state is not None
        return self.row.state.tokens_included

    @property
    def start(self) -> int:
        """Tokens in cache before the row."""
        return self.row.num_computed - (self.row.prompt_tokens or self.row.accepted)

    @property
    def fed(self) -> list[int]:
        """The row's tokens that count: a piece of the prompt, or the last token and the accepted drafts."""
        return list(self.reference.histories[self.row.request][self.start : self.row.num_computed])

    @property
    def rejected(self) -> list[int]:
        """The row's drafts that were not accepted."""
        return _rejected(self.reference, self.row)

    @property
    def before(self) -> list[RowTrace]:
        """Earlier rows of the same request."""
        return [
            row
            for step in self.trace.steps
            if step.index < self.step
            for row in step.rows
            if row.request == self.row.request
        ]

    def strangers(self) -> dict[str, RowTrace]:
        """The latest row with a state, up to this step, of every other request."""
        return {
            row.request: row
            for step in self.trace.steps
            if step.index <= self.step
            for row in step.rows
            if row.request != self.row.request and row.state is not None
        }


def hypotheses(scene: Scene) -> Iterator[Hypothesis]:
    """All of them, the simplest first."""
    yield from _wrong_age(scene)
    yield from _of_rejected_drafts(scene)
    yield from _wrong_start(scene)
    yield from _wrong_update(scene)
    yield from _wrong_owner(scene)
    yield from _wrong_place(scene)


def _of(cause: str, words: str, state: State) -> Hypothesis:
    return Hypothesis(cause=cause, words=words, conv=state.conv, recurrent=state.recurrent)


def _tokens(count: int) -> str:
    return f"{count} token{'s' * (count > 1)}"


def _rejected(reference: Reference, row: RowTrace) -> list[int]:
    if row.prompt_tokens or not row.accepted:
        return []
    return list(reference.known(row.kept[row.accepted - 1 :]))


def _wrong_age(scene: Scene) -> Iterator[Hypothesis]:
    """The right request at the wrong time."""
    count = scene.count
    around = range(max(count - REACH, 0), count + REACH + 1)
    states = scene.reference.replay(scene.row.request, also=around).states
    for other in around:
        if other in states and other != count:
            verb = "lags by" if other < count else "leads by"
            yield _of(verb.split()[0], f"the state {verb} {_tokens(abs(other - count))}", states[other])
    live = states[count]
    yield Hypothesis(
        cause="zero",
        words="the state is zero",
        conv=np.zeros_like(live.conv),
        recurrent=np.zeros_like(live.recurrent),
    )
    for row in scene.before:
        if row.state is not None and row.state.tokens_included in states:
            age = row.state.tokens_included
            if age < count - REACH:
                words = f"the state is a snapshot of {age} tokens, {count - age} tokens old"
                yield _of("stale snapshot", words, states[age])


def _of_rejected_drafts(scene: Scene) -> Iterator[Hypothesis]:
    """The row's drafts beyond the accepted ones, folded in one by one."""
    if scene.rejected:
        states = scene.reference.fork(scene.row.request, scene.count, scene.rejected).states
        for j in range(1, len(scene.rejected) + 1):
            words = f"the state includes {j} rejected draft{'s' * (j > 1)}"
            yield _of("rejected drafts", words, states[scene.count + j])


def _wrong_start(scene: Scene) -> Iterator[Hypothesis]:
    """The row's own tokens are right; what it started from is not."""
    request, start, fed = scene.row.request, scene.start, scene.fed
    if not scene.row.prompt_tokens:
        for lost in range(1, scene.row.previous_accepted):
            replay = scene.reference.fork(request, start - lost, fed)
            plural = "s" * (lost > 1)
            words = f"the state lost the last {lost} accepted token{plural} before this step"
            yield _of("lost accepted tokens", words, replay.states[start - lost + len(fed)])
        refused = _rejected(scene.reference, scene.before[-1]) if scene.before else []
        for j in range(1, len(refused) + 1):
            replay = scene.reference.fork(request, start, [*refused[:j], *fed])
            words = f"the row started after {j} draft{'s' * (j > 1)} that the step before had rejected"
            yield _of("started after rejected drafts", words, replay.states[start + j + len(fed)])
    if start:
        yield _of(
            "started from zero",
            "the row started from an empty state",
            scene.reference.from_empty(request, start, fed),
        )
    for name, row in scene.strangers().items():
        assert row.state is not None
        own = scene.reference.from_stranger(name, row.state.tokens_included, request, start, fed)
        yield _of("started from another request", f"the row started from the state of request {name}", own)


def _wrong_update(scene: Scene) -> Iterator[Hypothesis]:
    """The last token was folded in wrongly."""
    request, count = scene.row.request, scene.count
    history = scene.reference.histories[request]
    if not count:
        return
    twice = scene.reference.fork(request, count, history[count - 1 : count]).states
    yield _of("folded twice", "the last token was folded in twice", twice[count + 1])
    if len(scene.fed) > 1 and not scene.row.prompt_tokens:
        skipped = scene.reference.fork(request, scene.start, scene.fed[1:]).states
        words = "the row's first token is missing, the accepted drafts are there"
        yield _of("first token missing", words, skipped[scene.start + len(scene.fed) - 1])


def _wrong_owner(scene: Scene) -> Iterator[Hypothesis]:
    """Another request's state, alive or dead."""
    here = {row.request for step in scene.trace.steps if step.index == scene.step for row in step.rows}
    for name, row in scene.strangers().items():
        assert row.state is not None
        states = scene.reference.replay(name).states
        if row.state.tokens_included in states:
            cause, word = ("another request", "") if name in here else ("former owner", "the departed ")
            words = f"the state belongs to {word}request {name}"
            yield _of(cause, words, states[row.state.tokens_included])


def _wrong_place(scene: Scene) -> Iterator[Hypothesis]:
    """The right numbers in the wrong layer, head, or orientation."""
    live = scene.reference.replay(scene.row.request).states[scene.count]
    layers = len(live.conv)
    for shift in range(1, layers):
        yield Hypothesis(
            cause="another layer",
            words=f"the state belongs to the linear layer {shift} further on",
            conv=np.roll(live.conv, -shift, axis=0),
            recurrent=np.roll(live.recurrent, -shift, axis=0),
        )
    for shift in range(1, live.recurrent.shape[1]):
        yield Hypothesis(
            cause="heads rotated",
            words=f"the heads are rotated by {shift}",
            conv=live.conv,
            recurrent=np.roll(live.recurrent, shift, axis=1),
        )
    if live.recurrent.shape[2] == live.recurrent.shape[3]:
        transposed = live.recurrent.swapaxes(2, 3)
        yield Hypothesis(
            cause="transposed", words="the state is transposed", conv=live.conv, recurrent=transposed
        )
    for shift in range(1, live.conv.shape[1]):
        for amount, side in ((shift, "later"), (-shift, "earlier")):
            yield Hypothesis(
                cause="window shifted",
                words=f"the convolution window begins {_tokens(shift)} {side}",
                conv=np.roll(live.conv, amount, axis=1),
                recurrent=live.recurrent,
            )
