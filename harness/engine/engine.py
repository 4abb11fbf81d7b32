"""The embedded engine: schedule, run, verify, commit, draft - one step at a time.

engine = Engine(model, head, grammars, config, policy)
engine.add(EngineRequest(id="r0", prompt=(1, 2, 3), max_tokens=16))
while not engine.scheduler.is_idle:
    step = engine.step()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

from harness.engine.batch import Batch, BatchBuilder
from harness.engine.config import EngineConfig
from harness.engine.drafting import Drafting
from harness.engine.graphs import Graphs
from harness.engine.guided import Grammars
from harness.engine.model import HybridModel, MTPHead
from harness.engine.plan import Planned, ScheduledRow
from harness.engine.policy import Outcome, Policy
from harness.engine.request import EngineRequest
from harness.engine.sampler import PLACEHOLDER
from harness.engine.scheduler import Scheduler
from harness.engine.states import LiveState, States
from harness.engine.verify import RowResult, Verifier
from harness.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step of the engine. ``finished`` requests still own their memory until the next step begins.

    ``preempted`` and ``aborted`` requests lost theirs before the step, ``moved`` ones changed their row;
    ``snapshots`` are the state slots that the prefix cache filled behind it. A dummy step has no rows.
    """

    rows: list[RowResult]
    finished: list[EngineRequest]
    batch: Batch
    draft_length: int
    preempted: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    snapshots: tuple[int, ...] = ()


def nothing() -> None:
    """What happens before a step is planned, unless somebody says otherwise."""


