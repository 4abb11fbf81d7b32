"""The MTP drafter: k tokens ahead, one at a time, from the target's own hidden states (upstream's eagle-style loop).

First it reads the step's committed tokens, shifted left by one, beside the target's hidden states; then each draft is
fed back with the head's own output. What it wrote ahead is overwritten when the row is fed again from its accepted
end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from harness.engine.batch import Batch
from harness.engine.config import EngineConfig
from harness.engine.model import HybridModel, MTPHead
from harness.engine.packed import pack
from harness.engine.policy import Policy
from harness.engine.request import EngineRequest
from harness.engine.sampler import sample_draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A row's committed tokens of this step: ``hidden [m, hidden]`` at positions ``start`` to ``start + m - 1``."""

    request: EngineRequest
    start: int
    hidden: torch.Tensor
    drafts_next: bool  # whether the request will run another verify step


class MTPDrafter:
    """Proposes up to k drafts for every request that goes on."""

    def __init__(self, model: HybridModel, head: MTPHead, config: EngineConfig, policy: Policy) -> None:
        self._model = model
        self._head = head
        self._config = config
        self._policy = policy

    def propose(
        self, rows: Sequence[Committed], draft_length: int
    ) -> dict[str, tuple[list[int], torch.Tensor | None]]:
        """``draft_length`` drafts by request id, with their laws ``[n, vocab]`` where drafts are sampled.

        Where none are asked for, the head still reads what was committed: later drafts attend to it.
        """
        rows = [self._read(row) for row in rows]
        if not rows:
            return {}
        hidden = self._forward(
            rows,
            [_following(row) for row in rows],
            torch.cat([row.hidden for row in rows]),
            [row.start for row in rows],
        )
        last = torch.tensor([row.hidden.shape[0] for row in rows], device=hidden.device).cumsum(0) - 1
        live = [i for i, row in enumerate(rows) if row.drafts_next]
        hidden = hidden[last[live]]
        rows = [rows[i] for i in live]
        drafts: list[list[int]] = [[] for _ in rows]
        laws: list[list[torch.Tensor]] = [[] for _ in rows]
        for j in range(draft_length if rows else 0):
            if j:
                starts = [row.start + row.hidden.shape[0] - 1 + j for row in rows]
                hidden = self._forward(rows, [d[-1:] for d in drafts], hidden, starts)
            for i, (row, logits) in enumerate(zip(rows, self._model.logits(hidden), strict=True)):
                token, law = self._draw(row.request, logits)
                drafts[i].append(token)
                if law is not None:
                    laws[i].append(law)
        return {
            row.request.id: (tokens, torch.stack(law) if law else None)
            for row, tokens, law in zip(rows, drafts, laws, strict=True)
        }

    def _read(self, row: Committed) -> Committed:
        """The part of a row that the first pass reads."""
        committed, in_prompt = row.hidden.shape[0], row.start < row.request.prompt_end
        skipped = committed - self._policy.drafter_reads(committed, in_prompt)
        return replace(row, start=row.start + skipped, hidden=row.hidden[skipped:]) if skipped else row

    def _draw(self, request: EngineRequest, logits: torch.Tensor) -> tuple[int, torch.Tensor | None]:
        if self._config.sample_drafts and request.sampling.temperature > 0:
            return sample_draft(logits, request.sampling, request.generator)
        return int(logits.argmax()), None

    def _forward(
        self,
        rows: Sequence[Committed],
        ids: Sequence[Sequence[int]],
        hidden: torch.Tensor,
        starts: Sequence[int],
    ) -> torch.Tensor:
        blocks = [self._policy.drafter_blocks(row.request.blocks, row.request.slots) for row in rows]
        longest = self._policy.longest_row([len(mine) for mine in ids])
        tokens = pack(blocks, ids, starts, self._config, longest=longest)
        return self._head.forward(self._model.embedding[tokens.input_ids], hidden, Batch(tokens=tokens))


def _following(row: Committed) -> list[int]:
    """The token after each of the row's committed positions; all are known, the last since this step."""
    return row.request.tokens[row.start + 1 : row.start + 1 + row.hidden.shape[0]]
