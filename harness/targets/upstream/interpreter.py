"""What Triton's interpreter lacks for released kernels, repaired in this one place, and a check that no result changes.

* A builtin that a module captured (``exp = tl.exp``) is called without the interpreter's semantics, and refuses.
* A grid function gets converted arguments, where a compiled launch hands it the tensors.
* ``torch.cpu`` has no ``device``, which launches of CUDA code enter as a context.
* ``triton.autotune`` measures its configurations on a device: here the first one is taken, whatever its speed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import KernelInterface

from harness.errors import Unsupported

CAPTURED = ("exp", "exp2", "log", "log2")
"""Builtins that releases give names of their own."""
REPAIRS = (
    f"captured builtins ({', '.join(CAPTURED)}), arguments of grid functions, first autotune configuration"
)


class Pinned(KernelInterface):  # type: ignore[misc]  # triton has no types
    """An autotuned kernel with its first configuration."""

    def __init__(self, fn: Any, configs: Sequence[Any]) -> None:
        self.fn = fn
        self.arg_names = getattr(fn, "arg_names", [])
        self._values = dict(configs[0].kwargs)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch it."""
        return self.fn.run(*args, grid=grid, warmup=warmup, **{**self._values, **kwargs})


def pinned(configs: Sequence[Any], **_: Any) -> Callable[[Any], Any]:
    """``triton.autotune`` without the tuning."""
    return lambda fn: Pinned(fn, configs)


def _late(builtin: Any) -> Any:
    @functools.wraps(builtin, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return builtin(*args, **{**kwargs, "_semantic": interpreter.interpreter_semantic})

    return call


class Grid(interpreter.GridExecutor):  # type: ignore[misc]
    """A launch whose grid function sees the arguments as they were passed."""

    grid: Any
    fn: Any

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch it."""
        if callable(self.grid):
            known = {name: value for name, value in kwargs.items() if name in self.arg_names}
            self.grid = self.grid(inspect.getcallargs(self.fn, *args, **known))
        super().__call__(*args, **kwargs)


def repair() -> str:
    """Repair this process's interpreter, for good; returns what was repaired. Unsupported if a result changes."""
    before = _probe(BLOCK=16)
    for name in CAPTURED:
        late = _late(getattr(tl, name))
        for module in (tl, tl.math):
            setattr(module, name, late)
    interpreter.GridExecutor = Grid
    if not hasattr(torch.cpu, "device"):
        torch.cpu.device = nullcontext  # type: ignore[attr-defined]
    triton.autotune = lambda configs, key=None, **more: pinned(configs, **more)
    for what, after in {"a builtin": _probe(BLOCK=16), "a pinned kernel": _probe_pinned()}.items():
        if not torch.equal(before, after):
            raise Unsupported(
                f"repairing Triton's interpreter changed what {what} computes (triton {triton.__version__})"
            )
    return REPAIRS


captured = None  # the builtin as a release's module would hold it


@triton.jit
def _kernel(x, y, n, USE_CAPTURED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=0.0)
    value = captured(value) if USE_CAPTURED else tl.exp(value)  # type: ignore[misc]
    tl.store(y + i, value, mask=i < n)


def _probe(kernel: Any = _kernel, **block: int) -> torch.Tensor:
    """exp over a few numbers: by the builtin's own name before the repair, by a captured name afterwards."""
    global captured
    captured = tl.exp
    x = torch.linspace(-4, 4, 11)
    y = torch.zeros(11)
    kernel[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](
        x, y, 11, USE_CAPTURED=not tl.core.is_builtin(tl.exp), **block
    )
    return y


def _probe_pinned() -> torch.Tensor:
    configs = [triton.Config({"BLOCK": size}) for size in (16, 32)]
    return _probe(triton.autotune(configs, key=["n"])(_kernel))
