"""What the tokens of every request's last verify step write, beside its one committed state (layout ``replay``)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Per slot two halves of R = k + 1 tokens: a step reads one and writes the other, ``turn`` says which is read.

    A token of a half is one term of the recurrence, ``S <- exp(g) S + write k^T``, with k as the convolution left it,
    not normalised. What a token writes depends on the tokens before it and on none behind it, so the terms of a prefix
    are right whatever is rejected: only the first ``a`` tokens of the half that was written last ever mean anything.
    """

    k: Tensor  # [P, 2, R, H, K]
    writes: Tensor  # [P, 2, R, HV, V] float32
    g: Tensor  # [P, 2, R, HV] float32: log decay

    @property
    def rows(self) -> int:
        """Tokens that a half has room for, R."""
        return self.k.shape[2]

    @property
    def pools(self) -> tuple[Tensor, Tensor, Tensor]:
        """All that is kept, slots first."""
        return self.k, self.writes, self.g

    @classmethod
    def empty(
        cls, slots: int, rows: int, key: tuple[int, int], value: tuple[int, int], like: Tensor
    ) -> Journal:
        """A journal for ``slots`` slots: key (H, K), value (HV, V), on the device of ``like`` and keys in its dtype."""
        halves = slots, 2, rows
        return cls(
            k=like.new_zeros(*halves, *key),
            writes=like.new_zeros(*halves, *value, dtype=torch.float32),
            g=like.new_zeros(*halves, value[0], dtype=torch.float32),
        )
