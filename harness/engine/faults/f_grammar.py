"""Group F: grammars and reasoning in a draft window; also placeholders in the sampler, and prompts in a matcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from harness.engine.faults import fault
from harness.engine.guide_decisions import CORRECT_GUIDE
from harness.engine.policy import POLICY, Policy
from harness.engine.sampler import CORRECT_SAMPLER, PLACEHOLDER


def never_begins(tokens: Sequence[int], marker: int) -> int | None:
    """A step that begins inside the reasoning is taken to stay there."""
    return None


def begins_at_once(tokens: Sequence[int], marker: int) -> int | None:
    """The reasoning is taken for a part of the answer."""
    return 0


def all_wait(tokens: int, switches: bool) -> int:
    """Whatever a step commits waits for the next one."""
    return tokens


def wait_at_the_switch(tokens: int, switches: bool) -> int:
    """What lies behind the marker in its own step waits for the next one."""
    return tokens if switches else 0


def flag_before(before: bool, matcher: bool) -> bool:
    """The flag stays as the look-ahead left it."""
    return before


def refused_one_too(advanced: int, proposed: int) -> int:
    """A draft that was refused is given back as well."""
    return min(advanced + 1, proposed)


def always_asked(terminated: bool) -> bool:
    """Ended or not, the matcher is asked."""
    return True


def first_row(row: int, known: int) -> int | None:
    """Every row has the mask from before the drafts."""
    return 0


def free_behind(row: int, known: int) -> int | None:
    """Behind the first placeholder there is no mask."""
    return row if row <= known else None


def a_draft_each(drafts: Sequence[int]) -> int:
    """Every request is taken to have one draft at least."""
    return len(drafts) + max(sum(drafts), len(drafts))


def drafts_too(committed: Sequence[int], drafts: Sequence[int], prompt: Sequence[int]) -> Sequence[int]:
    """All drafts of the row, rejected ones included, and the last token."""
    return [*(draft for draft in drafts if draft != PLACEHOLDER), *committed[-1:]]


def last_of_the_prompt(
    committed: Sequence[int], drafts: Sequence[int], prompt: Sequence[int]
) -> Sequence[int]:
    """Where a piece of a prompt yields no token, its last one."""
    return committed or prompt[-1:]


def unless_mixed(mixed: bool) -> bool:
    """With prompts in the batch, the masks of the step before are left."""
    return not mixed


def anything(drafts: Tensor) -> Tensor:
    """Whatever stands in a draft's place is a draft."""
    return torch.ones_like(drafts, dtype=torch.bool)


@fault("F1", "vllm#44006", "vllm#44297", cause="unconstrained behind the reasoning", kind="grammar")
def free_behind_the_marker() -> Policy:
    """Whether a request is masked is asked once a step: where the reasoning ends inside the drafts, the rows behind the
    marker are free, drafts behind it are not validated, and tokens that no grammar allows are committed."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, drafts_begin=never_begins))


@fault("F1", "vllm#46118", "vllm#44993", cause="matcher ahead", kind="ledger", tensor="matcher history")
def reasoning_fed_to_the_grammar() -> Policy:
    """The matcher is advanced with the tokens of the reasoning as well, so it reads what it was never meant to, or
    refuses the marker and loses what was committed behind it: "failed to advance FSM"."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, answer_begins=begins_at_once))


@fault("F1", "vllm#14727", cause="constrained too early", kind="grammar", tensor="mask")
def constrained_while_reasoning() -> Policy:
    """The grammar rules from the first token on, so a reasoning model cannot reason."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, drafts_begin=begins_at_once))


@fault("F2", "vllm#29379", cause="matcher behind", kind="ledger", tensor="matcher history")
def grammar_one_step_behind() -> Policy:
    """With asynchronous scheduling the matcher is advanced when the next results come in: masks and drafts are those of
    the step before."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, held_back=all_wait))


@fault("F4", "vllm#42452", cause="matcher behind", kind="ledger", tensor="matcher history")
def advance_deferred_at_the_switch() -> Policy:
    """In the step in which the grammar begins to rule it is not advanced: what was committed behind the marker is read
    a step late."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, held_back=wait_at_the_switch))


@fault("F5", "vllm#25905", cause="unconstrained mask", kind="grammar", tensor="mask")
def end_stays_in_force() -> Policy:
    """A draft that ended the grammar is rolled back, but the flag that says so stays: the request is taken for over, so
    nothing is masked, and the matcher reads nothing more."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, terminated_after_rollback=flag_before))


@fault("F7", "xgrammar#161", cause="matcher behind", kind="ledger", tensor="matcher history")
def refused_draft_rolled_back() -> Policy:
    """A draft that the matcher refused is counted among those to give back, so a committed token goes with it."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, tokens_to_roll_back=refused_one_too))


@fault("F8", "openvino.genai#4081", cause="matcher asked after its end", kind="crash")
def mask_asked_behind_the_end() -> Policy:
    """The end token is accepted in the middle of a window, and the row behind it asks an ended matcher for a mask."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, is_masked=always_asked))


@fault("F9", "TensorRT-LLM#7878", cause="mask of the first row repeated", kind="grammar", tensor="mask")
def first_mask_repeated() -> Policy:
    """The mask is not made anew for each draft of a window: all rows have that of the first, and what the grammar
    allows there is taken for legal everywhere."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, drafts_seen=first_row))


@fault("F10", "TensorRT-LLM#15022", "vllm#50924", cause="mask rows miscounted", kind="crash")
def masks_for_drafts_that_are_none() -> Policy:
    """The number of drafts falls to 0, and the masks are still counted as if each request had some: "bitmask must have
    the same batch size as logits"."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, count_mask_rows=a_draft_each))


@fault("F11", "TensorRT-LLM#19296", cause="matcher ahead", kind="ledger", tensor="matcher history")
def rejected_drafts_stay_in_the_matcher() -> Policy:
    """The matcher was advanced over the drafts to make their masks, and is not rolled back where they are rejected."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, tokens_to_accept=drafts_too))


@fault("F13", "tokenspeed#205", cause="stale mask", kind="grammar", tensor="mask")
def masks_of_the_step_before() -> Policy:
    """With prompts beside verify rows the candidates are not refreshed: the masks are those of the step before."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, refreshes_masks=unless_mixed))


@fault(
    "F14",
    "vllm#29821",
    "vllm#54437",
    cause="unconstrained behind a placeholder",
    kind="grammar",
    tensor="mask",
)
def free_behind_a_placeholder() -> Policy:
    """A refused draft is a placeholder, and all rows behind the first are free, the bonus token's included."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, drafts_seen=free_behind))


@fault("E6", "vllm#46533", cause="token outside the vocabulary", kind="ledger", tensor="committed")
def placeholder_accepted() -> Policy:
    """Rejection sampling does not know placeholders: it looks up a probability in their place, and commits -1."""
    return replace(POLICY, sampler=replace(CORRECT_SAMPLER, is_draft=anything))


@fault("E11", "vllm#29821", cause="matcher ahead", kind="ledger", tensor="matcher history")
def partial_prompt_in_the_matcher() -> Policy:
    """A piece of a prompt that does not end it yields no token, but its row advances the matcher all the same."""
    return replace(POLICY, guide=replace(CORRECT_GUIDE, tokens_to_accept=last_of_the_prompt))
