"""Proposals for the next step, by the script, the MTP head, or prompt lookup; and the grammar's trim."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.engine.config import EngineConfig
from harness.engine.model import Forward, HybridModel, MTPHead
from harness.engine.mtp import Committed, MTPDrafter
from harness.engine.ngram import propose as propose_ngram
from harness.engine.plan import ScheduledRow
from harness.engine.policy import Policy
from harness.errors import ModelError, UsageError

DRAFTERS = ("mtp", "ngram")
"""The model's own head; prompt lookup."""

Proposals = dict[str, tuple[list[int], torch.Tensor | None]]
"""Drafts and, where they were drawn, their laws ``[n, vocab]``, by request id."""


class Drafting:
    """One engine's drafter."""

    def __init__(
        self, model: HybridModel, head: MTPHead | None, config: EngineConfig, policy: Policy
    ) -> None:
        self._config = config
        self._policy = policy
        self._head = _head_drafter(model, head, config, policy)

    def draft(
        self, rows: Sequence[ScheduledRow], spans: Sequence[slice], forward: Forward, draft_length: int
    ) -> None:
        """Propose up to ``draft_length`` drafts for every request that goes on; of a guided one, keep the longest
        prefix that its grammar accepts."""
        proposals = self._propose(rows, spans, forward, draft_length)
        for row in rows:
            request = row.request
            new, laws = proposals.get(request.id, (None, None))
            request.proposed, request.draft_probs = (
                self._policy.next_proposals(new, request.proposed),
                laws,
            )
            kept = request.guide.validate(request.proposed) if request.guide else len(request.proposed)
            request.drafts = request.proposed[:kept]

    def _propose(
        self, rows: Sequence[ScheduledRow], spans: Sequence[slice], forward: Forward, draft_length: int
    ) -> Proposals:
        going = [row for row in rows if not row.request.finish_reason and not row.request.in_prompt]
        if any(row.request.turns is not None for row in rows):
            return {
                row.request.id: (list(row.request.turns[0].drafts[:draft_length]), None)
                for row in going
                if row.request.turns
            }
        if self._head:
            return self._head.propose(
                [
                    Committed(
                        request=row.request,
                        start=row.start,
                        hidden=forward.hidden[span][: row.request.num_computed - row.start],
                        drafts_next=not row.request.in_prompt,
                    )
                    for row, span in zip(rows, spans, strict=True)
                    if not row.request.finish_reason
                ],
                draft_length,
            )
        if self._config.drafter == "ngram" and draft_length:
            lengths = self._config.ngram_lengths
            found = {
                row.request.id: propose_ngram(row.request.tokens, draft_length, *lengths) for row in going
            }
            return {name: (drafts, None) for name, drafts in found.items() if drafts}
        return {}


def _head_drafter(
    model: HybridModel, head: MTPHead | None, config: EngineConfig, policy: Policy
) -> MTPDrafter | None:
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
    return MTPDrafter(model, head, config, policy)
