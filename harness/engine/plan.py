"""A step before it runs: the places that are planned, and the rows that fill them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.engine.prefix import Hit
from harness.engine.request import EngineRequest
from harness.engine.rows import moved_count

# Decisions: where the known bugs live.


def deserves_row(room: int) -> bool:
    """Whether a request that has room for ``room`` drafts gets a row: always, its next token needs none."""
    return True


def keeps_memory() -> bool:
    """Whether a preempted request keeps its slots and goes on from what is in them: it is computed again."""
    return False


def keeps_drafts() -> bool:
    """Whether a preempted request keeps its drafts: they belonged to a step that never came (vllm #31944)."""
    return False


def filler(row: ScheduledRow, others_verify: bool, k: int) -> int:
    """Filler tokens that make a row as long as its neighbours (vllm PR 55178): rows may be unequal, so none."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerDecisions:
    """Every choice of this module that can be wrong."""

    deserves_row: Callable[[int], bool] = deserves_row
    keeps_memory: Callable[[], bool] = keeps_memory
    keeps_drafts: Callable[[], bool] = keeps_drafts
    moved_count: Callable[[int, int], int] = moved_count
    filler: Callable[[ScheduledRow, bool, int], int] = filler


CORRECT_SCHEDULER = SchedulerDecisions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A place in the next step for ``num_tokens`` tokens of a request, from ``start`` on if all goes well."""

    request: EngineRequest
    start: int
    num_tokens: int
    in_prompt: bool
    epoch: int
    room: int = 0  # drafts that budget, length and k leave room for
    hit: Hit | None = None  # what the prefix cache gave; only where the request was just admitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a request had when its row was filled; it may lose all of it while the row runs."""

    num_accepted: int
    proposed: list[int]
    grammar_kept: int
    slots: tuple[int, ...]
    blocks: tuple[int, ...]


def before(request: EngineRequest) -> Before:
    """A request as it is now."""
    return Before(
        num_accepted=request.num_accepted,
        proposed=request.proposed,
        grammar_kept=len(request.drafts),
        slots=tuple(request.slots),
        blocks=tuple(request.blocks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRow:
    """One request's tokens in one step: a piece of its prompt, or its last token and the drafts that were kept.

    ``refused_next``: the step had room for one more draft, and there was one, but the grammar had refused it.
    ``discarded``: the request ended after the row was planned, so nothing of it counts.
    """

    request: EngineRequest
    input_ids: list[int]
    drafts: list[int]
    start: int  # tokens of the request that are in cache already
    in_prompt: bool
    refused_next: bool = False
    discarded: bool = False
    admitted: bool = False
    epoch: int = 0
    filler: int = 0  # how many of the input ids stand for nothing
    before: Before | None = None

    @property
    def ends_prompt(self) -> bool:
        """Whether the row yields a token: every row but an early piece of a prompt does."""
        return not self.in_prompt or self.end == self.request.prompt_end

    @property
    def end(self) -> int:
        """Tokens of the request in cache behind the row, if all of them are right."""
        return self.start + len(self.input_ids) - self.filler
