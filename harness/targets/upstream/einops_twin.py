"""``einops.rearrange`` for the patterns that releases use, where einops is not installed.

Axes may be split and joined by parentheses, moved, and new ones of size 1 added; ``...`` stands for leading axes.
"""

from __future__ import annotations

import math
import re
import sys
from importlib.util import find_spec
from types import ModuleType

import torch


def rearrange(x: torch.Tensor, pattern: str, **sizes: int) -> torch.Tensor:
    """Like ``einops.rearrange``; ValueError for a pattern that does not fit ``x``."""
    source, _, target = pattern.partition("->")
    before, after = _axes(source), _axes(target)
    if ["..."] in before:
        free = x.dim() - len(before) + 1
        fill = [[f"...{i}"] for i in range(free)]
        at = before.index(["..."])
        before[at : at + 1] = fill
        at = after.index(["..."])
        after[at : at + 1] = fill
    if len(before) != x.dim():
        raise ValueError(f"pattern {pattern!r} has {len(before)} axes, the tensor has {x.dim()}")
    for group, size in zip(before, x.shape, strict=True):
        unknown = [name for name in group if name not in sizes]
        known = math.prod(sizes[name] for name in group if name in sizes)
        if len(unknown) > 1 or size % known or (not unknown and size != known):
            raise ValueError(f"pattern {pattern!r} does not fit the shape {tuple(x.shape)} with {sizes}")
        sizes |= dict.fromkeys(unknown, size // known)
    flat = [name for group in before for name in group]
    order = [name for group in after for name in group if name != "1"]
    moved = x.reshape([sizes[name] for name in flat]).permute([flat.index(name) for name in order])
    return moved.reshape([math.prod(sizes[name] for name in group if name != "1") for group in after])


def install() -> bool:
    """Make ``import einops`` work; whether this stand-in was needed."""
    if "einops" in sys.modules or find_spec("einops") is not None:
        return False
    module = ModuleType("einops")
    module.rearrange = rearrange  # type: ignore[attr-defined]
    sys.modules["einops"] = module
    return True


def _axes(side: str) -> list[list[str]]:
    """``l (h d)`` -> ``[["l"], ["h", "d"]]``."""
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", side)]
