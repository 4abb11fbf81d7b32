"""Kernels of a Gated DeltaNet layer: Triton beside its naive twin, and the decisions a fault can replace."""

from .base import Kernels
from .decisions import CORRECT, Decision, KernelDecisions
from .naive import NaiveKernels
from .select import Kind, Selection, select

__all__ = ["CORRECT", "Decision", "KernelDecisions", "Kernels", "Kind", "NaiveKernels", "Selection", "select"]
