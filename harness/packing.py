"""How the rows of a step are packed for the linear layers: what a metadata builder is asked, and what it answers.

A builder is asked with a ``Batch``, in the words of the ledger: tokens, counts and slots. It answers with a
``Packed`` step: the rows that read their state at a - 1 (*spec*) and those that live in slot 0 (*plain*), each with
its tokens and its slots, as the layers will take them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request in a step, as its committed tokens say.

    ``previous`` is a. ``unrefreshed`` is the count that an engine holds which updates it only after steps with
    drafts. ``slots`` are the request's k + 1 state slots.
    """

    request: str
    tokens: int
    start: int  # tokens of the request that are in cache before the step
    previous: int
    unrefreshed: int
    slots: tuple[int, ...]
    in_prompt: bool

    @property
    def drafts(self) -> int:
        """n: drafts in the row."""
        return 0 if self.in_prompt else self.tokens - 1

    @property
    def reads(self) -> int | None:
        """The slot that holds the request's state; ``None`` for a request that starts from nothing."""
        if self.in_prompt:
            return self.slots[0] if self.start else None
        return self.slots[self.previous - 1]

    @property
    def writes(self) -> dict[int, int]:
        """Which of its tokens must leave its state in which slot: every one of a verify row, the last of a prompt."""
        return (
            {self.tokens - 1: self.slots[0]} if self.in_prompt else dict(enumerate(self.slots[: self.tokens]))
        )

    def __str__(self) -> str:
        if self.in_prompt:
            return (
                f"prompt of {self.tokens}" if not self.start else f"prompt +{self.tokens} after {self.start}"
            )
        return f"n={self.drafts} a={self.previous}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of a step in batch order; ``capture_sizes`` are the token counts of captured graphs, if any."""

    rows: tuple[Row, ...]
    k: int
    max_num_seqs: int
    capture_sizes: tuple[int, ...] = ()
    step: int = 0

    @property
    def num_tokens(self) -> int:
        """N: tokens of the step."""
        return sum(row.tokens for row in self.rows)

    def __str__(self) -> str:
        sizes = f", graphs of {', '.join(map(str, self.capture_sizes))} tokens" if self.capture_sizes else ""
        return f"k={self.k}{sizes}: " + " | ".join(map(str, self.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecRows:
    """Rows that read ``slots[a - 1]`` and leave one state per token; rows beyond ``count`` are padding."""

    count: int
    order: tuple[int, ...]  # which token of the step stands at each place of this side
    query_start_loc: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRows:
    """Rows that read and write slot 0.

    The first ``decodes`` go one token at a time and always read; the others start from nothing where
    ``has_initial_state`` is false.
    """

    decodes: int
    order: tuple[int, ...]
    query_start_loc: tuple[int, ...]
    slots: tuple[int, ...]
    has_initial_state: tuple[bool, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A builder's answer.

    Of the counts, ``num_tokens`` is the sum over all three kinds of rows. ``replays_stale``: the runner replays a
    captured graph for this step, and the rows are not in the tensors that the graph reads.
    """

    num_tokens: int
    num_prefills: int
    replays_stale: bool = False
    spec: SpecRows | None = None
    plain: PlainRows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The builder died: with these words."""

    message: str
