"""Group A: verify rows of unequal length, and the geometry of the tensors that index them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import triton
import triton.language as tl  # noqa: F401  Triton's interpreter asks every module with jit functions for it

from harness.engine.faults import fault
from harness.engine.kernels.decisions import CORRECT, Decision
from harness.engine.policy import POLICY, Policy
from harness.engine.variants import rectangular_rows, request_sized, uniform_rows, uniform_spec_tokens

LIMIT = 4
"""Tokens that the kernel of A7 was made for."""


def whole_rows_only(captured: int, rows: int, num_slots: int, k: int) -> None:
    """A captured size holds whole rows of k + 1 tokens."""
    assert captured % (k + 1) == 0, f"{captured} tokens are no whole rows of {k + 1}"


def as_if_contiguous(table: torch.Tensor) -> torch.Tensor:
    """The first R numbers of the table, as a kernel finds them that ignores the stride of its view."""
    return table.flatten()[: table.shape[0]]


def within_the_row(num_accepted: Sequence[int], lengths: Sequence[int]) -> None:
    """What the step before accepted fits into this step's row."""
    for i, (accepted, length) in enumerate(zip(num_accepted, lengths, strict=True)):
        if accepted > length:
            raise ValueError(f"num_accepted_tokens[{i}]={accepted} exceeds varlen segment length {length}")


def first_rows(table: torch.Tensor, is_spec: torch.Tensor) -> torch.Tensor:
    """The first S rows of the table, whichever rows are the speculative ones."""
    return table[: int(is_spec.sum())]


def one_short(max_num_seqs: int, k: int, max_capture: int) -> int:
    """Room for every token but the last."""
    return max(max_capture - 1, 0)


def most_of_it(length: torch.Tensor) -> torch.Tensor:
    """At most ``LIMIT`` tokens of a row."""
    return length.clamp(max=LIMIT)


@triton.jit
def _most_of_it(length):
    return min(length, 4)


@fault("A1", "vllm#24881", "vllm#24730", cause="tokens of another row", kind="state", tensor="conv", layer=0)
def rectangular_view() -> Policy:
    """The convolution takes its packed rows for a rectangle: unequal rows make the view invalid and kill the engine,
    or, where the token count happens to divide, mix the tokens of two requests without a word (A2)."""
    return replace(POLICY, conv_rows=rectangular_rows)


@fault("A1", "vllm#24730", cause="shape mismatch", kind="crash")
def spec_tokens_by_product() -> Policy:
    """Tokens of speculative rows are taken to be rows times k + 1, limited by a mask over prompts too: beside a
    prompt the step has more tokens than there are."""
    return replace(POLICY, count_spec_tokens=uniform_spec_tokens)


@fault("A1", "vllm#24730", cause="unwritten memory", kind="state", tensor="conv", layer=0)
def rows_by_full_length() -> Policy:
    """A captured batch is given as many rows as fit if each were k + 1 long: with short rows the last requests are cut
    off and never computed."""
    return replace(POLICY, captured_rows=uniform_rows)


@fault("A3", "vllm#24660", "vllm#24667", cause="shape mismatch", kind="crash")
def token_buffer_by_requests() -> Policy:
    """A persistent tensor that is indexed by token has an entry for each request: with several tokens a row it is
    overrun."""
    return replace(POLICY, token_buffer=request_sized)


@fault("A4", "vllm#25647", "vllm#25743", cause="assertion", kind="crash")
def capture_of_whole_rows() -> Policy:
    """A captured size that is no multiple of k + 1 fails an assertion: k = 2 dies where k = 3 does not."""
    return replace(POLICY, check_capture=whole_rows_only)


@fault(
    "A5", "vllm#25743", cause="unwritten memory", kind="state", tensor="conv", layer=0, layout="slots"
)  # fmt: skip
def stride_ignored() -> Policy:
    """The slots of a prompt batch are a column of the [R, k + 1] table, and the kernel ignores the stride: the second
    prompt writes its state into the first one's slots. A table of one column has no stride."""
    return replace(POLICY, prefill_indices=as_if_contiguous)


@fault("A6", "vllm-ascend#9956", "vllm-ascend#10372", cause="accepted count against this row", kind="crash")
def accepted_count_against_this_row() -> Policy:
    """The count of the step before is held against the length of this step's row: four accepted, then a trim to one
    draft, and the kernel refuses a legal batch."""
    return replace(POLICY, check_accepted=within_the_row)


@fault("A7", "vllm#37035", cause="unwritten memory", kind="state", tensor="recurrent", layer=0)
def four_tokens_at_most() -> Policy:
    """The verify kernel was made for four tokens a row: with k of four and more, the rest of a row is not folded in."""
    return replace(
        POLICY, kernels=replace(CORRECT, row_length=Decision(naive=most_of_it, triton=_most_of_it))
    )


@fault("A8", "vllm#52792", cause="lags", kind="state", tensor="conv", layer=0)
def table_of_the_first_rows() -> Policy:
    """In a mixed batch the slot table of all rows is handed to the verify kernel as it stands: a speculative row behind
    a prompt gets the prompt's slots."""
    return replace(POLICY, spec_table=first_rows)


@fault("A9", "vllm#56375", cause="shape mismatch", kind="crash")
def buffer_one_short() -> Policy:
    """A buffer has one entry less than the largest batch has tokens; only a batch of just that size shows it."""
    return replace(POLICY, token_buffer=one_short)
