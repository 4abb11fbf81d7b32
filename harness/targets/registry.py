"""Targets by name: ``embedded`` is the engine in this package, under one of its variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import TargetError
from harness.targets.protocols import EngineTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """What every target is opened with."""

    folder: Path  # of the model
    kernels: Literal["auto", "triton", "naive"] = "auto"
    device: str = "cpu"
    state_dtype: str = "float32"


def open_target(name: str, options: TargetOptions) -> Callable[[str], EngineTarget]:
    """A function from a variant's name to the target under it; TargetError lists what exists."""
    if name == "embedded":
        _has_device(options.device)
        from harness.targets.embedded import under_each_variant

        return under_each_variant(
            options.folder, kernels=options.kernels, device=options.device, state_dtype=options.state_dtype
        )
    raise TargetError(f"saw target {name!r}, expected one of: embedded", hint="specharness repro --help")


def _has_device(device: str) -> None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise TargetError(
            "saw device cuda, but this torch finds no GPU", hint="specharness doctor, or pass --device cpu"
        )
