"""Groups G and H: prefix caching, and numbers that are not quite right."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.engine.faults import fault
from harness.engine.policy import POLICY, Policy
from harness.engine.prefix import CORRECT_PREFIX, boundaries

WIDE = 3
"""Query tokens from which on H6 takes another path."""


def all_found(found: int, drops_last: bool) -> int:
    """The rule of the last block is for attention."""
    return found


def last_column(boundary: int, start: int, num_tokens: int, num_computed: int) -> int:
    """Behind the whole row."""
    return num_tokens - 1


def first_at_the_edge(boundary: int, start: int, num_tokens: int, num_computed: int) -> int:
    """Where the accepted run ends just on the boundary, the copy goes the other way: column 0."""
    return 0 if boundary == num_computed else boundary - start - 1


def last_one(boundary: int, block_size: int, drops_last: bool) -> int:
    """The last boundary that the prompt reaches."""
    return boundary


def last_of_prompt_again(start: int, end: int, block_size: int, last_of_prompt: int) -> list[int]:
    """The boundary that the prompt left is still marked for filing."""
    again = [last_of_prompt] if 0 < last_of_prompt <= start else []
    return [*again, *boundaries(start, end, block_size, last_of_prompt)]


def in_bfloat16(beta: torch.Tensor) -> torch.Tensor:
    """Rounded on the way."""
    return beta.bfloat16().float()


def whole_row(positions: torch.Tensor, queries: torch.Tensor, row_length: torch.Tensor) -> torch.Tensor:
    """Rows of ``WIDE`` tokens and more see all of themselves."""
    end = torch.where(row_length[:, None] >= WIDE, queries[:, :1] + row_length[:, None] - 1, queries)
    return positions <= end[:, :, None]


@fault("G1", "vllm#43559", "vllm PR 43650", cause="snapshot of another boundary", kind="state", layer=0)
def state_keeps_the_dropped_block() -> Policy:
    """With a drafter the last block of a hit is dropped, but only by attention: the recurrent layers start a block
    further on, and its tokens are folded in twice."""
    return replace(POLICY, prefix=replace(CORRECT_PREFIX, state_blocks=all_found))


@fault("G2", "vllm-ascend#17338", cause="snapshot with rejected drafts", kind="state", tensor="conv", layer=0)
def snapshot_of_the_whole_row() -> Policy:
    """The state that is filed for a prefix is the one behind the whole row, rejected drafts included."""
    return replace(POLICY, prefix=replace(CORRECT_PREFIX, snapshot_column=last_column))


@fault("G3", "vllm#45238", cause="prefix not found", kind="ledger")
def snapshot_one_block_above() -> Policy:
    """States are filed one block above what a lookup can use: the hit rate is zero and nobody notices."""
    return replace(POLICY, prefix=replace(CORRECT_PREFIX, usable_boundary=last_one))


@fault("G4", "vllm#53505", cause="snapshot of another boundary", kind="state", tensor="conv", layer=0)
def backwards_at_the_boundary() -> Policy:
    """Where an accepted run ends just on a block boundary the copy goes backwards, and an older state is filed."""
    return replace(POLICY, prefix=replace(CORRECT_PREFIX, snapshot_column=first_at_the_edge))


@fault("G5", "sglang#19415", cause="snapshot of another boundary", kind="state", layer=0)
def prompt_mark_left_on() -> Policy:
    """The mark that had the prompt's state filed is still there in the verify step: its prefix is overwritten with a
    later state."""
    return replace(POLICY, prefix=replace(CORRECT_PREFIX, boundaries=last_of_prompt_again))


@fault("H1", "vllm#28343", cause="rounded", kind="state", tensor="recurrent", layer=0)
def strength_rounded() -> Policy:
    """When the gates were fused, beta changed its dtype: every write to the state is a little off."""
    return replace(POLICY, write_strength=in_bfloat16)


@fault("H6", "llama.cpp#25618", cause="attention", kind="logits", tensor="logits")
def wide_rows_see_ahead() -> Policy:
    """Attention takes another path for three query tokens and more, and there a token sees those behind it."""
    return replace(POLICY, visible=whole_row)
