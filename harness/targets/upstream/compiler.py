"""What today's Triton refuses of released kernels, taken as the Triton that they shipped with took it.

* A constant (``tl.constexpr``) that is listed in ``do_not_specialize``: Triton 3.4 ignored that, and the one of
  today refuses the kernel (3.6 does; triton-lang/triton#8275). It is a constant here as it was there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
from triton.runtime.jit import JITFunction

REPAIRS = "constants listed in do_not_specialize"


def repair() -> str:
    """Repair this process's ``triton.jit``, for good; returns what was repaired."""
    shipped: Callable[..., Any] = triton.jit

    def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
        if fn is None:
            return lambda later: jit(later, **options)
        return constants_are_constants(shipped(fn, **options))

    triton.jit = jit
    return REPAIRS


def constants_are_constants(kernel: Any) -> Any:
    """The kernel, without a wish for its constants that never had an effect."""
    if isinstance(kernel, JITFunction):  # an interpreted kernel specialises nothing
        for parameter in kernel.params:
            if parameter.is_constexpr:
                parameter.do_not_specialize = parameter.do_not_specialize_on_alignment = False
    return kernel
