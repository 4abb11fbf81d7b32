"""Every decision that this family of bugs lives in, gathered in one value: the reader's map of where they live.

A variant or a fault is ``dataclasses.replace(POLICY, one_decision=...)``; nothing is monkeypatched. Letters:
``S`` speculative rows, ``k`` drafts at most, ``n`` drafts kept, ``a`` tokens committed by a request's previous step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.engine.guided import CORRECT_GUIDE, GuideDecisions
from harness.engine.kernels.decisions import CORRECT, KernelDecisions
from harness.engine.sampler import CORRECT_SAMPLER, SamplerDecisions


def is_speculative(num_drafts: int, in_prompt: bool) -> bool:
    """Every row past its prompt reads its state at a - 1, so zero drafts change nothing (vllm #39273, PR 56531)."""
    return not in_prompt


def conv_rows(x: torch.Tensor, query_start_loc: torch.Tensor) -> torch.Tensor:
    """Row boundaries for the convolution: x is packed ``[N, D]`` and so are the rows. Returns ``[S + 1]``."""
    return query_start_loc


def count_spec_tokens(spec_tokens: int, num_spec_rows: int, k: int, num_tokens: int) -> int:
    """Tokens in the speculative rows; they are counted, since rows may be unequal (vllm PR 24957)."""
    return spec_tokens


def refreshes_accepted(step_had_drafts: bool) -> bool:
    """The accepted counts describe the last step, whatever that step held (vllm #30877)."""
    return True


def row_buffer(max_num_seqs: int, k: int, max_capture: int) -> int:
    """Rows of the persistent tensors that are indexed by request: a step has no more rows than that."""
    return max_num_seqs


def token_buffer(max_num_seqs: int, k: int, max_capture: int) -> int:
    """Entries of the persistent tensors that are indexed by token: a replayed step is as long as its capture."""
    return max_capture


def captured_rows(padded_tokens: int, max_num_seqs: int, k: int) -> int:
    """Rows of a captured step of ``padded_tokens``: unequal rows may be as short as one token (vllm PR 24957)."""
    return min(padded_tokens, max_num_seqs)


def unrolled_length(longest: int, k: int) -> int | None:
    """Row length that the convolution is compiled for; ``None``: lengths are read at run time."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The engine's decisions; the defaults are the correct ones."""

    name: str = "fixed"
    story: str = "the correct engine"
    is_speculative: Callable[[int, bool], bool] = is_speculative
    conv_rows: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = conv_rows
    count_spec_tokens: Callable[[int, int, int, int], int] = count_spec_tokens
    refreshes_accepted: Callable[[bool], bool] = refreshes_accepted
    row_buffer: Callable[[int, int, int], int] = row_buffer
    token_buffer: Callable[[int, int, int], int] = token_buffer
    captured_rows: Callable[[int, int, int], int] = captured_rows
    unrolled_length: Callable[[int, int], int | None] = unrolled_length
    kernels: KernelDecisions = CORRECT
    guide: GuideDecisions = CORRECT_GUIDE
    sampler: SamplerDecisions = CORRECT_SAMPLER


POLICY = Policy()
"""The correct engine, variant ``fixed``."""
