"""A request as the engine sees it while it runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from harness.engine.guided import Guide
from harness.engine.sampler import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedTurn:
    """What a script decides in place of drafter and sampler: the proposals, and the tokens that the step commits."""

    drafts: tuple[int, ...]
    committed: tuple[int, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class EngineRequest:
    """Prompt, answer so far, and where the request stands in the caches. It equals itself alone, however alike another
    is; a step looks for every request among all of them, and comparing fields took most of its time with a thousand.

    ``num_accepted`` is a, ``drafts`` what is left of ``proposed`` after the grammar; both wait for the next step.
    ``num_planned`` are the tokens that will be in cache after the steps that are planned, if every draft is accepted.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: frozenset[int] = frozenset()
    stop_texts: tuple[str, ...] = ()
    guide: Guide | None = None
    turns: deque[ForcedTurn] | None = None
    scores_prompt: bool = (
        False  # the logits of its prompt are wanted, so none of it comes from the prefix cache
    )
    tokens: list[int] = field(default_factory=list)
    prompt_end: int = (
        0  # tokens to feed before the first one is drawn: the prompt, or all of them after a preemption
    )
    num_computed: int = 0
    num_planned: int = 0
    num_accepted: int = 1
    has_journal: bool = False  # layout replay: its last row was logged, so the next step has tokens to replay
    turn: int = 0  # the half of its journal that was written last
    epoch: int = 0  # how often it lost its memory
    continues: bool = False  # its slots hold a state although none of its tokens is in cache
    proposed: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    draft_probs: torch.Tensor | None = None  # [n, vocab], when the drafter samples
    slots: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    generator: torch.Generator = field(default_factory=torch.Generator)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.prompt_end = len(self.prompt)
        self.generator.manual_seed(self.sampling.seed)

    @property
    def in_prompt(self) -> bool:
        """Whether tokens are still to be fed before one can be drawn."""
        return self.num_computed < self.prompt_end

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - len(self.prompt)

    def start_again(self, *, keep_drafts: bool = False) -> None:
        """After a preemption nothing is in cache; what a step in flight finds out is not for this request any more."""
        self.prompt_end = len(self.tokens)
        self.num_computed = self.num_planned = 0
        self.num_accepted = 1
        self.has_journal = False
        self.epoch += 1
        if not keep_drafts:
            self.proposed, self.drafts, self.draft_probs = [], [], None
