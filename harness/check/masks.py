"""Name the mistake in a row's masks: they are held against masks that known mistakes would have left.

Masks are bits, so a mistake explains them exactly or not at all: the whole block of a row, or else its first wrong row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.oracle.grammar import GrammarJudge, GrammarPosition, Mask, ReasoningJudge, unpack
from harness.trace import RowTrace, StepTrace

REACH = 16
"""How many tokens a matcher that lags is looked for."""

Block = list[Mask | None]
"""A row's masks, one for each draft and one more; ``None`` where there is none to expect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A guided row and what came before it: the answer, run by run, and the drafts of the request's last row."""

    row: RowTrace
    judge: GrammarJudge
    runs: tuple[tuple[int, ...], ...]
    last_drafts: tuple[int, ...] = ()

    @property
    def history(self) -> tuple[int, ...]:
        """The answer before the row."""
        return tuple(token for run in self.runs for token in run)

    @property
    def follows_its_grammar(self) -> bool:
        """Whether the answer before the row is legal."""
        return self.judge.legal_prefix(self.history) == len(self.history)

    @property
    def drafts(self) -> tuple[int, ...]:
        """The row's drafts before its first placeholder."""
        return before_placeholder(self.row.kept)

    def expected(self) -> Block:
        """What the row's masks should be: row i is the mask after i drafts, or after those before a placeholder."""
        return self.block(self.judge, self.history)

    def block(self, judge: GrammarJudge, history: Sequence[int]) -> Block:
        """The masks of the row if a matcher stood behind ``history`` instead; ``None`` behind what it refuses."""
        path, start = (*history, *self.drafts), len(history)
        legal = judge.legal_prefix(path)
        along = [
            GrammarPosition(judge=judge, history=path[:end]).allowed() if end <= legal else None
            for end in range(start, len(path) + 1)
        ]
        return [along[min(i, len(self.drafts))] for i in range(len(self.row.kept) + 1)]

    def seen(self) -> list[Mask]:
        """The masks in the trace."""
        return masks_of(self.row, self.judge.vocabulary.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What else lay about: the guided rows of the step, and the step before."""

    step: StepTrace
    windows: Mapping[str, Window]
    before: StepTrace | None

    def packed(self, size: int) -> tuple[Block, dict[str, int]]:
        """The masks that a step should have in packed order, ``[vocab]`` each, and where each row's begin."""
        masks: Block = []
        starts = {}
        for row in filter(_yields, self.step.rows):
            starts[row.request] = len(masks)
            window = self.windows.get(row.request)
            masks += window.expected() if window else _free(len(row.kept) + 1, size)
        return masks, starts

    def left_before(self, size: int) -> Block:
        """The masks that the step before had, in packed order."""
        rows = filter(_yields, self.before.rows if self.before else ())
        return [m for row in rows for m in masks_of(row, size) or _free(len(row.kept) + 1, size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """A class, how it reads, and the masks it would have left."""

    cause: str
    words: str
    masks: Block


def before_placeholder(drafts: Sequence[int]) -> tuple[int, ...]:
    """The drafts before the first placeholder."""
    return tuple(drafts[: drafts.index(-1)] if -1 in drafts else drafts)


def masks_of(row: RowTrace, size: int) -> list[Mask]:
    """The masks of a row that has some."""
    return [] if row.mask is None else [unpack(bits, size) for bits in row.mask]


def _yields(row: RowTrace) -> bool:
    """Whether a row has logits that are judged: every one but an early piece of a prompt."""
    return row.logits is not None or bool(row.committed) or (row.discarded and not row.prompt_tokens)


def _free(rows: int, size: int) -> Block:
    return [np.ones(size, dtype=np.bool_)] * rows


def mask_after(judge: GrammarJudge, history: Sequence[int]) -> Mask | None:
    """The mask after a history; ``None`` if that is not legal."""
    return judge.replay(history).allowed() if judge.legal_prefix(history) == len(history) else None


def name_mistake(window: Window, around: Surroundings) -> tuple[str | None, str]:
    """The class of a row's wrong masks (``None``: no known mistake fits), and a sentence."""
    seen, expected = window.seen(), window.expected()
    wrong = next(i for i, right in enumerate(expected) if right is not None and not _same(seen[i], right))
    mistakes = list(_mistakes(window, expected, around))
    for mistake in mistakes:
        if all(_same(mask, left) for mask, left in zip(seen, mistake.masks, strict=False)):
            return mistake.cause, f"{mistake.words}: that explains all {len(seen)} mask rows"
    for mistake in mistakes:
        if _same(seen[wrong], mistake.masks[wrong]):
            return mistake.cause, f"{mistake.words}: that explains mask row {wrong} of {len(seen)}"
    return None, "no known mistake fits"


def _mistakes(window: Window, expected: Block, around: Surroundings) -> Iterator[Mistake]:
    """In the order in which they are believed."""
    judge, history, rows = window.judge, window.history, len(expected)
    free = _free(rows, judge.vocabulary.size)
    known = len(window.drafts)
    reasons = isinstance(judge, ReasoningJudge) and judge.marker not in history
    if known < rows - 1:
        yield Mistake(
            cause="unconstrained behind a placeholder",
            words=f"nothing is masked behind the placeholder of draft {known}",
            masks=[*expected[: known + 1], *free[known + 1 :]],
        )
    if reasons:
        yield Mistake(
            cause="unconstrained behind the reasoning",
            words="nothing is masked although the reasoning ends inside the row",
            masks=free,
        )
    yield Mistake(cause="unconstrained mask", words="nothing is masked", masks=free)
    yield Mistake(
        cause="mask of the first row repeated",
        words="every row has the mask of the row's first token",
        masks=[expected[0]] * rows,
    )
    for first in (expected[0], mask_after(judge, history[:-1])) if rows > 1 else ():
        yield Mistake(
            cause="mask one token behind",
            words="each row has the mask of the token before",
            masks=[first, *expected[:-1]],
        )
    yield Mistake(
        cause="mask one token ahead",
        words="each row has the mask of the token behind",
        masks=[*expected[1:], expected[-1]],
    )
    yield from _wrong_places(window, reasons)
    step, starts = around.packed(judge.vocabulary.size)
    start = starts.get(window.row.request, 0)
    for shift in range(-start, len(step) - start - rows + 1):
        if shift:
            yield Mistake(
                cause="mask of another row",
                words=f"these are the masks that belong {abs(shift)} rows {'before' if shift < 0 else 'behind'}",
                masks=step[start + shift :][:rows],
            )
    stale = around.left_before(judge.vocabulary.size)[start:][:rows]
    yield Mistake(
        cause="stale mask",
        words="these are the masks that lay in the same place in the step before",
        masks=[*stale, *expected[len(stale) :]],
    )


def _wrong_places(window: Window, reasons: bool) -> Iterator[Mistake]:
    """A matcher that does not stand where the answer has got to."""
    judge, history = window.judge, window.history
    if isinstance(judge, ReasoningJudge):
        for cause, read in (
            ("constrained too early" if reasons else "matcher behind", ()),
            (
                "constrained too early" if reasons else "reasoning read by the grammar",
                _read(judge, window.runs),
            ),
        ):
            words = f"the grammar rules as if it had read {len(read)} tokens, reasoning included"
            yield Mistake(cause=cause, words=words, masks=window.block(judge.ruling, read))
    for lag in range(1, min(REACH, len(history)) + 1):
        yield Mistake(
            cause="matcher behind",
            words=f"the matcher has not read the last {_tokens(lag)}",
            masks=window.block(judge, history[: len(history) - lag]),
        )
    if history:
        yield Mistake(
            cause="matcher behind", words="the matcher stands at its beginning", masks=window.block(judge, ())
        )
    if window.runs and window.last_drafts:
        before = tuple(token for run in window.runs[:-1] for token in run)
        for read in (window.last_drafts, (*window.last_drafts, window.runs[-1][-1])):
            yield Mistake(
                cause="matcher ahead",
                words=f"the matcher has read all {_tokens(len(window.last_drafts))} of the last row's drafts",
                masks=window.block(judge, (*before, *read)),
            )


def _read(judge: ReasoningJudge, runs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """What a matcher has read that was fed whole runs, each up to its first refusal."""
    read: tuple[int, ...] = ()
    for run in runs:
        read = (*read, *run)[: judge.ruling.legal_prefix((*read, *run))]
    return read


def _tokens(count: int) -> str:
    return f"{count} token{'s' if count != 1 else ''}"


def _same(mask: Mask, other: Mask | None) -> bool:
    return other is not None and bool(np.array_equal(mask, other))
