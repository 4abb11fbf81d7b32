"""Temperatures of the tokens of a speculative batch.

vLLM 0.32.0's CPU path spreads a value per request (temperature, top-k, top-p) over its tokens into an int64 copy and
throws the copy away, so the logits of every drafted token are divided by memory that nobody wrote. It happens as soon
as one request of a batch is not greedy, and to all of them (vllm-project/vllm#55005).
"""

from __future__ import annotations

from typing import Any

import torch


def mend(rejection_sampler: Any) -> None:
    """Replace the function that spreads values in vLLM's module ``v1.sample.rejection_sampler``."""
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """x [B], cu_num_tokens [B] running totals -> [num_tokens], each request's value for each of its tokens.

    ``replace_from`` becomes ``replace_to``: greedy requests have temperature 0, and dividing by 1 changes nothing.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).to(torch.int64)
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return values.repeat_interleave(counts, output_size=num_tokens)
