"""What an engine launches before it serves, so that no request ever waits for Triton's compiler.

The list is derived: every kernel of the contract, once for one row and once on either side of each batch size that its
module names in ``THRESHOLDS``. Rows of the warm-up have no tokens, so nothing in a pool is read or written::

    for layer in layers:
        warm_up(kernels, layer)

``traffic.py`` is the other half: what nothing more may be compiled for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import decode, gdn, replay
from .base import Kernels
from .decisions import CORRECT, KernelDecisions
from .journal import Journal

THRESHOLDS: dict[str, tuple[int, ...]] = {
    "conv_update": (),
    "conv_prefill": (),
    "gdn_verify": gdn.THRESHOLDS,
    "gdn_replay": replay.THRESHOLDS,
    "gdn_prefill": (),
    "gating": (),
    "gated_norm": (),
    "decode": decode.THRESHOLDS,
}
"""Every kernel of ``Kernels``, and the batch sizes above which it is launched in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What a linear layer hands to its kernels beside the tokens; shapes as in ``base.py``. Tokens have the dtype of
    ``conv_weight``."""

    conv_state: Tensor  # [P, C, D]
    conv_weight: Tensor  # [D, W]
    conv_bias: Tensor | None  # [D]
    A_log: Tensor  # [HV]
    dt_bias: Tensor  # [HV]
    state: Tensor  # [P, HV, V, K]
    norm_weight: Tensor  # [V]
    journal: Journal | None = None  # layout ``replay`` only
    eps: float = 1e-6

    @property
    def heads(self) -> tuple[int, int]:
        """Key and value heads, (H, HV)."""
        _, HV, V, K = self.state.shape
        return (len(self.conv_weight) - HV * V) // (2 * K), HV

    @property
    def rows(self) -> int:
        """Tokens that a row of a verify step may have, R = k + 1."""
        return self.conv_state.shape[1] - self.conv_weight.shape[1] + 2

    def empty(self, *size: int) -> Tensor:
        """Tokens of zeros, on the layer's device."""
        return self.conv_weight.new_zeros(*size)

    def index(self, *size: int) -> Tensor:
        """Index tensors of zeros."""
        return self.conv_weight.new_zeros(*size, dtype=torch.int32)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [N, D] as q, k [N, H, K] and v [N, HV, V]: views."""
        (H, HV), (V, K) = self.heads, self.state.shape[2:]
        q, k, v = x.split([H * K, H * K, HV * V], 1)
        return q.unflatten(1, (H, K)), k.unflatten(1, (H, K)), v.unflatten(1, (HV, V))


@dataclass(frozen=True, slots=True)
class Entry:
    """One launch of the list: a kernel, the rows of its batch, the tokens that a row might have had."""

    kernel: str
    rows: int
    width: int = 1


def entries(layer: Layer) -> tuple[Entry, ...]:
    """The list for a layer. Verify steps come with rows of R tokens and, for decodes without drafts, of one."""
    listed = []
    for kernel, thresholds in THRESHOLDS.items():
        if kernel == "gdn_replay" and layer.journal is None:
            continue
        widths = sorted({1, layer.rows}) if kernel == "gdn_verify" else [1]
        sizes = sorted({1, *thresholds, *(one + 1 for one in thresholds)})
        listed += [Entry(kernel, rows, width) for width in widths for rows in sizes]
    return tuple(listed)


def warm_up(
    kernels: Kernels,
    layer: Layer,
    decisions: KernelDecisions = CORRECT,
    listed: Sequence[Entry] | None = None,
) -> tuple[Entry, ...]:
    """Launch every entry of the list (by default all that the layer needs), and return them.

    Returns when everything is compiled; the launches themselves may still be on their way.
    """
    todo = entries(layer) if listed is None else tuple(listed)
    for entry in todo:
        _launch(kernels, layer, entry, decisions)
    return todo


def _launch(kernels: Any, layer: Layer, entry: Entry, decisions: KernelDecisions) -> None:
    """One token that belongs to no row, and rows without tokens. (``kernels`` is untyped: calls are put together.)"""
    HV, V = layer.state.shape[1:3]
    B = entry.rows
    x, gates = layer.empty(1, len(layer.conv_weight)), layer.empty(1, HV)
    g, strength = gates.float(), gates.float()
    slots, bounds = layer.index(B), {"query_start_loc": layer.index(B + 1)}
    accepted = {"num_accepted_tokens": layer.index(B) + 1, "decisions": decisions}
    convolution = (x, layer.conv_state, layer.conv_weight, layer.conv_bias)
    recurrence = (*layer.split(x), g, strength, layer.state)
    known = {"has_initial_state": layer.index(B).bool()}
    match entry.kernel:
        case "conv_update":
            kernels.conv_update(*convolution, **bounds, state_indices=slots, **accepted)
        case "conv_prefill":
            kernels.conv_prefill(*convolution, **bounds, state_indices=slots, **known)
        case "gdn_verify":
            table = layer.index(B, entry.width)
            kernels.gdn_verify(*recurrence, **bounds, state_indices=table, **accepted)
        case "gdn_replay":
            assert layer.journal is not None
            kernels.gdn_replay(
                *recurrence, layer.journal, **bounds, state_indices=slots, turns=layer.index(B), **accepted
            )
        case "gdn_prefill":
            kernels.gdn_prefill(*recurrence, **bounds, state_indices=slots, **known)
        case "gating":
            kernels.gating(gates, gates, layer.A_log, layer.dt_bias)
        case "gated_norm":
            kernels.gated_norm(layer.empty(1, HV, V), layer.empty(1, HV, V), layer.norm_weight, layer.eps)
        case "decode":
            kernels.decode(
                layer.empty(B, len(layer.conv_weight)),
                layer.empty(B, HV),
                layer.empty(B, HV),
                layer.empty(B, HV, V),
                layer.conv_state,
                layer.conv_weight,
                layer.conv_bias,
                layer.A_log,
                layer.dt_bias,
                layer.state,
                layer.norm_weight,
                layer.eps,
                state_indices=slots,
            )
