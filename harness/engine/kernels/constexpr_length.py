"""A fault in speed only: the convolution update with the longest row as a ``constexpr``.

Its results are right, but Triton compiles the kernel anew for every length it meets. Launched with the longest row of
each batch, as the fault does, a serving engine stops for the compiler whenever the grammar first trims a batch to a
new length. Launched with the fixed ``k + 1``, the shape that the upstream fix has, it needs one variant, and loops
over tokens that short rows do not have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import triton
import triton.language as tl
from torch import Tensor

from .conv import INDEX_TENSORS, advance_line, convolve, update_launch
from .decisions import CORRECT, KernelDecisions
from .launch import Launch
from .triton_kernels import TritonKernels


@triton.jit(do_not_specialize=["index_stride"], do_not_specialize_on_alignment=INDEX_TENSORS)
def conv_update_constexpr_length_kernel(
    x, out, line, weight, bias, query_start_loc, state_indices, num_accepted_tokens,
    x_stride, slot_stride, column_stride, index_stride,
    D: tl.constexpr, W: tl.constexpr, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr,
    history_start: tl.constexpr, kept_start: tl.constexpr, input_column: tl.constexpr, is_padding: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, MAX_LENGTH: tl.constexpr,
):  # fmt: skip
    """``conv_update_kernel``, but for the loop: unrolled up to MAX_LENGTH."""
    row = tl.program_id(0)
    start = tl.load(query_start_loc + row).to(tl.int64)
    length = (tl.load(query_start_loc + row + 1) - start).to(tl.int32)
    slot = tl.load(state_indices + row * index_stride).to(tl.int64)
    if (length <= 0) | is_padding(slot):
        return
    a = tl.load(num_accepted_tokens + row)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    x += start * x_stride
    out += start * D
    line += slot * slot_stride

    history = line + history_start(a) * column_stride
    for j in tl.static_range(MAX_LENGTH):
        t = j + tl.arange(0, 1)
        y = convolve(x, history, weight, bias, t, length, d, x_stride, column_stride, D, W, HAS_BIAS)
        tl.store(out + t[:, None] * D + d[None, :], y, mask=(t < length)[:, None] & (d < D)[None, :])
    advance_line(
        x, line, a, length, d, x_stride, column_stride, D, W, COLUMNS, BLOCK_C, kept_start, input_column
    )  # fmt: skip


def constexpr_length(launch: Launch, max_length: int) -> Launch:
    """A launch of ``conv_update_kernel`` turned into one of this kernel."""
    arguments = {**launch.arguments, "MAX_LENGTH": max_length}
    return replace(launch, kernel=conv_update_constexpr_length_kernel, arguments=arguments)


@dataclass(frozen=True, slots=True)
class ConstexprLengthKernels(TritonKernels):
    """``TritonKernels`` with the fault; with ``max_length`` the shape that upstream merged, compiled once."""

    max_length: int | None = None

    def conv_update(
        self,
        x: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """See ``Kernels.conv_update``."""
        out = x.new_zeros(x.shape)
        launch = update_launch(
            x,
            out,
            conv_state,
            weight,
            bias,
            query_start_loc=query_start_loc,
            state_indices=state_indices,
            num_accepted_tokens=num_accepted_tokens,
            decisions=decisions,
        )
        self.run(constexpr_length(launch, self.max_length or int(query_start_loc.diff().max())))
        return out
