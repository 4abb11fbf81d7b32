"""The same work by the kernels of vLLM and of fla-core, out of their wheels."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.targets.upstream import einops_twin, fla, loading
from harness.targets.upstream.kernels import raw_gates
from harness.targets.upstream.layouts import CONV, THIRD_PARTY
from harness.targets.upstream.wheel import release_files

VLLM, FLA = "0.33.0", "0.6.0"
MATH = "vllm.utils.math_utils"


class Hopper(loading.Platform):
    """A GPU that can start a kernel's preamble early, as vLLM finds it there."""

    @staticmethod
    def is_arch_support_pdl() -> bool:
        """Whether launches may overlap."""
        return torch.cuda.get_device_capability() >= (9, 0)


class Upstream:
    """Both releases, loaded; each method is one call of theirs as their own layer makes it."""

    def __init__(self, cache: Path) -> None:
        einops_twin.install()
        ops = THIRD_PARTY.rpartition(".")[0]
        loading.KNOWN["vllm.platforms.current_platform"] = Hopper()
        loading.with_release(release_files("vllm", VLLM, cache).root, "vllm", (ops, CONV, MATH))
        loading.with_release(
            release_files("fla", FLA, cache).root, "fla", (*fla.REAL, "fla.modules.norm.l2norm")
        )
        self._ops = importlib.import_module(THIRD_PARTY)
        self._norm = importlib.import_module(f"{THIRD_PARTY}.layernorm_guard").layer_norm_fwd_kernel
        self._conv = importlib.import_module(CONV).causal_conv1d_update
        self._chunk = importlib.import_module(fla.OPS).chunk_gated_delta_rule

    def verify(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        gates: dict[str, Tensor],
        state: Tensor,
        rows: dict[str, Tensor],
    ) -> Any:
        """vLLM's verify recurrence, gates fused: q, k, v [N, heads, dim] contiguous, gates from ``gates_of``."""
        return self._ops.fused_sigmoid_gating_delta_rule_update(
            q=q[None],
            k=k[None],
            v=v[None],
            **gates,
            initial_state=state,
            inplace_final_state=True,
            cu_seqlens=rows["query_start_loc"],
            ssm_state_indices=rows["state_indices"],
            num_accepted_tokens=rows["num_accepted_tokens"],
            use_qk_l2norm_in_kernel=True,
        )

    def convolve(self, x: Tensor, lines: Tensor, weight: Tensor, slots: Tensor) -> Any:
        """vLLM's convolution of one token per row; its output goes over x. lines [P, C, D]."""
        return self._conv(x, lines.transpose(1, 2), weight, None, "silu", conv_state_indices=slots)

    def recur(self, x: Tensor, gates: dict[str, Tensor], state: Tensor, out: Tensor, slots: Tensor) -> Any:
        """vLLM's decode recurrence on packed q, k, v: x [B, D], out [B, 1, HV, V]."""
        return self._ops.fused_recurrent_gated_delta_rule_packed_decode(
            mixed_qkv=x,
            **gates,
            scale=state.shape[-1] ** -0.5,
            initial_state=state,
            out=out,
            ssm_state_indices=slots,
            use_qk_l2norm_in_kernel=True,
        )

    def norm(self, x: Tensor, z: Tensor, weight: Tensor, out: Tensor, rstd: Tensor, eps: float) -> None:
        """vLLM's gated RMS norm of x, z [M, V]. Its launcher is part of its warm-up machinery, so it is typed again."""
        M, V = x.shape
        wanted = -(-M // (2 * torch.cuda.get_device_properties(0).multi_processor_count))
        block = min(1 << (wanted - 1).bit_length(), 4)
        self._norm[(-(-M // block), 1)](
            x, out, weight, None, z, None, rstd, V, V, V, M, V, eps,
            BLOCK_N=V, ROWS_PER_BLOCK=block, HAS_BIAS=False, HAS_Z=True, NORM_BEFORE_GATE=True, IS_RMS_NORM=True,
            ACTIVATION="swish", num_warps=1,
        )  # fmt: skip

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, bounds: Tensor
    ) -> tuple[Tensor, Tensor]:
        """fla-core's chunk kernels over packed prompts: outputs [N, HV, V], final states [B, HV, K, V]."""
        with torch.no_grad():
            out, final = self._chunk(
                q=q[None],
                k=k[None],
                v=v[None],
                g=g[None],
                beta=beta[None],
                initial_state=state,
                output_final_state=True,
                use_qk_l2norm_in_kernel=True,
                cu_seqlens=bounds,
            )
        return out[0], final


def gates_of(g: Tensor, beta: Tensor) -> dict[str, Tensor]:
    """Raw gates of vLLM's kernels that lead to g and beta, in bfloat16 as a projection gives them."""
    gates = raw_gates(g, beta)
    return {name: x.bfloat16() if name in ("a", "b") else x for name, x in gates.items()}
