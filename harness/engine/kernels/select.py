"""Which kernels to run, and why: the choice is always printable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from harness.errors import UsageError

from .base import Kernels
from .naive import NaiveKernels

Kind = Literal["auto", "triton", "naive"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The kernels and one sentence that says how they were chosen.

    ``capturable``: they never wait for the device, so a CUDA graph can be captured of them.
    """

    kernels: Kernels
    reason: str
    capturable: bool = False


def select(kind: Kind, device: torch.device | str) -> Selection:
    """Kernels for ``device``. Raises UsageError for an unknown kind, or for Triton on a CPU without its interpreter."""
    device = torch.device(device)
    if kind == "naive":
        return Selection(NaiveKernels(), f"naive kernels on {device.type}: asked for")
    if kind == "auto" and device.type != "cuda":
        return Selection(NaiveKernels(), f"naive kernels: Triton has no {device.type} back end")
    if kind not in ("auto", "triton"):
        raise UsageError(f"unknown kernels {kind!r}", hint="choose auto, triton or naive")

    from .triton_kernels import TritonKernels, interpreting

    if device.type == "cuda":
        if interpreting():
            raise UsageError(
                "Triton was imported with TRITON_INTERPRET=1, so its kernels cannot run on a GPU",
                hint="unset TRITON_INTERPRET, or pass device cpu",
            )
        why = "the device is a GPU" if kind == "auto" else "asked for"
        return Selection(TritonKernels(), f"Triton kernels on {device}: {why}", capturable=True)
    if not interpreting():
        raise UsageError(
            f"Triton kernels on {device.type} need Triton's interpreter, and Triton was imported without it",
            hint="set TRITON_INTERPRET=1 before the process starts, or choose kernels naive",
        )
    return Selection(TritonKernels(), f"Triton kernels under the interpreter on {device.type}: asked for")
