"""The embedded engine as a target: scenarios in, traces out. The only module outside ``engine`` that knows both."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from harness.engine.config import EngineConfig
from harness.engine.engine import Engine, RowResult, StepResult
from harness.engine.guided import Grammars, Guide
from harness.engine.kernels.select import Kind, Selection, select
from harness.engine.loader import Loader
from harness.engine.policy import Policy
from harness.engine.recompile import CountingKernels
from harness.engine.request import EngineRequest, ForcedTurn
from harness.engine.sampler import SamplingParams
from harness.engine.variants import variant
from harness.errors import ScenarioError, Unsupported, UsageError
from harness.scenario import Request, Scenario
from harness.targets.protocols import Capability
from harness.trace import Array, Completion, Crash, LayerState, RowTrace, StepTrace, Trace

STALL = 64
"""Steps without a committed token after which a run counts as stalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedTarget:
    """The engine under one policy. Weights are read once per ``Loader`` and shared between variants."""

    loader: Loader
    policy: Policy
    kernels: Kind | Selection = "auto"
    device: str = "cpu"
    state_dtype: torch.dtype = torch.float32
    speculate: bool = True
    capabilities: frozenset[Capability] = field(default=frozenset(Capability))

    @property
    def name(self) -> str:
        """``embedded:`` and the variant."""
        return f"embedded:{self.policy.name}"

    @property
    def selection(self) -> Selection:
        """The kernels and why: those that were handed in, or those of a kind."""
        return self.kernels if isinstance(self.kernels, Selection) else select(self.kernels, self.device)

    @property
    def setting(self) -> dict[str, str]:
        """The kernels and why, the dtype of the states."""
        return {
            "kernels": self.selection.reason,
            "state dtype": str(self.state_dtype).removeprefix("torch."),
        }

    def run(self, scenario: Scenario, *, reverse_rows: bool = False) -> Trace:
        """Run a scenario; an exception inside the engine is the suspect's crash."""
        return _Run(self, scenario, reverse_rows).trace()

    def config(self, scenario: Scenario, *, reverse_rows: bool = False) -> EngineConfig:
        """The engine's setting for a scenario."""
        return EngineConfig(
            k=scenario.k if self.speculate else 0,
            token_budget=scenario.token_budget,
            max_model_len=scenario.max_model_len,
            max_num_seqs=scenario.max_num_seqs,
            capture_sizes=scenario.capture_sizes,
            drafter="ngram"
            if scenario.forced
            else scenario.drafter,  # a script drafts by itself: no head needed
            sample_drafts=scenario.sample_drafts,
            state_dtype=self.state_dtype,
            device=self.device,
            reverse_rows=reverse_rows != scenario.reverse_rows,
        )


def under_each_variant(
    folder: Path, *, kernels: Kind = "auto", device: str = "cpu", state_dtype: str = "float32"
) -> Callable[[str], EmbeddedTarget]:
    """A function from a variant's name to the target under it; the weights are read once."""
    loader = Loader(folder, device=device)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[state_dtype]

    def under(name: str) -> EmbeddedTarget:
        return EmbeddedTarget(
            loader=loader, policy=variant(name), kernels=kernels, device=device, state_dtype=dtype
        )

    return under


class _Run:
    """One scenario on one engine."""

    def __init__(self, target: EmbeddedTarget, scenario: Scenario, reverse_rows: bool) -> None:
        self._target = target
        self._scenario = scenario
        self._grammars = Grammars(target.loader.vocabulary, target.policy.guide)
        selection = target.selection
        config = target.config(scenario, reverse_rows=reverse_rows)
        counted = scenario.most_compilations is not None
        self._counting = CountingKernels(selection.kernels, target.policy, config.k) if counted else None
        parts = (config, target.policy, self._counting or selection.kernels)
        self._engine = Engine(
            target.loader.model(*parts), target.loader.head(*parts), self._grammars, config, target.policy
        )
        self._requests = {request.id: self._admit(request) for request in scenario.requests}
        self._steps: list[StepTrace] = []

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
            notes=self._target.setting,
        )

    def _drive(self) -> None:
        waiting = deque(sorted(self._scenario.requests, key=lambda request: request.arrival))
        clock = idle = 0
        while waiting or not self._engine.scheduler.is_idle:
            if self._engine.scheduler.is_idle:
                clock = max(clock, waiting[0].arrival)
            while waiting and waiting[0].arrival <= clock:
                self._engine.add(self._requests[waiting.popleft().id])
            step = self._engine.step()
            clock += 1
            if step is None:
                continue
            self._steps.append(self._record(step))
            idle = 0 if any(row.committed or row.in_prompt for row in step.rows) else idle + 1
            if idle > STALL:
                raise RuntimeError(f"stalled: no token was committed in {idle} steps")

    def _record(self, step: StepResult) -> StepTrace:
        return StepTrace(
            index=len(self._steps),
            rows=tuple(self._record_row(row) for row in step.rows),
            padded_rows=step.batch.padded_rows,
            padded_tokens=step.batch.padded_tokens,
        )

    def _record_row(self, row: RowResult) -> RowTrace:
        request = row.request
        live = self._engine.observed(request)
        return RowTrace(
            request=request.id,
            prompt_tokens=len(row.input_ids) if row.in_prompt else 0,
            kept=tuple(row.kept),
            committed=tuple(row.committed),
            num_computed=request.num_computed,
            previous_accepted=row.previous_accepted,
            proposed=tuple(row.proposed),
            slots=tuple(request.slots),
            grammar_kept=row.grammar_kept if request.guide else None,
            matcher_tokens=request.guide.num_accepted if request.guide else None,
            finish_reason=request.finish_reason,
            logits=_array(row.logits),
            mask=_array(row.mask),
            routing=_array(row.routing),
            state=LayerState(
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
            stop_token_ids=frozenset()
            if request.ignore_eos
            else frozenset(self._target.loader.config.eos_ids),
            guide=self._guide(request),
            turns=None if turns is None else deque(_forced(turn.drafts, turn.committed) for turn in turns),
        )

    def _guide(self, request: Request) -> Guide | None:
        if request.grammar is None:
            return None
        try:
            return self._grammars.guide(request.grammar.kind, request.grammar.text)
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
