"""The embedded engine: schedule, run, verify, commit, draft - one step at a time.

engine = Engine(model, head, grammars, config, policy)
engine.add(EngineRequest(id="r0", prompt=(1, 2, 3), max_tokens=16))
while step := engine.step():
    ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from harness.engine.batch import Batch, BatchBuilder
from harness.engine.config import EngineConfig
from harness.engine.guided import Grammars, apply_masks
from harness.engine.model import Forward, HybridModel, MTPHead
from harness.engine.mtp import Committed, MTPDrafter
from harness.engine.ngram import propose as propose_ngram
from harness.engine.policy import Policy
from harness.engine.request import EngineRequest
from harness.engine.sampler import Sampler
from harness.engine.scheduler import ScheduledRow, Scheduler
from harness.errors import EngineError, ModelError, UsageError

DRAFTERS = ("mtp", "ngram")
"""The model's own head; prompt lookup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One row after its step: what it verified, what it committed, and what it was computed from."""

    request: EngineRequest
    in_prompt: bool
    input_ids: list[int]
    proposed: list[int]
    grammar_kept: int
    kept: list[int]
    previous_accepted: int
    committed: list[int]
    logits: torch.Tensor | None  # [n + 1, vocab], before the mask
    mask: torch.Tensor | None  # [n + 1, words]
    routing: torch.Tensor  # [qlen, layers, top_k]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One step of the engine. ``finished`` requests still own their memory until the next step begins."""

    rows: list[RowResult]
    finished: list[EngineRequest]
    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """A request's live state in every linear layer, after ``tokens_included`` of its tokens."""

    conv: torch.Tensor  # [L, W - 1, D]
    recurrent: torch.Tensor  # [L, HV, V, K]
    tokens_included: int


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
        self._grammars = grammars
        self.config = config
        self.policy = policy
        self.scheduler = Scheduler(config)
        self._builder = BatchBuilder(config, policy)
        self._sampler = Sampler(decisions=policy.sampler)
        self._drafter = _mtp_drafter(model, head, config)
        self._grammar_ends = frozenset(model.config.eos_ids)
        self._finished: list[EngineRequest] = []

    def add(self, request: EngineRequest) -> None:
        """Queue a request; UsageError if the model has no room for its prompt and one token more."""
        length, most = len(request.prompt), self.config.max_model_len
        if not 0 < length < most:
            raise UsageError(
                f"request {request.id}: saw a prompt of {length} tokens, expected 1 to {most - 1} (max_model_len - 1)",
                hint="shorten the prompt, or raise max_model_len",
            )
        self.scheduler.add(request)

    @torch.inference_mode()
    def step(self) -> StepResult | None:
        """Run one step; ``None`` when there is nothing to run."""
        self._release_finished()
        rows = self.scheduler.schedule()
        if not rows:
            return None
        batch = self._builder.build(rows)
        forward = self.model.forward(batch)
        starts = batch.tokens.query_start_loc.tolist()
        spans = [slice(start, end) for start, end in pairwise(starts)]
        results = self._verify(rows, spans, forward)
        self._commit(rows, results)
        self._draft(rows, spans, forward)
        return StepResult(rows=results, finished=list(self._finished), batch=batch)

    def observed(self, request: EngineRequest) -> LiveState:
        """The state that the request's next step will start from, as the engine understands it."""
        column = request.num_accepted - 1
        width = self.model.config.conv_width
        layers = self.model.linear_layers.values()
        return LiveState(
            conv=torch.stack(
                [layer.cache.conv[request.slots[0], column : column + width - 1] for layer in layers]
            ),
            recurrent=torch.stack([layer.cache.recurrent[request.slots[column]] for layer in layers]),
            tokens_included=request.num_computed,
        )

    def _release_finished(self) -> None:
        for request in self._finished:
            self.scheduler.finish(request)
        self._finished = []

    def _verify(
        self, rows: Sequence[ScheduledRow], spans: Sequence[slice], forward: Forward
    ) -> list[RowResult]:
        """Logits of each row's last token and its drafts, the grammar's masks on them, and what is committed."""
        yielding = [(row, span) for row, span in zip(rows, spans, strict=True) if row.ends_prompt]
        places = [i for row, span in yielding for i in range(span.stop - len(row.drafts) - 1, span.stop)]
        logits = self.model.logits(forward.hidden[places])  # [R, vocab]
        masks = self._grammars.masks(
            [row.request.guide for row, _ in yielding], [row.drafts for row, _ in yielding]
        )
        results = []
        start = 0
        for row, span in zip(rows, spans, strict=True):
            end = start + (len(row.drafts) + 1 if row.ends_prompt else 0)
            results.append(self._result(row, logits[start:end], masks[start:end], forward.routing[span]))
            start = end
        return results

    def _result(
        self, row: ScheduledRow, logits: torch.Tensor, masks: torch.Tensor, routing: torch.Tensor
    ) -> RowResult:
        request = row.request
        return RowResult(
            request=request,
            in_prompt=row.in_prompt,
            input_ids=row.input_ids,
            proposed=request.proposed,
            grammar_kept=len(request.drafts),
            kept=row.drafts,
            previous_accepted=request.num_accepted,
            committed=self._choose(row, apply_masks(logits, masks)) if row.ends_prompt else [],
            logits=logits if row.ends_prompt else None,
            mask=masks if row.ends_prompt and request.guide else None,
            routing=routing,
        )

    def _choose(self, row: ScheduledRow, masked: torch.Tensor) -> list[int]:
        """Tokens that the step commits, from masked logits ``[n + 1, vocab]``, or from the script."""
        request = row.request
        if request.turns is not None:
            committed = list(request.turns.popleft().committed)
            if len(committed) > len(row.drafts) + 1:
                raise EngineError(
                    f"the script commits {len(committed)} tokens of {request.id}, "
                    f"but only {len(row.drafts)} drafts are left in its row"
                )
        else:
            n, laws = len(row.drafts), request.draft_probs
            committed = self._sampler.sample(
                masked,
                row.drafts,
                None if laws is None else laws[:n],
                request.sampling,
                request.generator,
                refused=laws[n] if laws is not None and row.refused_next else None,
            )
        return self._up_to_the_end(request, committed)

    def _up_to_the_end(self, request: EngineRequest, committed: list[int]) -> list[int]:
        """The tokens up to and with the one that ends the request: an end token, its last allowed one.

        A grammar is over with the end token, whether or not the request ignores it.
        """
        ends = request.stop_token_ids | (self._grammar_ends if request.guide else frozenset())
        room = min(
            request.max_tokens - request.num_generated, self.config.max_model_len - len(request.tokens)
        )
        for i, token in enumerate(committed[:room]):
            if token in ends:
                return committed[: i + 1]
        return committed[:room]

    def _commit(self, rows: Sequence[ScheduledRow], results: Sequence[RowResult]) -> None:
        """Add the tokens; the state of a rejected draft is left behind by a alone."""
        refresh = self.policy.refreshes_accepted(any(row.drafts for row in rows))
        for row, result in zip(rows, results, strict=True):
            request, committed = row.request, result.committed
            request.num_computed = row.start + (len(row.input_ids) if row.in_prompt else len(committed))
            request.tokens += committed
            if refresh or row.in_prompt:
                request.num_accepted = max(len(committed), 1)
            if request.guide and committed:
                request.guide.accept(committed)
            request.finish_reason = self._finish_reason(request)
            request.proposed, request.drafts, request.draft_probs = [], [], None
        self._finished = [row.request for row in rows if row.request.finish_reason]

    def _finish_reason(self, request: EngineRequest) -> str | None:
        if request.num_generated and request.tokens[-1] in request.stop_token_ids:
            return "stop"
        if request.guide and request.guide.is_terminated:
            return "stop"
        if request.num_generated >= request.max_tokens or len(request.tokens) >= self.config.max_model_len:
            return "length"
        if request.turns is not None and not request.turns and not request.in_prompt:
            return "script"
        return None

    def _draft(self, rows: Sequence[ScheduledRow], spans: Sequence[slice], forward: Forward) -> None:
        """Propose drafts for the next step; of a guided request, keep the longest prefix its grammar accepts."""
        proposals = self._propose(rows, spans, forward)
        for row in rows:
            request = row.request
            request.proposed, request.draft_probs = proposals.get(request.id, ([], None))
            kept = request.guide.validate(request.proposed) if request.guide else len(request.proposed)
            request.drafts = request.proposed[:kept]

    def _propose(
        self, rows: Sequence[ScheduledRow], spans: Sequence[slice], forward: Forward
    ) -> dict[str, tuple[list[int], torch.Tensor | None]]:
        goes_on = {
            row.request.id: not row.request.finish_reason and not row.request.in_prompt for row in rows
        }
        if any(row.request.turns is not None for row in rows):
            return {
                row.request.id: (list(row.request.turns[0].drafts), None)
                for row in rows
                if row.request.turns and goes_on[row.request.id]
            }
        if self._drafter:
            return self._drafter.propose(
                [
                    Committed(
                        request=row.request,
                        start=row.start,
                        hidden=forward.hidden[span][: row.request.num_computed - row.start],
                        drafts_next=goes_on[row.request.id],
                    )
                    for row, span in zip(rows, spans, strict=True)
                    if not row.request.finish_reason
                ]
            )
        if self.config.drafter == "ngram" and self.config.k:
            return {
                row.request.id: (
                    propose_ngram(row.request.tokens, self.config.k, *self.config.ngram_lengths),
                    None,
                )
                for row in rows
                if goes_on[row.request.id]
            }
        return {}


def _mtp_drafter(model: HybridModel, head: MTPHead | None, config: EngineConfig) -> MTPDrafter | None:
    """The drafter that needs a head, if it is asked for; nothing is ever drafted less than asked for in silence."""
    if config.drafter not in DRAFTERS:
        raise UsageError(f"saw drafter {config.drafter!r}, expected one of {', '.join(DRAFTERS)}")
    if config.drafter != "mtp" or not config.k:
        return None
    if head is None:
        others = ", ".join(name for name in DRAFTERS if name != "mtp")
        raise ModelError(
            f"drafter mtp with k={config.k} needs an MTP head, and the checkpoint has no mtp.* tensors",
            hint=f"choose a drafter without a head ({others}), k=0, or a checkpoint that kept its head",
        )
    return MTPDrafter(model, head, config)
