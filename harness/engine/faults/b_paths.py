"""Group B: the state of a request that changes its path: speculative, plain, prompt, preempted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.engine.faults import fault
from harness.engine.plan import CORRECT_SCHEDULER, ScheduledRow
from harness.engine.policy import POLICY, Outcome, Policy
from harness.engine.variants import has_drafts, only_with_drafts


def short_prompts_too(row: ScheduledRow, rows: Sequence[ScheduledRow], k: int) -> bool:
    """Whatever is no longer than a verify row is one."""
    return not row.in_prompt or len(row.input_ids) <= k + 1


def behind_the_first_prompt(row: ScheduledRow, rows: Sequence[ScheduledRow], k: int) -> bool:
    """Whoever has computed his prompt decodes; a resumed request has answers to compute again, though."""
    return not row.in_prompt or len(row.request.prompt) <= row.start < row.start + len(row.input_ids) <= (
        row.start + k + 1
    )


def one_token_decodes(row: ScheduledRow) -> bool:
    """A row of one token is a decode, and a decode has a state."""
    return row.start > 0 or row.request.continues or len(row.input_ids) == 1


def not_by_lookup(row: Outcome) -> int:
    """The worker of the prompt-lookup drafter does not say what was accepted."""
    return 1 if row.drafter == "ngram" else max(row.committed, 1)


def all_kept(row: Outcome) -> int:
    """The state behind the whole row, whatever was accepted of it."""
    return row.kept + 1 if row.kept else max(row.committed, 1)


def other_half(turn: int) -> int:
    """Where the row before the last one was logged."""
    return 1 - turn


def memory_stays() -> bool:
    """Slots are neither freed nor zeroed."""
    return True


def as_long_as_neighbours(row: ScheduledRow, others_verify: bool, k: int) -> int:
    """A prompt's last token beside verify rows is made as long as they are."""
    return k if row.in_prompt and len(row.input_ids) == 1 and row.start and others_verify else 0


@fault(
    "B1", "vllm#39273", "vllm#40875", "vllm PR 56531", cause="lost accepted tokens", kind="state",
    tensor="conv", layer=0,
)  # fmt: skip
def zero_draft_row() -> Policy:
    """A row whose drafts were all trimmed leaves the speculative path and starts from slot 0 and offset 0: the tokens
    that the step before accepted are lost for good, while acceptance metrics stay healthy."""
    return replace(POLICY, is_speculative=has_drafts)


@fault("B2", "vllm#30877", cause="accepted count one step old", kind="state", tensor="conv", layer=0)
def stale_accepted_count() -> Policy:
    """A step without any draft leaves the accepted counts of the step before: the next one reads another slot than the
    one that was written."""
    return replace(POLICY, refreshes_accepted=only_with_drafts)


@fault("B3", "sglang#26351", cause="accepted count one step old", kind="state", tensor="conv", layer=0)
def lookup_drafts_never_committed() -> Policy:
    """With the prompt-lookup drafter the step behind verification is missing: whatever is accepted, the state stays the
    one behind the first token."""
    return replace(POLICY, accepted_count=not_by_lookup)


@fault("B4", "vllm#35447", cause="lags", kind="state", tensor="conv", layer=0)
def short_prompt_piece_verifies() -> Policy:
    """A piece of a prompt of k + 1 tokens or fewer takes the speculative path and leaves a state in every slot, and the
    next step reads the first: the rest of the piece is forgotten."""
    return replace(POLICY, is_speculative=short_prompts_too)


@fault("B5", "vllm#47466", cause="lags", kind="state", tensor="conv", layer=0)
def resumed_tail_verifies() -> Policy:
    """A resumed request counts as decoding as soon as its first prompt is computed: the rest of its answer, which has
    to be computed again, is taken for drafts and leaves its states in the wrong slots."""
    return replace(POLICY, is_speculative=behind_the_first_prompt)


@fault("B6", "vllm#55178", cause="filler tokens", kind="state", tensor="conv", layer=0)
def padded_prompt_tail() -> Policy:
    """A prompt's last token is padded to k + 1 to run beside verify rows, and the prefill path keeps the state behind
    the last placeholder."""
    return replace(POLICY, scheduler=replace(CORRECT_SCHEDULER, filler=as_long_as_neighbours))


@fault("B7", "vllm#32118", cause="started from another request", kind="state", tensor="conv", layer=0)
def one_token_prompt_decodes() -> Policy:
    """A new request with a prompt of one token is taken for a decode by its length, so it starts from whatever its slot
    holds."""
    return replace(POLICY, has_initial_state=one_token_decodes)


@fault("B9", "vllm-metal#488", cause="resumed from its old state", kind="state", layer=0)
def preempted_goes_on() -> Policy:
    """A preempted request keeps its slots and they are not cleared: when all its tokens are computed again, they are
    folded into the old state."""
    return replace(POLICY, scheduler=replace(CORRECT_SCHEDULER, keeps_memory=memory_stays))


@fault(
    "B12",
    "rMLX#436",
    cause="not finite",
    kind="state",
    tensor="recurrent",
    layer=0,
    layout="replay",
)
def replays_other_inputs() -> Policy:
    """The accepted tokens are replayed from a buffer that another step filled, so the recurrent layers take in wrong
    inputs, while attention and the convolution are right."""
    return replace(POLICY, replayed_half=other_half)


@fault(
    "B13",
    "tpu-inference#3178",
    "tpu-inference#3189",
    cause="all drafts counted as accepted",
    kind="state",
    tensor="conv",
    layer=0,
)
def only_the_last_state() -> Policy:
    """Only the state behind the whole row is kept: rejected drafts stay in it."""
    return replace(POLICY, accepted_count=all_kept)
