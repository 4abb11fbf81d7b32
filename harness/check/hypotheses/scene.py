"""The scene of a mistake: the row whose state is wrong, and everything else that ran."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.check.hypotheses.first_layer import FirstLayer
from harness.check.reference import Reference, start_of
from harness.oracle.model import State
from harness.trace import Array, RowTrace, Trace

REACH = 8
"""How many tokens a lag or a lead is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A mistake: the class it belongs to, how it reads, and the state it would have left.

    NaN where it says nothing. ``used`` is the accepted count that the row would have started from, where it is about
    that.
    """

    cause: str
    words: str
    conv: Array  # [L, W - 1, D]
    recurrent: Array  # [L, HV, V, K]
    used: int | None = None


@dataclass(frozen=True, kw_only=True)
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
        return start_of(self.row)

    @cached_property
    def history(self) -> list[int]:
        """All tokens of the request, before the first that no vocabulary has."""
        return list(self.reference.known(self.reference.histories[self.row.request]))

    @property
    def fed(self) -> list[int]:
        """The row's tokens that count: a piece of the prompt, or the last token and the accepted drafts."""
        return self.history[self.start : self.row.num_computed]

    @property
    def is_sane(self) -> bool:
        """Whether the row's counts fit what was committed; they are the suspect's own."""
        return 0 <= self.start <= self.row.num_computed <= len(self.history)

    @property
    def rejected(self) -> list[int]:
        """The row's drafts that were not accepted."""
        return self.rejected_by(self.row)

    @cached_property
    def before(self) -> list[RowTrace]:
        """Earlier rows of the same request."""
        return [
            row
            for step in self.trace.steps
            if step.index < self.step
            for row in step.rows
            if row.request == self.row.request and not row.discarded
        ]

    @property
    def row_after(self) -> RowTrace | None:
        """The request's next verify row, unless its memory was taken away before."""
        rows = (
            row
            for step in self.trace.steps
            if step.index > self.step
            for row in step.rows
            if row.request == self.row.request
        )
        row = next(rows, None)
        return None if row is None or row.prompt_tokens or row.discarded else row

    @cached_property
    def beside(self) -> list[RowTrace]:
        """All rows of the step that count, in batch order, this one included."""
        return [
            row
            for step in self.trace.steps
            if step.index == self.step
            for row in step.rows
            if not row.discarded
        ]

    @property
    def accepted_before(self) -> int:
        """a: tokens committed by the request's step before, as the trace says."""
        return max(self.before[-1].accepted, 1) if self.before else 1

    @cached_property
    def live(self) -> State:
        """The right state."""
        return self.states()[self.count]

    @cached_property
    def first(self) -> FirstLayer | None:
        """The first linear layer; ``None`` where it is not the model's first."""
        return FirstLayer.of(self.reference.oracle) if 0 in self.trace.linear_layers else None

    def states(self, *also: int) -> dict[int, State]:
        """The request's states by age: the recorded ages, those within reach of this one, and ``also``."""
        near = range(self.count - REACH, self.count + REACH + 1)
        return self.reference.replay(self.row.request, also=[*near, self.start, *also]).states

    def rejected_by(self, row: RowTrace) -> list[int]:
        """The drafts of a row that were not accepted, before the first placeholder."""
        if row.prompt_tokens or not row.accepted:
            return []
        return list(self.reference.known(row.kept[row.accepted - 1 :]))

    def strangers(self) -> dict[str, RowTrace]:
        """The latest row with a state, up to this step, of every other request."""
        return {
            row.request: row
            for step in self.trace.steps
            if step.index <= self.step
            for row in step.rows
            if row.request != self.row.request and row.state is not None
        }

    def in_first_layer(
        self, cause: str, words: str, conv: Array, recurrent: Array, used: int | None = None
    ) -> Hypothesis:
        """A hypothesis about the first linear layer alone: conv ``[W - 1, D]``, recurrent ``[HV, V, K]``."""
        whole = [np.full_like(tensor, np.nan) for tensor in (self.live.conv, self.live.recurrent)]
        whole[0][0], whole[1][0] = conv, recurrent
        return Hypothesis(cause=cause, words=words, conv=whole[0], recurrent=whole[1], used=used)


def of(cause: str, words: str, state: State, used: int | None = None) -> Hypothesis:
    """A hypothesis about every layer."""
    return Hypothesis(cause=cause, words=words, conv=state.conv, recurrent=state.recurrent, used=used)


def tokens(count: int) -> str:
    """``1 token``, ``2 tokens``."""
    return f"{count} token{'s' * (count > 1)}"
