"""One request of a load, before anybody decides how it travels."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import UsageError


class GuideKind(enum.Enum):
    """How an answer is constrained."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """A constraint. ``rule`` is a schema (mapping), a regular expression or EBNF grammar (text), or choices (tuple).

    ``family`` groups guides in reports (a JSONSchemaBench group, "bundled"); ``task`` says in words what to write.
    """

    name: str
    kind: GuideKind
    rule: Any
    family: str = ""
    task: str = ""

    def __post_init__(self) -> None:
        right = {
            GuideKind.JSON_SCHEMA: isinstance(self.rule, (Mapping, bool)),
            GuideKind.CHOICE: isinstance(self.rule, tuple)
            and bool(self.rule)
            and all(isinstance(choice, str) for choice in self.rule),
            GuideKind.REGEX: isinstance(self.rule, str),
            GuideKind.GRAMMAR: isinstance(self.rule, str),
        }
        if not right[self.kind]:
            wanted = {GuideKind.JSON_SCHEMA: "an object", GuideKind.CHOICE: "a non-empty tuple of texts"}
            raise UsageError(
                f"guide {self.name}: saw {type(self.rule).__name__}, "
                f"expected {wanted.get(self.kind, 'a text')} for {self.kind.value}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """``prompt`` is a text, or token ids (exact length; only a completions endpoint takes them).

    ``id`` is the same for the same prompt in every run of the same data and seed: runs are paired by it.
    ``prompt_tokens``: its length where it is known; ``at``: seconds from the run's beginning, where a trace says when.
    ``ignore_eos`` may not go with a guide: the grammar ends and free text would follow (vllm#49173).
    """

    id: str
    prompt: str | tuple[int, ...]
    max_tokens: int
    prompt_tokens: int | None = None
    guide: Guide | None = None
    ignore_eos: bool = False
    at: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"request {self.id}: saw max_tokens {self.max_tokens}, expected 1 or more")
        if self.guide is not None and self.ignore_eos:
            raise UsageError(
                f"request {self.id}: saw ignore_eos with guide {self.guide.name}, expected one of them",
                hint="a guided answer ends where its grammar ends",
            )
