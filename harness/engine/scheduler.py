"""Which tokens run next: running requests first, then arrivals, as the token budget and the memory allow.

A step is planned, then filled. In regime ``trim`` both happen at once and everything is known. In regime
``placeholder`` a step is planned while the one before it runs, as if all drafts of that one were accepted; when it is
filled, refused drafts have become placeholders, and a request that ended meanwhile has a row that counts for nothing.

Drafts are cut here by the budget and by ``max_model_len``; the grammar has cut them before (``drafting.py``). That is
where verify rows of unequal length come from.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from harness.engine.config import EngineConfig
from harness.engine.plan import CORRECT_SCHEDULER, Planned, ScheduledRow, SchedulerDecisions, before
from harness.engine.pool import Pool
from harness.engine.prefix import CORRECT_PREFIX, Hit, PrefixCache, PrefixDecisions
from harness.engine.request import EngineRequest
from harness.engine.rows import RowTable
from harness.engine.sampler import PLACEHOLDER


class Scheduler:
    """Continuous batching over a slot pool and a KV block pool."""

    def __init__(
        self,
        config: EngineConfig,
        decisions: SchedulerDecisions = CORRECT_SCHEDULER,
        prefix: PrefixDecisions = CORRECT_PREFIX,
    ) -> None:
        self._config = config
        self._decisions = decisions
        self.draft_length = config.k
        self.slots = Pool(config.num_slots, "state slots")
        self.blocks = Pool(config.num_blocks, "KV blocks")
        self.prefix = PrefixCache(
            self.blocks,
            self.slots,
            block_size=config.block_size,
            most_snapshots=config.num_snapshots,
            drops_last=config.k > 0 and config.drafter == "mtp",
            decisions=prefix,
        )
        self.waiting: deque[EngineRequest] = deque()
        self.running: list[EngineRequest] = []
        self.rows = RowTable(decisions.moved_count)
        self.preempted: list[str] = []
        """Requests that lost their memory since somebody last looked."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request; it runs when a step has room."""
        self.waiting.append(request)

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        return not self.waiting and not self.running

    def schedule(self) -> list[ScheduledRow]:
        """The rows of the next step, in batch order, planned and filled at once."""
        return self.fill(self.plan())

    def plan(self) -> list[Planned]:
        """Places in the next step. Where memory runs out, the request that came last is preempted."""
        budget = self._config.token_budget
        planned: list[Planned] = []
        preempted = len(self.preempted)
        for request in list(self.running):
            runs = request in self.running and request.finish_reason is None
            row = self._plan(request, budget) if budget > 0 and runs else None
            if row is not None and self._reserve(row):
                planned.append(row)
                budget -= row.num_tokens
        while self.waiting and budget > 0 and len(self.preempted) == preempted:
            row = self._admit(self.waiting[0], budget)
            if row is None:
                break
            planned.append(row)
            budget -= row.num_tokens
        return planned

    def fill(self, planned: list[Planned]) -> list[ScheduledRow]:
        """The rows of a planned step in batch order; a request that lost its memory since has none."""
        rows = [self._fill(row) for row in planned if row.epoch == row.request.epoch]
        verifies = any(not row.in_prompt for row in rows)
        for row in rows:
            row.request.num_planned = row.end
        rows = [self._padded(row, verifies) for row in rows]
        rows.sort(key=lambda row: self.rows.place(row.request))
        return rows[::-1] if self._config.reverse_rows else rows

    def finish(self, request: EngineRequest) -> None:
        """Take a request out and give its memory back."""
        if request in self.waiting:
            self.waiting.remove(request)
            return
        self.running.remove(request)
        self.rows.remove(request)
        self._release(request)

    def preempt(self, request: EngineRequest) -> None:
        """Take a running request's memory away; it is computed again when there is room (vllm: recompute)."""
        self.running.remove(request)
        self.rows.remove(request)
        if self._decisions.keeps_memory():
            request.continues = True
        else:
            self._release(request)
        request.start_again(keep_drafts=self._decisions.keeps_drafts())
        self.waiting.appendleft(request)
        self.preempted.append(request.id)

    def _release(self, request: EngineRequest) -> None:
        self.slots.free(request.slots, request.id)
        self.blocks.free(request.blocks, request.id)
        request.slots, request.blocks = [], []

    def _admit(self, request: EngineRequest, budget: int) -> Planned | None:
        """A place for a waiting request, with its memory; ``None`` where there is no room."""
        slots = 0 if request.slots else self._config.slots_per_request
        if len(self.running) == self._config.max_num_seqs or not self.slots.can_allocate(slots):
            return None
        hit = Hit(blocks=[])
        if self._config.prefix_caching and not request.scores_prompt:
            hit = self.prefix.hit(request.tokens, request.id)
            request.blocks += hit.blocks
        request.num_computed = request.num_planned = len(hit.blocks) * self._config.block_size
        row = self._plan(request, budget, hit)
        if row is None or not self.blocks.can_allocate(self._missing(row)):
            self.blocks.free(hit.blocks, request.id)
            if hit.snapshot is not None:
                self.prefix.unpin(hit.snapshot)
            request.blocks = request.blocks[: len(request.blocks) - len(hit.blocks)]
            request.num_computed = request.num_planned = 0
            return None
        self.waiting.popleft()
        self.running.append(request)
        self.rows.add(request)
        request.slots += self.slots.allocate(slots, request.id)
        self._reserve(row)
        return row

    def _plan(self, request: EngineRequest, budget: int, hit: Hit | None = None) -> Planned | None:
        start, c = request.num_planned, self._config
        if start < request.prompt_end:
            size = self._piece(start, min(request.prompt_end - start, budget))
            return Planned(
                request=request, start=start, num_tokens=size, in_prompt=True, epoch=request.epoch, hit=hit
            )
        ahead = c.max_model_len - 1 - start
        room = min(max(min(budget, ahead) - 1, 0), self.draft_length)
        if ahead < 1 or not self._decisions.deserves_row(min(budget, ahead) - 1):
            return None
        drafts = room if c.regime == "placeholder" else min(room, len(request.drafts))
        return Planned(
            request=request,
            start=start,
            num_tokens=1 + drafts,
            in_prompt=False,
            epoch=request.epoch,
            room=room,
        )

    def _piece(self, start: int, size: int) -> int:
        """Tokens of a piece of a prompt; with prefix caching it ends where its state is worth filing."""
        return self.prefix.end_of_piece(start, start + size) - start if self._config.prefix_caching else size

    def _fill(self, planned: Planned) -> ScheduledRow:
        request = planned.request
        if planned.in_prompt:
            input_ids = request.tokens[planned.start : planned.start + planned.num_tokens]
            return ScheduledRow(
                request=request,
                input_ids=input_ids,
                drafts=[],
                start=planned.start,
                in_prompt=True,
                admitted=planned.hit is not None,
                epoch=planned.epoch,
                before=before(request),
            )
        kept = request.drafts[: planned.num_tokens - 1]
        drafts = kept + [PLACEHOLDER] * (planned.num_tokens - 1 - len(kept))
        return ScheduledRow(
            request=request,
            input_ids=[request.tokens[-1], *drafts],
            drafts=drafts,
            start=request.num_computed,
            in_prompt=False,
            refused_next=len(kept) < min(planned.room, len(request.proposed)),
            discarded=request.finish_reason is not None,
            epoch=planned.epoch,
            before=before(request),
        )

    def _padded(self, row: ScheduledRow, verifies: bool) -> ScheduledRow:
        extra = self._decisions.filler(row, verifies, self._config.k)
        return replace(row, input_ids=row.input_ids + [0] * extra, filler=extra) if extra else row

    def _reserve(self, row: Planned) -> bool:
        """Blocks for the row's own tokens and for the k that the drafter writes ahead; False if it was preempted."""
        while not self.blocks.can_allocate(missing := self._missing(row)):
            victim = next(request for request in reversed(self.running) if not request.finish_reason)
            self.preempt(victim)
            if victim is row.request:
                return False
        row.request.blocks += self.blocks.allocate(missing, row.request.id)
        return True

    def _missing(self, row: Planned) -> int:
        c = self._config
        end = min(row.start + row.num_tokens + c.k, c.max_model_len + c.k)
        return max(-(-end // c.block_size) - len(row.request.blocks), 0)