class Engine:
    """One model, its caches, its requests."""

    def __init__(
        self,
        model: HybridModel,
        head: MTPHead | None,
        grammars: Grammars,
        config: EngineConfig,
        policy: Policy,
    ) -> None:
        self.model = model
        self.head = head
        self.config = config
        self.policy = policy
        self.scheduler = Scheduler(config, policy.scheduler, policy.prefix)
        self.counters: Counter[str] = Counter()
        self.in_flight = False
        """Whether a step runs while the next one is planned."""
        self._aborted: list[str] = []
        self._builder = BatchBuilder(config, policy)
        self._graphs = Graphs(model)
        self._verifier = Verifier(model, grammars, config, policy)
        self._drafting = Drafting(model, head, config, policy)
        self._states = States(model)
        self._planned: list[Planned] = []
        self._finished: list[EngineRequest] = []

    def add(self, request: EngineRequest) -> None:
        """Queue a request; UsageError if the model or the memory has no room for it."""
        length, most = len(request.prompt), self.config.max_model_len
        if not 0 < length < most:
            raise UsageError(
                f"request {request.id}: saw a prompt of {length} tokens, expected 1 to {most - 1} (max_model_len - 1)",
                hint="shorten the prompt, or raise max_model_len",
            )
        longest = min(length + request.max_tokens, most) + 2 * self.config.k
        needed, there = -(-longest // self.config.block_size), self.config.num_blocks - 1
        if self.config.kv_blocks is not None and needed > there:
            raise UsageError(
                f"request {request.id}: may need {needed} KV blocks, expected at most {there} (kv_blocks - 1)",
                hint="raise kv_blocks, or lower max_tokens",
            )
        self.scheduler.add(request)

    def abort(self, request: EngineRequest) -> None:
        """End a request now; what a step in flight finds out about it is thrown away."""
        if request.finish_reason is None:
            request.finish_reason = "abort"
            request.epoch += 1
            self.scheduler.finish(request)
            self._aborted.append(request.id)

    @torch.inference_mode()
    def step(self, before_planning: Callable[[], None] = nothing) -> StepResult | None:
        """Run one step; ``None`` when there is nothing to run.

        ``before_planning`` is called whenever a step is about to be planned: before this one, or in regime
        ``placeholder`` before the next one, while this one is in flight.
        """
        self._release_finished()
        if not self._planned:
            self._plan(before_planning)
        rows = self.scheduler.fill(self._planned)
        self._restore(self._planned)
        self._planned = []
        if not rows:
            return None
        preempted, aborted, moved = self._take_events()
        draft_length = self.scheduler.draft_length
        batch = self._builder.build(rows, draft_length)
        forward = self._graphs.forward(batch)
        bounds = accumulate((len(row.input_ids) for row in rows), initial=0)
        spans = [slice(start, end) for start, end in pairwise(bounds)]
        if self.config.regime == "placeholder":
            self.in_flight = True
            self._plan(before_planning)
            self.in_flight = False
        rows = [replace(row, discarded=row.discarded or self._is_late(row)) for row in rows]
        results = self._verifier.verify(rows, spans, forward)
        live = [i for i, row in enumerate(rows) if not row.discarded]
        self._commit(rows, results, batch.is_spec)
        snapshots = self._cache_prefixes([rows[i] for i in live])
        self._drafting.draft([rows[i] for i in live], [spans[i] for i in live], forward, draft_length)
        return StepResult(
            rows=results,
            finished=list(self._finished),
            batch=batch,
            draft_length=draft_length,
            preempted=preempted,
            aborted=aborted,
            moved=moved,
            snapshots=snapshots,
        )

    @torch.inference_mode()
    def dummy_step(self) -> StepResult:
        """A step without requests, as an idle rank of a data-parallel group runs."""
        batch = self._builder.dummy()
        self._graphs.forward(batch)
        return StepResult(rows=[], finished=[], batch=batch, draft_length=self.scheduler.draft_length)

    def observed(self, request: EngineRequest) -> LiveState:
        """The state that the request's next step will start from, as the engine understands it."""
        return self._states.live(request)

    def _plan(self, before_planning: Callable[[], None]) -> None:
        before_planning()
        self._planned = self.scheduler.plan()
        for row in self._planned:
            if row.hit is not None:
                self.counters["prefix_queries"] += len(row.request.tokens)
                self.counters["prefix_hits"] += row.start

    def _restore(self, planned: Sequence[Planned]) -> None:
        """Requests that the prefix cache helps start from its snapshots."""
        for row in planned:
            if row.hit is not None and row.hit.snapshot is not None:
                if row.epoch == row.request.epoch:
                    self._states.restore(row.hit.snapshot, row.request)
                self.scheduler.prefix.unpin(row.hit.snapshot)

    def _release_finished(self) -> None:
        """Give memory back, except where a planned row still needs it."""
        coming = [row.request for row in self._planned]
        for request in self._finished:
            if request not in coming and request in self.scheduler.running:
                self.scheduler.finish(request)
        self._finished = [request for request in self._finished if request in coming]

    def _take_events(self) -> Iterator[tuple[str, ...]]:
        """Requests that were preempted, aborted, and moved since the last step."""
        self.counters["preemptions"] += len(self.scheduler.preempted)
        for events in (self.scheduler.preempted, self._aborted, self.scheduler.rows.moved):
            yield tuple(events)
            events.clear()

    def _is_late(self, row: ScheduledRow) -> bool:
        """Whether the request was preempted or aborted while its row ran."""
        late = row.epoch != row.request.epoch
        return late and not self.policy.applies_late(row.epoch, row.request.epoch)

    def _commit(
        self, rows: Sequence[ScheduledRow], results: Sequence[RowResult], is_spec: Sequence[bool]
    ) -> None:
        """Add the tokens; the state of a rejected draft is left behind by a alone."""
        had_drafts = any(row.drafts for row in rows)
        for row, result, logged in zip(rows, results, is_spec, strict=True):
            request, committed = row.request, result.committed
            if not row.in_prompt and self.policy.counts_row(row.discarded):
                self._count(row, result)
            if row.discarded:
                continue
            request.num_computed = row.end if row.in_prompt else row.start + len(committed)
            request.tokens += committed
            if request.guide:
                request.guide.accept(committed, row.drafts, row.input_ids if row.in_prompt else ())
            request.finish_reason = self._finish_reason(request, result.stops)
            if self.policy.refreshes_accepted(had_drafts) or row.in_prompt:
                request.num_accepted = self.policy.accepted_count(self._outcome(row, result, had_drafts))
            request.has_journal, request.turn = logged, request.turn ^ logged
            request.num_planned -= row.end - request.num_computed
            if request.finish_reason:
                self._finished.append(request)
                if self.policy.frees_at_once():
                    self.scheduler.finish(request)

    def _outcome(self, row: ScheduledRow, result: RowResult, had_drafts: bool) -> Outcome:
        return Outcome(
            committed=len(result.committed),
            kept=len(row.drafts),
            previous=result.before.num_accepted,
            drafter=self.config.drafter,
            finished=row.request.finish_reason is not None,
            step_had_drafts=had_drafts,
        )

    def _count(self, row: ScheduledRow, result: RowResult) -> None:
        self.counters["num_drafts"] += 1
        self.counters["num_draft_tokens"] += sum(draft != PLACEHOLDER for draft in row.drafts)
        self.counters["num_accepted_tokens"] += len(result.committed) - 1

    def _finish_reason(self, request: EngineRequest, stops: bool) -> str | None:
        if stops or (request.guide and request.guide.is_terminated):
            return "stop"
        if request.num_generated >= request.max_tokens or len(request.tokens) >= self.config.max_model_len:
            return "length"
        if request.turns is not None and not request.turns and not request.in_prompt:
            return "script"
        return None

    def _cache_prefixes(self, rows: Sequence[ScheduledRow]) -> tuple[int, ...]:
        """File the blocks that became full and the states at their ends; returns the slots that were written."""
        if not self.config.prefix_caching:
            return ()
        prefix, size, decisions = self.scheduler.prefix, self.config.block_size, self.policy.prefix
        written = []
        for row in rows:
            request, end = row.request, row.request.num_computed
            prefix.keep_blocks(request.tokens, request.blocks, row.start, end)
            for boundary in decisions.boundaries(row.start, end, size, request.prompt_end // size * size):
                if row.in_prompt and boundary != end:
                    continue  # a piece of a prompt leaves its last state alone
                slot = prefix.snapshot_slot(request.tokens[:boundary], again=boundary <= row.start)
                if slot is not None:
                    column = decisions.snapshot_column(boundary, row.start, len(row.input_ids), end)
                    column = 0 if row.in_prompt else column
                    self._states.save(request, column, slot, decisions.column_of_layer)
                    written.append(slot)
        return tuple(written)
