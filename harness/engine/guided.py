"""Grammars in the engine: one xgrammar matcher per request, and what a verify step asks of it.

A step looks ahead through drafts that may never be committed: ``validate`` before they are scheduled, ``fill_masks``
for the rows of logits that judge them. Both advance the matcher and give back exactly what they advanced; only
``accept`` stays. Refused tokens never count, or a rollback would take a committed token along (xgrammar#161).

A request may reason first: its answer is free up to and with a marker, and the grammar rules from behind it on. The
marker can lie anywhere in a draft window, and be rejected, so looking ahead never ends the reasoning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

import torch
import xgrammar
from torch import Tensor

from harness.engine.grammars import Compiler
from harness.engine.grammars import Vocabulary as Vocabulary
from harness.engine.guide_decisions import CORRECT_GUIDE as CORRECT_GUIDE
from harness.engine.guide_decisions import GuideDecisions as GuideDecisions
from harness.engine.guide_decisions import grammar_begins
from harness.engine.sampler import PLACEHOLDER
from harness.errors import EngineError, UsageError

UNCONSTRAINED = -1
"""A mask word with every bit set: every token allowed."""


class Grammars:
    """The grammars of an engine: makes the guide of each request, and the masks of a step for all of them."""

    def __init__(self, vocabulary: Vocabulary, decisions: GuideDecisions = CORRECT_GUIDE) -> None:
        self.vocabulary = vocabulary
        self._decisions = decisions
        self._compiler = Compiler(vocabulary)
        self._last = torch.empty(0, vocabulary.words, dtype=torch.int32)  # masks of the step before

    def guide(
        self, kind: str, text: str, reasoning_end: int | None = None, *, make: type[Guide] | None = None
    ) -> Guide:
        """A request's guide, at the beginning of its answer. See ``Compiler.compile`` for the first arguments; the
        grammar rules from behind the token ``reasoning_end`` on, or from the start; ``make``: a class of guides that
        does more than ``Guide``.

        Raises:
            UsageError: the grammar does not compile, or allows nothing.
        """
        compiled = self._compiler.compile(kind, text)
        guide = (make or Guide)(compiled, self.vocabulary, self._decisions, reasoning_end)
        if not guide.allows_anything():
            raise UsageError(f"this {kind} allows no text at all, not even an empty one: {text:.80}")
        return guide

    def masks(
        self, guides: Sequence[Guide | None], drafts: Sequence[Sequence[int]], mixed: bool = False
    ) -> Tensor:
        """The masks of a step, [sum of n + 1, words] int32, in the row order of its packed logits.

        ``guides`` and ``drafts`` are in batch order; a request without a guide is unconstrained. ``mixed``: prompts
        run beside verify rows.

        Raises:
            EngineError: as ``Guide.fill_masks``.
        """
        counts = [len(row) for row in drafts]
        shape = self._decisions.count_mask_rows(counts), self.vocabulary.words
        masks = torch.full(shape, UNCONSTRAINED, dtype=torch.int32)
        for request, (guide, row) in enumerate(zip(guides, drafts, strict=True)):
            if guide is not None:
                guide.fill_masks(row, masks, self._decisions.first_logit_row(request, counts))
        if not self._decisions.refreshes_masks(mixed):
            masks = torch.cat([self._last[: len(masks)], masks[len(self._last) :]])
        self._last = masks
        return masks


class Guide:
    """A request's position in its grammar: a matcher, how many tokens it consumed, and whether it has ended."""

    def __init__(
        self,
        grammar: xgrammar.CompiledGrammar,
        vocabulary: Vocabulary,
        decisions: GuideDecisions = CORRECT_GUIDE,
        reasoning_end: int | None = None,
    ) -> None:
        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._vocabulary = vocabulary
        self._decisions = decisions
        self._marker = reasoning_end  # None from the step on in which it was accepted
        self._num_accepted = 0
        self._held: list[int] = []
        # Kept beside the matcher, as engines do: that is what lets it go stale.
        self._terminated = False

    @property
    def num_accepted(self) -> int:
        """Tokens that the matcher consumed since the beginning, the stop token included, and no reasoning."""
        return self._num_accepted

    @property
    def is_terminated(self) -> bool:
        """Whether the stop token was consumed; nothing is accepted, and nothing masked, from there on."""
        return self._terminated

    def allows_anything(self) -> bool:
        """Whether any token, the stop token included, may come first under the grammar."""
        mask = torch.zeros(1, self._vocabulary.words, dtype=torch.int32)
        self._fill(mask, 0)
        return bool(mask.any())

    def accept(
        self, committed: Sequence[int], drafts: Sequence[int] = (), prompt: Sequence[int] = ()
    ) -> bool:
        """Advances for good over what a row committed, up to the first refusal; True if there was none.

        ``drafts`` and ``prompt`` are what the row fed besides; they change nothing.
        """
        tokens = self._decisions.tokens_to_accept(committed, drafts, prompt)
        begins = self._begins(tokens, self._decisions.answer_begins)
        switches = self._marker in tokens
        self._marker = None if switches else self._marker
        read = [] if begins is None else [*tokens[begins:]]
        due = [*self._held, *read]
        held = self._decisions.held_back(len(read), switches)
        self._held = due[len(due) - held :]
        return all(self._step(token) for token in due[: len(due) - held])

    def until_end(self, tokens: Sequence[int]) -> int | None:
        """How many of these next tokens the answer holds if a stop token ends its grammar; ``None``: none does."""
        begins = self._begins(tokens, grammar_begins)
        places = range(len(tokens) if begins is None else begins, len(tokens))
        return next((i + 1 for i in places if tokens[i] in self._vocabulary.stop_ids), None)

    def rollback(self, count: int) -> None:
        """Gives back the last ``count`` tokens of the matcher.

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
        """Length of the longest prefix of ``drafts`` that may be committed: any reasoning, then what the grammar
        allows; never a placeholder. Leaves the guide as it was."""
        known = _known(drafts)
        begins = self._begins(known, self._decisions.drafts_begin)
        if begins is None:
            return len(known)
        advanced = sum(1 for _ in takewhile(self._step, known[begins:]))
        self._give_back(advanced, len(known) - begins)
        return begins + advanced

    def fill_masks(self, drafts: Sequence[int], masks: Tensor, first_row: int = 0) -> None:
        """Fills rows ``first_row`` to ``first_row + n`` of ``masks``, [rows, words] int32 on the CPU: one for each
        draft, one for the bonus token. Leaves the guide as it was.

        Rows of the reasoning, up to the marker's own, and rows behind the stop token are unconstrained. A placeholder
        ends the advance: see ``drafts_seen``.

        Raises:
            EngineError: the rows do not fit, or the grammar refuses a draft: it was not validated before.
        """
        if not 0 <= first_row <= len(masks) - len(drafts) - 1:
            raise EngineError(f"{len(drafts) + 1} mask rows from {first_row} do not fit into {len(masks)}")
        known = _known(drafts)
        along = self._masks_along(known)
        for row in range(len(drafts) + 1):
            seen = self._decisions.drafts_seen(row, len(known))
            masks[first_row + row] = UNCONSTRAINED if seen is None else along[seen]

    def _masks_along(self, drafts: Sequence[int]) -> Tensor:
        """[n + 1, words]: the mask after each number of drafts."""
        masks = torch.full((len(drafts) + 1, self._vocabulary.words), UNCONSTRAINED, dtype=torch.int32)
        begins = self._begins(drafts, self._decisions.drafts_begin)
        if begins is None:
            return masks
        advanced = 0
        try:
            for row in range(begins, len(drafts) + 1):
                self._fill(masks, row)
                if row < len(drafts) and not self._terminated:
                    if not self._step(drafts[row]):
                        raise EngineError(f"the grammar refuses draft {row} of {list(drafts)}")
                    advanced += 1
        finally:
            self._give_back(advanced, len(drafts) - begins)
        return masks

    def _begins(
        self, tokens: Sequence[int], decide: Callable[[Sequence[int], int], int | None]
    ) -> int | None:
        """Where in the next tokens the grammar begins to rule; ``None``: not among them."""
        return 0 if self._marker is None else decide(tokens, self._marker)

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
        if self._decisions.is_masked(self._terminated):
            self._matcher.fill_next_token_bitmask(masks, row)


def _known(drafts: Sequence[int]) -> list[int]:
    """The drafts before the first placeholder."""
    return list(takewhile(lambda draft: draft != PLACEHOLDER, drafts))


def apply_masks(logits: Tensor, masks: Tensor) -> Tensor:
    """[R, vocab] logits and [R, words] masks -> logits with forbidden tokens at -inf.

    Columns beyond the masks are forbidden too, except in unconstrained rows, which stay as they are: company in a
    batch must not change a request. (xgrammar's own function leaves such columns open in every row.)

    Raises:
        EngineError: not one mask for each row of logits.
    """
    if len(masks) != len(logits):
        raise EngineError(
            f"saw {len(masks)} mask rows, expected one for each of {len(logits)} rows of logits"
        )
    masks = masks.to(logits.device)
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (masks[:, :, None] >> bits & 1).bool().flatten(1)  # [R, 32 * words]
    allowed = torch.nn.functional.pad(allowed, (0, logits.shape[1] - allowed.shape[1]))  # a negative pad cuts
    unconstrained = (masks == UNCONSTRAINED).all(dim=1, keepdim=True)
    return logits.where(allowed | unconstrained, float("-inf"))
