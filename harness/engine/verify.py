"""From hidden states to committed tokens: logits, the grammar's masks, the sampler or the script, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from harness.engine.config import EngineConfig
from harness.engine.guided import Grammars, apply_masks
from harness.engine.model import Forward, HybridModel
from harness.engine.plan import Before, ScheduledRow, before
from harness.engine.policy import Policy
from harness.engine.request import EngineRequest
from harness.engine.sampler import PLACEHOLDER, Sampler
from harness.engine.stops import Cut, Stops


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One row after its step: what it verified, what it committed, and what it was computed from."""

    request: EngineRequest
    before: Before
    in_prompt: bool
    input_ids: list[int]
    kept: list[int]
    committed: list[int]
    stops: bool  # whether a stop token or text ends the answer here
    logits: torch.Tensor | None  # [n + 1, vocab], before the mask
    mask: torch.Tensor | None  # [n + 1, words]
    routing: torch.Tensor  # [qlen, layers, top_k]
    prompt_logits: torch.Tensor | None = None  # [qlen, vocab], of a prompt that is to be scored
    discarded: bool = False
    cached: int = 0
    resumed: bool = False


class Verifier:
    """Decides what a step commits."""

    def __init__(self, model: HybridModel, grammars: Grammars, config: EngineConfig, policy: Policy) -> None:
        self._model = model
        self._grammars = grammars
        self._config = config
        self._sampler = Sampler(decisions=policy.sampler)
        self._stops = Stops(grammars.vocabulary, policy.stops)

    def verify(
        self, rows: Sequence[ScheduledRow], spans: Sequence[slice], forward: Forward
    ) -> list[RowResult]:
        """Logits of each row's last token and its drafts, the masks on them, and what is committed."""
        yielding = [(row, span) for row, span in zip(rows, spans, strict=True) if row.ends_prompt]
        places = [i for row, span in yielding for i in _places(row, span)]
        logits = self._model.logits(forward.hidden[places])  # [R, vocab]
        masks = self._grammars.masks(
            [None if row.discarded else row.request.guide for row, _ in yielding],
            [row.drafts for row, _ in yielding],
            mixed=len({row.in_prompt for row in rows}) > 1,
        )
        masked = apply_masks(logits, masks)
        results = []
        start = 0
        for row, span in zip(rows, spans, strict=True):
            end = start + (len(row.drafts) + 1 if row.ends_prompt else 0)
            mine = slice(start, end)
            chosen = self._choose(row, masked[mine]) if row.ends_prompt and not row.discarded else []
            result = self._result(row, chosen, logits[mine], masks[mine], forward.routing[span])
            if row.in_prompt and row.request.scores_prompt and not row.discarded:
                hidden = forward.hidden[span][: len(result.input_ids)]
                result = replace(result, prompt_logits=self._model.logits(hidden))
            results.append(result)
            start = end
        return results

    def _result(
        self,
        row: ScheduledRow,
        chosen: list[int],
        logits: torch.Tensor,
        masks: torch.Tensor,
        routing: torch.Tensor,
    ) -> RowResult:
        request = row.request
        counts = row.ends_prompt and not row.discarded
        cut = self._cut(request, chosen)
        return RowResult(
            request=request,
            before=row.before or before(request),
            in_prompt=row.in_prompt,
            input_ids=row.input_ids[: len(row.input_ids) - row.filler],
            kept=row.drafts,
            committed=chosen[: cut.tokens],
            stops=cut.stops,
            logits=logits if counts else None,
            mask=masks if counts and request.guide else None,
            routing=routing[: len(row.input_ids) - row.filler],
            discarded=row.discarded,
            cached=row.start if row.admitted else 0,
            resumed=row.admitted and row.epoch > 0,
        )

    def _choose(self, row: ScheduledRow, masked: torch.Tensor) -> list[int]:
        """One token more than drafts at most, from masked logits ``[n + 1, vocab]``, or from the script."""
        request, known = row.request, sum(draft != PLACEHOLDER for draft in row.drafts)
        if request.turns is not None:
            return list(request.turns.popleft().committed[: known + 1])
        laws = request.draft_probs
        return self._sampler.sample(
            masked,
            row.drafts,
            None if laws is None else laws[: len(row.drafts)],
            request.sampling,
            request.generator,
            refused=laws[known] if laws is not None and row.refused_next else None,
        )

    def _cut(self, request: EngineRequest, chosen: list[int]) -> Cut:
        """How many of the chosen tokens the answer holds, and whether a stop is the last of them. A grammar is over
        with the end token, whether or not the request ignores it."""
        answer = request.tokens[len(request.prompt) :]
        room = min(
            request.max_tokens - request.num_generated, self._config.max_model_len - len(request.tokens)
        )
        ends = request.guide.until_end(chosen) if request.guide else None
        if ends is not None and ends <= room:
            chosen = chosen[:ends]
        cut = self._stops.cut(answer, chosen, room, request.stop_token_ids, request.stop_texts)
        return replace(cut, stops=True) if cut.tokens == ends else cut


def _places(row: ScheduledRow, span: slice) -> range:
    """Packed places of the tokens whose logits judge the row's drafts and give one token more."""
    end = span.stop - row.filler
    return range(end - len(row.drafts) - 1, end)
