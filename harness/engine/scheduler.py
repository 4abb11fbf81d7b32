"""Which tokens run next: running requests first, then arrivals, as the token budget allows.

Drafts are cut here by the budget and by ``max_model_len``; the grammar has cut them before (``engine.py``). That is
where verify rows of unequal length come from.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from harness.engine.config import EngineConfig
from harness.engine.pool import Pool
from harness.engine.request import EngineRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRow:
    """One request's tokens in one step: a piece of its prompt, or its last token and the drafts that were kept.

    ``refused_next``: the step had room for one more draft, and there was one, but the grammar had refused it.
    """

    request: EngineRequest
    input_ids: list[int]
    drafts: list[int]
    start: int  # tokens of the request that are in cache already
    in_prompt: bool
    refused_next: bool = False

    @property
    def ends_prompt(self) -> bool:
        """Whether the row yields a token: every row but an early piece of a prompt does."""
        return not self.in_prompt or self.start + len(self.input_ids) == len(self.request.prompt)


class Scheduler:
    """Continuous batching over a slot pool and a KV block pool."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.slots = Pool(config.num_slots, "state slots")
        self.blocks = Pool(config.num_blocks, "KV blocks")
        self.waiting: deque[EngineRequest] = deque()
        self.running: list[EngineRequest] = []

    def add(self, request: EngineRequest) -> None:
        """Queue a request; it runs when a step has room."""
        self.waiting.append(request)

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        return not self.waiting and not self.running

    def schedule(self) -> list[ScheduledRow]:
        """The rows of the next step, in batch order."""
        budget = self._config.token_budget
        rows: list[ScheduledRow] = []
        for request in self.running:
            if budget > 0 and (row := self._row(request, budget)):
                rows.append(row)
                budget -= len(row.input_ids)
        while self.waiting and budget > 0 and self._can_admit():
            request = self._admit(self.waiting.popleft())
            rows.append(self._row(request, budget))
            budget -= len(rows[-1].input_ids)
        for row in rows:
            self._reserve_blocks(row)
        return rows[::-1] if self._config.reverse_rows else rows

    def finish(self, request: EngineRequest) -> None:
        """Take a request out and give its memory back."""
        self.running.remove(request)
        self.slots.free(request.slots)
        self.blocks.free(request.blocks)
        request.slots, request.blocks = [], []

    def _can_admit(self) -> bool:
        return len(self.running) < self._config.max_num_seqs and self.slots.can_allocate(self._config.k + 1)

    def _admit(self, request: EngineRequest) -> EngineRequest:
        request.slots = self.slots.allocate(self._config.k + 1, request.id)
        self.running.append(request)
        return request

    def _row(self, request: EngineRequest, budget: int) -> ScheduledRow:
        start = request.num_computed
        if request.in_prompt:
            input_ids = list(request.prompt[start : start + budget])
            return ScheduledRow(request=request, input_ids=input_ids, drafts=[], start=start, in_prompt=True)
        room = max(min(budget, self._config.max_model_len - 1 - start) - 1, 0)
        drafts = request.drafts[:room]
        return ScheduledRow(
            request=request,
            input_ids=[request.tokens[-1], *drafts],
            drafts=drafts,
            start=start,
            in_prompt=False,
            refused_next=len(drafts) < min(room, len(request.proposed)),
        )

    def _reserve_blocks(self, row: ScheduledRow) -> None:
        """Blocks for the row's own tokens and for the k that the drafter writes ahead."""
        end = min(
            row.start + len(row.input_ids) + self._config.k, self._config.max_model_len + self._config.k
        )
        missing = -(-end // self._config.block_size) - len(row.request.blocks)
        if missing > 0:
            row.request.blocks += self.blocks.allocate(missing, row.request.id)
