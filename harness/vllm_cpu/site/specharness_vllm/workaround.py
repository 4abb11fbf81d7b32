"""A vLLM plugin that lets CPU gated-delta-rule layers take speculative rows of unequal length.

vLLM 0.32.0's convolution of a speculative row is right only where every row carries its full draft: a row that a
grammar trimmed is refused, or leaves a wrong history behind (vllm-project/vllm#56419). Steps whose rows are all full go
to vLLM's own function; the others are convolved here, row by row, and then go through vLLM's own recurrence.
``temperatures`` and ``first_rows`` mend what the audit found behind that.
"""

from __future__ import annotations

import os
from typing import Any

import torch

SWITCH = "SPECHARNESS_WORKAROUND"
"""Set to 1 in the environment of the vLLM process: the plugin acts. Anything else: vLLM as released."""


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``; vLLM calls it in every one of its processes."""
    if os.environ.get(SWITCH) != "1":
        return
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention as gdn
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from specharness_vllm import first_rows, temperatures

    if getattr(gdn._spec_forward, "with_unequal_rows", False):
        return
    gdn._spec_forward = _taking_unequal_rows(gdn)
    temperatures.mend(rejection_sampler)
    first_rows.mend(GPUModelRunner)


def _taking_unequal_rows(gdn: Any) -> Any:
    as_released = gdn._spec_forward

    def spec_forward(
        layer: Any,
        metadata: Any,
        mixed_qkv: torch.Tensor,  # [N, D], the speculative rows packed
        b: torch.Tensor,
        a: torch.Tensor,
        lines: torch.Tensor,  # [P, D, W - 1 + k]
        states: torch.Tensor,
        width: int,
        columns: int,  # W - 1 + k
    ) -> torch.Tensor:
        rows = metadata.num_spec_decodes
        starts = metadata.spec_query_start_loc[: rows + 1].to(torch.int32).contiguous()
        full = columns - width + 2
        if rows * full == len(mixed_qkv) and bool((starts.diff() == full).all()):
            return as_released(layer, metadata, mixed_qkv, b, a, lines, states, width, columns)
        slots = metadata.spec_state_indices_tensor[:rows].to(torch.int32).contiguous()  # [rows, k + 1]
        accepted = metadata.num_accepted_tokens[:rows].to(torch.int32).contiguous()
        convolved = convolve_rows(
            mixed_qkv,
            starts.tolist(),
            accepted.tolist(),
            [lines[slot] for slot in slots[:, 0].tolist()],
            gdn._unpacked_conv_weight(layer),
            layer.conv1d.bias,
            silu=layer.activation == "silu",
        )
        q, k, v = (part.squeeze(0) for part in layer.rearrange_mixed_qkv(convolved))
        return gdn.ops.fused_sigmoid_gating_delta_rule_update_spec_cpu(
            A_log=layer.A_log,
            dt_bias=layer.dt_bias,
            q=q,
            k=k,
            v=v,
            a=a,
            b=b,
            initial_state_source=states,
            spec_state_indices=slots,
            num_accepted_tokens=accepted,
            cu_seqlens=starts,
            use_qk_l2norm_in_kernel=True,
        )

    spec_forward.with_unequal_rows = True  # type: ignore[attr-defined]
    return spec_forward


def convolve_rows(
    packed: torch.Tensor,
    starts: list[int],
    accepted: list[int],
    lines: list[torch.Tensor],
    taps: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    silu: bool,
) -> torch.Tensor:
    """Causal depthwise convolution of rows of any length, each behind its own history.

    ``packed`` is [N, D], row i of it ``starts[i]:starts[i + 1]``; ``accepted[i]`` the a of the row's previous step,
    which may exceed the row's length; ``lines[i]`` [D, W - 1 + k] its line, oldest input first, changed in place;
    ``taps`` [D, W]. History begins at column a - 1; afterwards the line begins with that history and the row's inputs,
    less the oldest. Sums are float32; the result [N, D] has the type of ``packed``.
    """
    history = taps.shape[1] - 1
    out = torch.empty_like(packed)
    for start, end, a, line in zip(starts[:-1], starts[1:], accepted, lines, strict=True):
        if start == end:
            continue
        fresh = packed[start:end].T.to(line.dtype)
        window = torch.cat([line[:, a - 1 : a - 1 + history], fresh], dim=1)  # [D, W - 1 + q]
        total = torch.zeros(len(window), end - start)
        for w in range(history + 1):
            total += taps[:, w : w + 1].float() * window[:, w : w + end - start].float()
        if bias is not None:
            total += bias.float()[:, None]
        total = torch.nn.functional.silu(total) if silu else total
        out[start:end] = total.T.to(out.dtype)
        kept = window[:, 1:]
        line[:, : kept.shape[1]] = kept
    return out
