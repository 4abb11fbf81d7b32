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
from importlib import import_module
from pkgutil import iter_modules

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
    layout: str | None = None  # the only one in which it can act

    @property
    def group(self) -> str:
        """The letter of its group."""
        return self.row[0]


FAULTS: dict[str, Fault] = {}
"""Faults by name, as far as the modules of this package have been imported; ``faults`` gives all of them."""


def faults() -> dict[str, Fault]:
    """All faults by name, in the order of the catalogue."""
    for module in iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    return dict(sorted(FAULTS.items(), key=lambda item: (item[1].group, int(item[1].row[1:]))))


def fault(
    row: str,
    *refs: str,
    cause: str,
    kind: str,
    tensor: str | None = None,
    layer: int | None = None,
    layout: str | None = None,
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
            layout=layout,
        )
        return build

    return declare
