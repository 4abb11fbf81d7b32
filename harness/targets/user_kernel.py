"""A user's own verify recurrence behind our ``Kernels`` contract: everything else is ours.

    def my_verify(q, k, v, g, beta, state, *, query_start_loc, state_indices, num_accepted_tokens): ...
        return out

Shapes and rules are those of ``Kernels.gdn_verify``; docs/plug-in-a-kernel.md tells them with an example.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor

from harness.engine.kernels.decisions import CORRECT, KernelDecisions
from harness.engine.kernels.naive import NaiveKernels
from harness.errors import TargetError

Verify = Callable[..., Tensor]


def find(name: str) -> Verify:
    """``package.module:function``; TargetError if there is none. The module may lie in the working directory."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise TargetError(
            f"cannot import {module_name}: {error}", hint="start where the module lies, or set PYTHONPATH"
        ) from None
    except Exception as error:  # the module is user code: whatever it raises is its own fault
        raise TargetError(f"{module_name} does not load: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        there = ", ".join(n for n, value in vars(module).items() if callable(value) and n[0] != "_") or "none"
        raise TargetError(f"{module_name} has no function {function_name!r}; it has {there}")
    found: Verify = function
    return found


class UserKernels(NaiveKernels):
    """The naive kernels with another verify recurrence."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify

    def gdn_verify(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor,
        *,
        query_start_loc: Tensor,
        state_indices: Tensor,
        num_accepted_tokens: Tensor,
        decisions: KernelDecisions = CORRECT,
    ) -> Tensor:
        """See ``Kernels.gdn_verify``; index tensors are int32, all tensors contiguous."""
        with torch.no_grad():
            out: Tensor = self._verify(
                q.contiguous(),
                k.contiguous(),
                v.contiguous(),
                g.contiguous(),
                beta.contiguous(),
                state,
                query_start_loc=query_start_loc.to(torch.int32).contiguous(),
                state_indices=state_indices.to(torch.int32).contiguous(),
                num_accepted_tokens=num_accepted_tokens.to(torch.int32).contiguous(),
            )
        return out
