"""What a guide has to decide, each as a small named function: where the known bugs of grammars live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


def tokens_to_roll_back(advanced: int, proposed: int) -> int:
    """After a look-ahead that advanced over ``advanced`` of ``proposed`` drafts: how many tokens to give back."""
    return advanced


def terminated_after_rollback(before: bool, matcher: bool) -> bool:
    """Whether the guide is terminated after a rollback; ``before`` is its flag before, ``matcher`` what xgrammar
    says now. A stop token among the drafts must not stay in force (vllm#25905)."""
    return matcher


def is_masked(terminated: bool) -> bool:
    """Whether the matcher is asked for a mask; a terminated one has none to give (openvino.genai#4081)."""
    return not terminated


def first_logit_row(request: int, drafts: Sequence[int]) -> int:
    """First row of a request's block among the packed logits, from the number of drafts of every request in batch
    order: each request owns one row per draft and one more."""
    return sum(drafts[:request]) + request


def count_mask_rows(drafts: Sequence[int]) -> int:
    """Rows of a step's masks, from the number of drafts of every request: as many as its logits have."""
    return sum(drafts) + len(drafts)


def refreshes_masks(mixed: bool) -> bool:
    """Whether a step's masks are filled anew; ``mixed``: prompts run beside verify rows (tokenspeed#205)."""
    return True


def drafts_seen(row: int, known: int) -> int | None:
    """How many of a request's drafts its mask ``row`` has read; ``None``: no mask. ``known`` drafts come before the
    first placeholder, and the rows behind it repeat its own, so that none is left unconstrained (vllm#29821)."""
    return min(row, known)


def grammar_begins(tokens: Sequence[int], marker: int) -> int | None:
    """Where in tokens that continue a reasoning the grammar begins to rule: behind the marker; ``None``: it is not
    among them (vllm#44006)."""
    return tokens.index(marker) + 1 if marker in tokens else None


def tokens_to_accept(committed: Sequence[int], drafts: Sequence[int], prompt: Sequence[int]) -> Sequence[int]:
    """What the matcher reads of a row for good, from the tokens that it committed, its drafts, and its piece of a
    prompt: of rejected drafts and of the prompt, nothing (TensorRT-LLM#19296, vllm#29821)."""
    return committed


def held_back(tokens: int, switches: bool) -> int:
    """How many of these last tokens wait for the next step before the matcher reads them; ``switches``: the reasoning
    has ended among them (vllm#42452)."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideDecisions:
    """Every choice of a guide that can be wrong; a fault is ``dataclasses.replace(CORRECT_GUIDE, ...)``.

    ``drafts_begin`` and ``answer_begins`` are one rule, applied when looking ahead and when accepting.
    """

    tokens_to_roll_back: Callable[[int, int], int] = tokens_to_roll_back
    terminated_after_rollback: Callable[[bool, bool], bool] = terminated_after_rollback
    is_masked: Callable[[bool], bool] = is_masked
    first_logit_row: Callable[[int, Sequence[int]], int] = first_logit_row
    count_mask_rows: Callable[[Sequence[int]], int] = count_mask_rows
    refreshes_masks: Callable[[bool], bool] = refreshes_masks
    drafts_seen: Callable[[int, int], int | None] = drafts_seen
    drafts_begin: Callable[[Sequence[int], int], int | None] = grammar_begins
    answer_begins: Callable[[Sequence[int], int], int | None] = grammar_begins
    tokens_to_accept: Callable[[Sequence[int], Sequence[int], Sequence[int]], Sequence[int]] = (
        tokens_to_accept
    )
    held_back: Callable[[int, bool], int] = held_back


CORRECT_GUIDE = GuideDecisions()
