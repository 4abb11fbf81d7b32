"""Kernels of a Gated DeltaNet layer: Triton beside its naive twin, and the decisions a fault can replace."""

from .base import Kernels
from .decisions import CORRECT, Decision, KernelDecisions
from .journal import Journal
from .naive import NaiveKernels
from .select import Kind, Selection, select

__all__ = [
    "CORRECT",
    "Decision",
    "Journal",
    "KernelDecisions",
    "Kernels",
    "Kind",
    "NaiveKernels",
    "Selection",
    "select",
]
