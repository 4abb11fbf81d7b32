"""Mistakes that the sanitizers have to find: else their silence about our kernels is worth nothing."""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from harness.engine.kernels.gating import gating_launch
from harness.engine.kernels.launch import Launch


@triton.jit
def shared_race_kernel(out, N: tl.constexpr):
    """Every thread writes its number to one word of shared memory, and reads it without a barrier."""
    i = tl.arange(0, N)
    seen = tl.inline_asm_elementwise(
        "{ .shared .align 4 .b32 cell; st.volatile.shared.b32 [cell], $1; ld.volatile.shared.b32 $0, [cell]; }",
        "=r,r",
        [i],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.store(out + i, seen)


def out_of_bounds(device: str = "cuda") -> Launch:
    """The gating kernel, told of more tokens than there are: it reads and writes beyond every allocation."""
    a = torch.zeros(8, 4, device=device)
    g, beta = torch.zeros(8, 4, device=device), torch.zeros(8, 4, device=device)
    right = gating_launch(a, a, a[0], a[0], g, beta)
    return replace(right, arguments={**right.arguments, "total": g.numel() + 4})


def shared_race(device: str = "cuda") -> Launch:
    """Four warps that race for one word."""
    out = torch.zeros(128, dtype=torch.int32, device=device)
    return Launch(shared_race_kernel, (1,), {"out": out, "N": 128}, {"num_warps": 4})
