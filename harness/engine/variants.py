"""The engine as it was before the fix, as the fix was merged, and as it should be.

``before-fix`` and ``as-merged`` follow vLLM around PR 24957 (2025-09-17): the decisions, in our own words and code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from harness.engine.plan import ScheduledRow
from harness.engine.policy import POLICY, Policy
from harness.errors import UsageError


def has_drafts(row: ScheduledRow, rows: Sequence[ScheduledRow], k: int) -> bool:
    """A row whose drafts were trimmed to zero leaves the speculative path, and with it its accepted offset."""
    return not row.in_prompt and bool(row.drafts)


def rectangular_rows(x: torch.Tensor, query_start_loc: torch.Tensor) -> torch.Tensor:
    """x ``[N, D]`` viewed as (rows, N / rows, D): unequal rows are regrouped, or the view is invalid (vllm #24881)."""
    num_rows = query_start_loc.numel() - 1
    width = x.view(num_rows, -1, x.shape[-1]).shape[1]
    return torch.arange(num_rows + 1, dtype=query_start_loc.dtype, device=x.device) * width


def uniform_spec_tokens(spec_tokens: int, num_spec_rows: int, k: int, num_tokens: int) -> int:
    """Every speculative row is taken to be k + 1 long; the limit counts prompt tokens too."""
    return min(num_spec_rows * (k + 1), num_tokens)


def only_with_drafts(step_had_drafts: bool) -> bool:
    """A step without any draft leaves the accepted counts of the step before (until vllm #30877)."""
    return step_had_drafts


def request_sized(max_num_seqs: int, k: int, max_capture: int) -> int:
    """Sized by requests, whatever indexes it."""
    return min(max_num_seqs, max_capture)


def either_sized(max_num_seqs: int, k: int, max_capture: int) -> int:
    """Sized by the tokens of a full batch or by the largest capture, whichever is less."""
    return min(max_num_seqs * (k + 1), max_capture)


def uniform_rows(padded_tokens: int, max_num_seqs: int, k: int) -> int:
    """As many rows as fit if each were k + 1 long: short rows at the end are lost."""
    return padded_tokens // (k + 1)


def rows_per_token(padded_tokens: int, max_num_seqs: int, k: int) -> int:
    """One row for every padded token: never too few, mostly empty."""
    return min(padded_tokens, max_num_seqs * (k + 1))


def full_length(longest: int, k: int) -> int | None:
    """Compiled for k + 1 tokens, whatever the rows are: one variant, since k does not change."""
    return k + 1


def longest_length(longest: int, k: int) -> int | None:
    """Compiled for the longest row of the batch: one variant per length that a trim leaves."""
    return longest


AS_MERGED = replace(
    POLICY,
    name="as-merged",
    story="rows without drafts leave the speculative path and lose their accepted offset (vLLM PR 24957)",
    is_speculative=has_drafts,
    refreshes_accepted=only_with_drafts,
    row_buffer=either_sized,
    token_buffer=either_sized,
    captured_rows=rows_per_token,
    unrolled_length=full_length,
)
BEFORE_FIX = replace(
    AS_MERGED,
    name="before-fix",
    story="rectangular view of unequal rows, token counts by product (vLLM before PR 24957)",
    conv_rows=rectangular_rows,
    count_spec_tokens=uniform_spec_tokens,
    row_buffer=request_sized,
    token_buffer=request_sized,
    captured_rows=uniform_rows,
)
BY_REQUESTS = replace(
    POLICY,
    name="buffers-by-requests",
    story="token-indexed tensors sized by requests, as many captured rows as fit if each were full",
    token_buffer=request_sized,
    captured_rows=uniform_rows,
)
BY_TOKENS = replace(
    POLICY,
    name="buffers-by-tokens",
    story="one captured row for every token: nothing is lost, most rows are empty",
    row_buffer=either_sized,
    captured_rows=rows_per_token,
)
CONSTEXPR_LENGTH = replace(
    POLICY,
    name="constexpr-length",
    story="the longest row of a batch is a compile-time constant: new lengths stop the engine to compile",
    unrolled_length=longest_length,
)

VARIANTS: dict[str, Policy] = {
    policy.name: policy
    for policy in (BEFORE_FIX, AS_MERGED, BY_REQUESTS, BY_TOKENS, CONSTEXPR_LENGTH, POLICY)
}


def variant(name: str) -> Policy:
    """The policy of this name, a variant's or a fault's; UsageError lists what exists."""
    from harness.engine.faults import faults  # they build on the variants

    known = VARIANTS | {fault.name: fault.policy for fault in faults().values()}
    if name not in known:
        raise UsageError(
            f"saw variant {name!r}, expected one of {', '.join(VARIANTS)}, or a fault",
            hint="specharness list variants, specharness list faults",
        )
    return known[name]
