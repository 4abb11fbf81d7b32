"""Grammars in the engine: one xgrammar matcher per request, and what a verify step asks of it.

A step looks ahead through drafts that may never be committed: ``validate`` before they are scheduled, ``fill_masks``
for the rows of logits that judge them. Both advance the matcher and give back exactly what they advanced; only
``accept`` stays. Refused tokens never count, or a rollback would take a committed token along (xgrammar#161).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
import xgrammar
from torch import Tensor

from harness.engine.grammars import Compiler
from harness.engine.grammars import Vocabulary as Vocabulary
from harness.engine.sampler import PLACEHOLDER
from harness.errors import EngineError, UsageError

UNCONSTRAINED = -1
"""A mask word with every bit set: every token allowed."""


# Decisions: where the known bugs live.


def tokens_to_roll_back(advanced: int, proposed: int) -> int:
    """After a look-ahead that advanced over ``advanced`` of ``proposed`` drafts: how many tokens to give back."""
    return advanced


def terminated_after_rollback(before: bool, matcher: bool) -> bool:
    """Whether the guide is terminated after a rollback; ``before`` is its flag before, ``matcher`` what xgrammar
    says now. A stop token among the drafts must not stay in force (vllm#25905)."""
    return matcher


def first_logit_row(request: int, drafts: Sequence[int]) -> int:
    """First row of a request's block among the packed logits, from the number of drafts of every request in batch
    order: each request owns one row per draft and one more."""
    return sum(drafts[:request]) + request


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideDecisions:
    """Every choice of this module that can be wrong; a fault is ``dataclasses.replace(CORRECT_GUIDE, ...)``."""

    tokens_to_roll_back: Callable[[int, int], int] = tokens_to_roll_back
    terminated_after_rollback: Callable[[bool, bool], bool] = terminated_after_rollback
    first_logit_row: Callable[[int, Sequence[int]], int] = first_logit_row


CORRECT_GUIDE = GuideDecisions()


class Grammars:
    """The grammars of an engine: makes the guide of each request, and the masks of a step for all of them."""

    def __init__(self, vocabulary: Vocabulary, decisions: GuideDecisions = CORRECT_GUIDE) -> None:
        self._vocabulary = vocabulary
        self._decisions = decisions
        self._compiler = Compiler(vocabulary)

    def guide(self, kind: str, text: str) -> Guide:
        """A request's guide, at the beginning of its grammar. See ``Compiler.compile`` for the arguments.

        Raises:
            UsageError: the grammar does not compile, or allows nothing.
        """
        guide = Guide(self._compiler.compile(kind, text), self._vocabulary, self._decisions)
        if not guide.allows_anything():
            raise UsageError(f"this {kind} allows no text at all, not even an empty one: {text:.80}")
        return guide

    def masks(self, guides: Sequence[Guide | None], drafts: Sequence[Sequence[int]]) -> Tensor:
        """The masks of a step, [sum of n + 1, words] int32, in the row order of its packed logits.

        ``guides`` and ``drafts`` are in batch order; a request without a guide is unconstrained.

        Raises:
            EngineError: as ``Guide.fill_masks``.
        """
        counts = [len(row) for row in drafts]
        shape = sum(counts) + len(counts), self._vocabulary.words
        masks = torch.full(shape, UNCONSTRAINED, dtype=torch.int32)
        for request, (guide, row) in enumerate(zip(guides, drafts, strict=True)):
            if guide is not None:
                guide.fill_masks(row, masks, self._decisions.first_logit_row(request, counts))
        return masks


class Guide:
    """A request's position in its grammar: a matcher, how many tokens it consumed, and whether it has ended."""

    def __init__(
        self,
        grammar: xgrammar.CompiledGrammar,
        vocabulary: Vocabulary,
        decisions: GuideDecisions = CORRECT_GUIDE,
    ) -> None:
        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._vocabulary = vocabulary
        self._decisions = decisions
        self._num_accepted = 0
        # Kept beside the matcher, as engines do: that is what lets it go stale.
        self._terminated = False

    @property
    def num_accepted(self) -> int:
        """Tokens consumed since the beginning, the stop token included."""
        return self._num_accepted

    @property
    def is_terminated(self) -> bool:
        """Whether the stop token was consumed; nothing is accepted, and nothing masked, from there on."""
        return self._terminated

    def allows_anything(self) -> bool:
        """Whether any token, the stop token included, may come next."""
        mask = torch.zeros(1, self._vocabulary.words, dtype=torch.int32)
        self._fill(mask, 0)
        return bool(mask.any())

    def accept(self, tokens: Sequence[int]) -> bool:
        """Advances for good, up to the first refusal; True if there was none."""
        return all(self._step(token) for token in tokens)

    def rollback(self, count: int) -> None:
        """Gives back the last ``count`` tokens.

        Raises:
            EngineError: not between 0 and ``num_accepted``; nothing has changed then.
        """
        if not 0 <= count <= self._num_accepted:  # xgrammar takes a negative count without a word
            raise EngineError(f"cannot roll the grammar back by {count} of {self._num_accepted} tokens")
        self._matcher.rollback(count)
        self._num_accepted -= count
        self._terminated = self._decisions.terminated_after_rollback(
            self._terminated, self._matcher.is_terminated()
        )

    def validate(self, drafts: Sequence[int]) -> int:
        """Length of the longest prefix of ``drafts`` that the grammar allows. Leaves the guide as it was."""
        advanced = sum(1 for _ in takewhile(self._step, drafts))
        self._give_back(advanced, len(drafts))
        return advanced

    def fill_masks(self, drafts: Sequence[int], masks: Tensor, first_row: int = 0) -> None:
        """Fills rows ``first_row`` to ``first_row + n`` of ``masks``, [rows, words] int32 on the CPU: one for each
        draft, one for the bonus token. Leaves the guide as it was.

        A row behind the stop token is unconstrained. A placeholder ends the advance: the rows behind it repeat its
        own, so that none is left unconstrained (vllm#29821).

        Raises:
            EngineError: the rows do not fit, or the grammar refuses a draft: it was not validated before.
        """
        if not 0 <= first_row <= len(masks) - len(drafts) - 1:
            raise EngineError(f"{len(drafts) + 1} mask rows from {first_row} do not fit into {len(masks)}")
        known = list(takewhile(lambda draft: draft != PLACEHOLDER, drafts))
        advanced = 0
        try:
            for row in range(len(drafts) + 1):
                self._fill(masks, first_row + row)
                if row < len(known) and not self._terminated:
                    if not self._step(known[row]):
                        raise EngineError(f"the grammar refuses draft {row} of {list(drafts)}")
                    advanced += 1
        finally:
            self._give_back(advanced, len(drafts))

    def _step(self, token: int) -> bool:
        # xgrammar would refuse the first three as well, with a warning on the terminal for each.
        accepted = (
            not self._terminated
            and 0 <= token < self._vocabulary.size
            and token not in self._vocabulary.silent_ids
            and self._matcher.accept_token(token)
        )
        if accepted:
            self._num_accepted += 1
            self._terminated = self._matcher.is_terminated()
        return accepted

    def _give_back(self, advanced: int, proposed: int) -> None:
        self.rollback(self._decisions.tokens_to_roll_back(advanced, proposed))

    def _fill(self, masks: Tensor, row: int) -> None:
        if self._terminated:  # xgrammar raises on a terminated matcher
            masks[row] = UNCONSTRAINED
        else:
            self._matcher.fill_next_token_bitmask(masks, row)


def apply_masks(logits: Tensor, masks: Tensor) -> Tensor:
    """[R, vocab] logits and [R, words] masks -> logits with forbidden tokens at -inf.

    Columns beyond the masks are forbidden too, except in unconstrained rows, which stay as they are: company in a
    batch must not change a request. (xgrammar's own function leaves such columns open in every row.)
    """
    masks = masks.to(logits.device)
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (masks[:, :, None] >> bits & 1).bool().flatten(1)  # [R, 32 * words]
    allowed = torch.nn.functional.pad(allowed, (0, logits.shape[1] - allowed.shape[1]))  # a negative pad cuts
    unconstrained = (masks == UNCONSTRAINED).all(dim=1, keepdim=True)
    return logits.where(allowed | unconstrained, float("-inf"))
