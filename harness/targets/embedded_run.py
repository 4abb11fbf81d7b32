"""One scenario on one embedded engine: requests in, events as they come, and everything that happened written down."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from harness.engine.engine import Engine, StepResult
from harness.engine.guided import Grammars, Guide
from harness.engine.memory import Memory
from harness.engine.recompile import CountingKernels
from harness.engine.request import EngineRequest, ForcedTurn
from harness.engine.sampler import SamplingParams
from harness.engine.verify import RowResult
from harness.errors import ScenarioError, Unsupported, UsageError
from harness.scenario import Request, Scenario
from harness.trace import Array, Completion, Crash, LayerState, RowTrace, StepTrace, Trace, Writes

if TYPE_CHECKING:
    from harness.targets.embedded import EmbeddedTarget

STALL = 64
"""Steps in which nobody gets further, beyond those that feed the longest request again, until a run is stalled."""


class Run:
    """One scenario on one engine."""

    def __init__(self, target: EmbeddedTarget, scenario: Scenario, reverse_rows: bool) -> None:
        self._target = target
        self._scenario = scenario
        self._grammars = Grammars(target.loader.vocabulary, target.policy.guide)
        selection = target.selection
        counted = scenario.most_compilations is not None
        config = target.config(scenario, reverse_rows=reverse_rows, graphs=not counted)
        self._exceptions = {"graphs": "off: launches are counted"} if counted else {}
        self._counting = CountingKernels(selection.kernels, target.policy, config.k) if counted else None
        parts = (config, target.policy, self._counting or selection.kernels)
        self._engine = Engine(
            target.loader.model(*parts), target.loader.head(*parts), self._grammars, config, target.policy
        )
        self._requests = {request.id: self._admit(request) for request in scenario.requests}
        self._memory = Memory(self._engine)
        self._events = deque(sorted(scenario.events, key=lambda event: event.step))
        self._dummies = 0
        self._arrived: list[EngineRequest] = []
        self._steps: list[StepTrace] = []
        self._furthest: dict[str, tuple[int, int]] = {}
        # all that a preempted request had is fed again before it gets any further
        self._patience = STALL + max(len(r.prompt) + r.max_tokens for r in scenario.requests)

    def trace(self) -> Trace:
        crash = None
        try:
            self._drive()
        except (UsageError, Unsupported):  # what it was asked to do cannot be done here: that convicts nobody
            raise
        except Exception as error:  # noqa: BLE001  whatever the suspect dies of is the finding
            crash = _crash(len(self._steps), error)
        return Trace(
            scenario=self._scenario.name,
            target=self._target.name,
            steps=tuple(self._steps),
            completions={
                name: Completion(tokens=tuple(r.tokens[len(r.prompt) :]), finish_reason=r.finish_reason)
                for name, r in self._requests.items()
            },
            linear_layers=tuple(self._engine.model.linear_layers),
            crash=crash,
            compilations=self._counting.count() if self._counting else {},
            counters=dict(self._engine.counters),
            notes={**self._target.setting, **self._sizes(), **self._exceptions},
        )

    def _sizes(self) -> dict[str, str]:
        """Places of the pools, and how many of them the prefix cache may fill with states."""
        config = self._engine.config
        return {
            "state slots": str(config.num_slots),
            "KV blocks": str(config.num_blocks),
            "snapshots": str(config.num_snapshots),
        }

    def _drive(self) -> None:
        waiting = deque(sorted(self._scenario.requests, key=lambda request: request.arrival))
        clock = idle = 0
        while waiting or not self._engine.scheduler.is_idle:
            if self._engine.scheduler.is_idle:
                clock = max(clock, waiting[0].arrival)
            while waiting and waiting[0].arrival <= clock:
                self._arrive(self._requests[waiting.popleft().id])
            step = self._engine.step(self._happen)
            clock += 1
            goes_on = step is not None and self._gets_further(step)
            if step is not None:
                self._steps.append(self._record(step))
            for _ in range(self._dummies):
                self._steps.append(self._record(self._engine.dummy_step()))
            self._dummies = 0
            idle = 0 if goes_on else idle + 1
            if idle > self._patience:
                raise RuntimeError(f"stalled: no request got further in {idle} steps")
        self._engine.counters["slots_leaked"] = self._engine.scheduler.slots.num_owned - self._filed()
        self._engine.counters["blocks_leaked"] = self._engine.scheduler.blocks.num_owned

    def _filed(self) -> int:
        """State slots that the prefix cache keeps."""
        return self._engine.scheduler.prefix.num_snapshots

    def _gets_further(self, step: StepResult) -> bool:
        """Whether a request has more tokens, or more of them in cache, than it ever had."""
        before, self._furthest = self._furthest, dict(self._furthest)
        for row in step.rows:
            name, reached = row.request.id, (len(row.request.tokens), row.request.num_computed)
            self._furthest[name] = max(before.get(name, (0, 0)), reached)
        return self._furthest != before

    def _arrive(self, request: EngineRequest) -> None:
        self._engine.add(request)
        self._arrived.append(request)

    def _happen(self) -> None:
        """The events of the step that is about to be planned: in regime placeholder, while another is in flight."""
        coming = len(self._steps) + self._engine.in_flight
        while self._events and self._events[0].step <= coming:
            event = self._events.popleft()
            if event.what == "dummy":
                self._dummies += 1
                continue
            if event.what == "draft length":
                self._engine.scheduler.draft_length = min(event.k, self._engine.config.k)
                continue
            request = self._requests[event.request]
            if event.what == "abort" and request in self._arrived:
                self._engine.abort(request)
            elif request in self._engine.scheduler.running and request.finish_reason is None:
                self._engine.scheduler.preempt(request)

    def _record(self, step: StepResult) -> StepTrace:
        changed = self._memory.changed()
        return StepTrace(
            index=len(self._steps),
            rows=tuple(self._record_row(row) for row in step.rows),
            padded_rows=step.batch.padded_rows,
            padded_tokens=step.batch.padded_tokens,
            replayed=step.batch.captured is not None,
            k=step.draft_length,
            preempted=step.preempted,
            aborted=step.aborted,
            moved=step.moved,
            writes=Writes(
                conv=changed.conv, recurrent=changed.recurrent, kv=changed.kv, snapshots=step.snapshots
            ),
        )

    def _record_row(self, row: RowResult) -> RowTrace:
        request = row.request
        live = None if row.discarded else self._engine.observed(request)
        return RowTrace(
            request=request.id,
            prompt_tokens=len(row.input_ids) if row.in_prompt else 0,
            kept=tuple(row.kept),
            committed=tuple(row.committed),
            num_computed=request.num_computed,
            previous_accepted=row.before.num_accepted,
            proposed=tuple(row.before.proposed),
            slots=row.before.slots,
            blocks=row.before.blocks,
            cached=row.cached,
            resumed=row.resumed,
            discarded=row.discarded,
            grammar_kept=row.before.grammar_kept if request.guide else None,
            matcher_tokens=request.guide.num_accepted if request.guide else None,
            finish_reason=request.finish_reason,
            logits=_array(row.logits),
            mask=_array(row.mask),
            routing=_array(row.routing),
            state=None
            if live is None
            else LayerState(
                conv=_known(live.conv), recurrent=_known(live.recurrent), tokens_included=live.tokens_included
            ),
        )

    def _admit(self, request: Request) -> EngineRequest:
        vocab_size = self._target.loader.config.vocab_size
        turns = self._scenario.script[request.id] if self._scenario.script is not None else None
        used = [*request.prompt, *(token for turn in turns or () for token in (*turn.drafts, turn.token))]
        if max(used) >= vocab_size:
            raise ScenarioError(
                f"scenario {self._scenario.name!r}, request {request.id!r}: saw token id {max(used)}, "
                f"expected less than the model's vocabulary of {vocab_size}"
            )
        return EngineRequest(
            id=request.id,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            sampling=SamplingParams(
                temperature=request.sampling.temperature,
                top_k=request.sampling.top_k,
                top_p=request.sampling.top_p,
                seed=request.sampling.seed,
            ),
            stop_token_ids=frozenset(request.stop_token_ids)
            | frozenset(() if request.ignore_eos else self._target.loader.config.eos_ids),
            stop_texts=request.stop,
            guide=self._guide(request),
            turns=None if turns is None else deque(_forced(turn.drafts, turn.committed) for turn in turns),
        )

    def _guide(self, request: Request) -> Guide | None:
        if request.grammar is None:
            return None
        try:
            return self._grammars.guide(request.grammar.kind, request.grammar.text, request.reasoning_end)
        except UsageError as error:
            raise ScenarioError(
                f"scenario {self._scenario.name!r}, request {request.id!r}: {error}"
            ) from None


def _forced(drafts: Sequence[int], committed: Sequence[int]) -> ForcedTurn:
    return ForcedTurn(drafts=tuple(drafts), committed=tuple(committed))


def _array(tensor: torch.Tensor | None) -> Array | None:
    return None if tensor is None else _known(tensor)


def _known(tensor: torch.Tensor) -> Array:
    """A numpy copy that shares nothing with the engine; bf16 as float32."""
    wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    copied: Array = wide.detach().cpu().numpy().copy()
    return copied


def _crash(step: int, error: Exception) -> Crash:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return Crash(
        step=step,
        kind=type(error).__name__,
        message=str(error),
        where=f"{Path(frame.filename).name}:{frame.lineno} {frame.name}",
    )
