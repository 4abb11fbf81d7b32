"""Log-probabilities of tokens and of the best others, from the model's own logits: before the grammar's mask, before
temperature, top-k and top-p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token that was fed or drawn, its rank (1 is the best), and the best tokens at its place, best first."""

    token: int
    logprob: float
    rank: int
    best: tuple[tuple[int, float], ...]

    @property
    def with_best(self) -> dict[int, float]:
        """The best tokens and this one."""
        return {**dict(self.best), self.token: self.logprob}


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], most: int) -> list[TokenLogprob]:
    """logits ``[n or more, vocab]`` of the places where n tokens were drawn -> their log-probabilities and the ``most``
    best of each place."""
    laws = logits[: len(tokens)].float().log_softmax(dim=-1)  # [n, vocab]
    chosen = laws.gather(-1, torch.tensor([*tokens], device=laws.device)[:, None])  # [n, 1]
    ranks = (laws > chosen).sum(dim=-1) + 1
    best = laws.topk(most, dim=-1)
    return [
        TokenLogprob(token=token, logprob=logprob, rank=rank, best=tuple(zip(ids, values, strict=True)))
        for token, logprob, rank, ids, values in zip(
            tokens,
            chosen[:, 0].tolist(),
            ranks.tolist(),
            best.indices.tolist(),
            best.values.tolist(),
            strict=True,
        )
    ]
