"""Public bugs as named faults: each is the correct policy with one decision replaced.

    @fault("B1", "vllm#39273", "vllm#40875", cause="lost accepted tokens", kind="state", tensor="conv", layer=0)
    def zero_draft_row() -> Policy:
        '''What the report says, in our words.'''
        return replace(POLICY, is_speculative=has_drafts)

``cause``, ``kind``, ``tensor`` and ``layer`` are declared beforehand: what the checks should call it, and where they
should find it first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.engine.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row of the catalogue, as something the engine can be made to do."""

    name: str
    row: str  # of the catalogue: a letter for the group, and a number
    refs: tuple[str, ...]  # public reports: "vllm#39273"
    story: str
    policy: Policy
    cause: str  # the diagnosis that it should get
    kind: str  # of the first divergence
    tensor: str | None = None
    layer: int | None = None

    @property
    def group(self) -> str:
        """The letter of its group."""
        return self.row[0]


FAULTS: dict[str, Fault] = {}
"""All of them by name, in the order of the catalogue; filled by the modules of this package (``load``)."""


def fault(
    row: str, *refs: str, cause: str, kind: str, tensor: str | None = None, layer: int | None = None
) -> Callable[[Callable[[], Policy]], Callable[[], Policy]]:
    """Declare a fault; the decorated function makes its policy, and its docstring tells the story."""

    def declare(build: Callable[[], Policy]) -> Callable[[], Policy]:
        name = build.__name__.replace("_", "-")
        story = " ".join((build.__doc__ or "").split())
        FAULTS[name] = Fault(
            name=name,
            row=row,
            refs=refs,
            story=story,
            policy=replace(build(), name=name, story=story),
            cause=cause,
            kind=kind,
            tensor=tensor,
            layer=layer,
        )
        return build

    return declare
