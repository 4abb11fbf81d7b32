"""What a parent asks its child process for. No heavy import: both sides read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A suspect and the engine around it; without a ``project``, ``suspect`` is the user's ``module:function``."""

    title: str
    suspect: str
    model: str  # folder
    device: str
    state_dtype: str
    project: str | None = None
    version: str | None = None
    root: str = ""
