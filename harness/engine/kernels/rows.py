"""The live rows of a packed batch, as the naive twin walks them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.errors import EngineError


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that have tokens and are not padding, longest first: the rows that own a token ``j`` are always a prefix."""

    index: Tensor  # [R] position of the row in the batch
    start: Tensor  # [R] its first packed token
    length: Tensor  # [R] its number of tokens, never zero

    @classmethod
    def live(cls, query_start_loc: Tensor, padding: Tensor, tokens: int) -> Rows:
        """Rows of ``query_start_loc [B + 1]`` that ``padding [B]`` does not mark; EngineError if they do not fit."""
        bounds = query_start_loc.long()
        length = bounds.diff()
        if len(length) and (int(length.min()) < 0 or int(bounds[0]) < 0 or int(bounds[-1]) > tokens):
            raise EngineError(
                f"query_start_loc {bounds.tolist()} does not describe rows of {tokens} packed tokens"
            )
        index = ((length > 0) & ~padding).nonzero().squeeze(1)
        index = index[length[index].argsort(descending=True, stable=True)]
        return cls(index, bounds[index], length[index])

    @property
    def longest(self) -> int:
        """Tokens of the longest row; zero if there is no row."""
        return int(self.length[0]) if len(self.length) else 0

    def tokens(self, j: int) -> Tensor:
        """Packed positions of the ``j``-th token of the rows that have one, [r] with r <= R."""
        return self.start[: int((self.length > j).sum())] + j

    def padded(self) -> tuple[Tensor, Tensor]:
        """Packed positions as a rectangle [R, T] (clamped into the row) and the mask [R, T] of real ones."""
        offset = torch.arange(self.longest, device=self.start.device)
        position = self.start[:, None] + torch.minimum(offset, self.length[:, None] - 1)
        return position, offset < self.length[:, None]
