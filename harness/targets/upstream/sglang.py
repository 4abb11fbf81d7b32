"""SGLang's verify recurrence behind our ``Kernels`` contract.

SGLang keeps one state per request: a verify step leaves it alone, writes the state after every token to a scratch
``[request, step, HV, K, V]``, and its scheduler copies the accepted one back. Here the copy goes to our slots.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import torch
from torch import Tensor

from harness.engine.config import NULL_SLOT
from harness.engine.kernels.decisions import CORRECT, KernelDecisions
from harness.engine.kernels.naive import NaiveKernels
from harness.errors import Unsupported
from harness.targets.upstream.loading import with_release

OPS = "sglang.srt.layers.attention.fla"
FUNCTION = "fused_recurrent_gated_delta_rule_update"
PARAMETERS = (
    *("q", "k", "v", "g", "beta", "scale", "initial_state_source", "initial_state_indices", "cu_seqlens"),
    *("use_qk_l2norm_in_kernel", "disable_state_update", "disable_output_calculation"),
    *("intermediate_states_buffer", "cache_steps"),
)
"""The call convention that this adapter was written for; another one means another layout."""


class SglangKernels(NaiveKernels):
    """The verify recurrence of the release whose sources lie under ``root``; Unsupported for another convention."""

    def __init__(self, root: Path) -> None:
        module = f"{OPS}.fused_recurrent"
        if not with_release(root, "sglang", (OPS,)).serves(module):
            raise Unsupported(f"it has no {module}, where its kernel was expected")
        self._update = getattr(importlib.import_module(module), FUNCTION)
        seen = tuple(inspect.signature(self._update).parameters)
        if seen != PARAMETERS:
            raise Unsupported(f"its {FUNCTION} takes ({', '.join(seen)}), expected ({', '.join(PARAMETERS)})")

    def gdn_verify(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """See ``Kernels.gdn_verify``."""
        rows, steps = state_indices.shape
        table = state_indices.long()
        live = table.gather(1, num_accepted_tokens.long()[:, None] - 1).squeeze(1)  # [B]
        source = state[live].transpose(2, 3).contiguous()  # [B, HV, K, V]
        scratch = source.new_zeros(rows, steps, *source.shape[1:])
        mine = torch.arange(rows, dtype=torch.int32, device=q.device)
        out: Tensor = self._update(
            *(x[None].contiguous() for x in (q, k, v, g, beta)),
            initial_state_source=source,
            initial_state_indices=torch.where(table[:, 0] == NULL_SLOT, -1, mine),
            cu_seqlens=query_start_loc,
            use_qk_l2norm_in_kernel=True,
            disable_state_update=True,
            intermediate_states_buffer=scratch,
            cache_steps=steps,
        )
        columns = torch.arange(steps, device=q.device)
        written = (columns < query_start_loc.diff()[:, None]) & (table != NULL_SLOT)  # [B, k + 1]
        state[table[written]] = scratch[written].transpose(2, 3).to(state.dtype)
        return out[0]
