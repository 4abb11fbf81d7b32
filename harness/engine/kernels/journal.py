"""The raw inputs of every request's last verify step, beside its one committed state (layout ``replay``)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Per slot two halves of R = k + 1 tokens: a step reads one and writes the other, ``turn`` says which is read.

    A half holds keys and values as the convolution left them (not normalised) and the gates of each token. Only the
    first ``a`` tokens of the half that was written last ever mean anything.
    """

    k: Tensor  # [P, 2, R, H, K]
    v: Tensor  # [P, 2, R, HV, V]
    gates: Tensor  # [P, 2, R, HV, 2] float32: log decay, write strength

    @property
    def rows(self) -> int:
        """Tokens that a half has room for, R."""
        return self.k.shape[2]

    @classmethod
    def empty(
        cls, slots: int, rows: int, key: tuple[int, int], value: tuple[int, int], like: Tensor
    ) -> Journal:
        """A journal for ``slots`` slots: key (H, K), value (HV, V), in the dtype and on the device of ``like``."""
        return cls(
            k=like.new_zeros(slots, 2, rows, *key),
            v=like.new_zeros(slots, 2, rows, *value),
            gates=like.new_zeros(slots, 2, rows, value[0], 2, dtype=torch.float32),
        )
