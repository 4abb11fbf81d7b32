"""Compiling the kernels without a GPU, and counting how many compiled variants a series of launches needs.

Triton compiles a kernel once per combination of ``constexpr`` values and argument traits (dtype, pointer alignment, an
integer that is 1 or divisible by 16). ``specialisations`` applies Triton's own rules to launches that never happen;
``Compilations`` listens to Triton while launches do happen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import compute_cache_key, create_function_from_signature

from harness.errors import UsageError

from . import chunk, constexpr_length, conv, conv_prefill, decode, gating, gdn, norm, replay
from .launch import Launch, interpreting
from .samples import QWEN3_NEXT, Batch, Row, batch

ARCHITECTURES = (80, 90)
HOOKED = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 7)
"""Whether Triton's hook for compilations copes with these kernels. Before 3.7 it cannot print a constexpr that is
itself a jit function, and raises; its compiler's listener hears of the same compilations."""


@dataclass(frozen=True, slots=True)
class Binary:
    """One compiled variant."""

    kernel: str
    architecture: int
    digest: str  # of the machine code
    shared: int  # bytes of shared memory per program


@dataclass(frozen=True, slots=True)
class Variant:
    """What a launch needs compiled; two launches with the same key share their machine code."""

    key: str
    source: Any  # triton's ASTSource
    options: dict[str, Any]

    def compile(self, architecture: int) -> Binary:
        """Machine code for an architecture such as 90 (for sm_90)."""
        target = GPUTarget("cuda", architecture, 32)
        kernel = triton.compile(self.source, target=target, options=self.options)
        digest = hashlib.sha256(kernel.asm["cubin"]).hexdigest()
        return Binary(self.source.name, architecture, digest, kernel.metadata.shared)


def variant(launch: Launch, architecture: int = 90) -> Variant:
    """Bind a launch as Triton would on that architecture. Raises UsageError under the interpreter."""
    if interpreting():
        raise UsageError(
            "Triton was imported with TRITON_INTERPRET=1, so nothing can be compiled",
            hint="compile in a process without TRITON_INTERPRET",
        )
    kernel, backend = launch.kernel, _backend(architecture)
    bound, traits, options = _binder(kernel, architecture)(**launch.arguments, **launch.options)
    key = f"{launch.name} {compute_cache_key({}, traits, options)}"
    everything = {**launch.arguments, **options}
    parsed, signature, constants, attributes = kernel._pack_args(backend, everything, bound, traits, options)
    return Variant(key, ASTSource(kernel, signature, constants, attributes), parsed.__dict__)


@cache
def _backend(architecture: int) -> Any:
    return make_backend(GPUTarget("cuda", architecture, 32))


@cache
def _binder(kernel: Any, architecture: int) -> Any:
    """Triton's own rules for the arguments of a kernel, as a function."""
    return create_function_from_signature(kernel.signature, kernel.params, _backend(architecture))


def specialisations(launches: Iterable[Launch], architecture: int = 90) -> list[Binary]:
    """The distinct variants that a series of launches needs, each really compiled, in order of first use."""
    variants = {v.key: v for v in (variant(launch, architecture) for launch in launches)}
    return [v.compile(architecture) for v in variants.values()]


@dataclass(slots=True)
class Compilations:
    """Counts what Triton compiles, or loads from its disk cache, while the ``with`` block runs (on a GPU)::

    with Compilations() as compilations:
        serve()
    assert compilations.of("conv_update_kernel") == 1
    """

    names: list[str] = field(default_factory=list)
    _before: Any = None

    def of(self, kernel: str) -> int:
        """Variants of one kernel so far."""
        return self.names.count(kernel)

    def __enter__(self) -> Compilations:
        if HOOKED:
            self._before = triton.knobs.runtime.jit_post_compile_hook
            triton.knobs.runtime.jit_post_compile_hook = self._hooked
        else:
            self._before = triton.knobs.compilation.listener
            triton.knobs.compilation.listener = self._heard
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if HOOKED:
            triton.knobs.runtime.jit_post_compile_hook = self._before
        else:
            triton.knobs.compilation.listener = self._before

    def _hooked(self, **event: Any) -> Any:
        self.names.append(event["fn"].name)
        return self._before(**event) if self._before else None

    def _heard(self, **event: Any) -> None:
        self.names.append(event["src"].name)
        if self._before:
            self._before(**event)


def registry() -> list[Launch]:
    """Every kernel at Qwen3-Next's sizes: bfloat16 over float32 and bfloat16 states, and all in float32."""
    rows = [Row(length=4), Row(length=1, accepted=3), Row(length=2), Row(length=0)]
    kinds = [
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float32),
    ]
    samples = [batch(QWEN3_NEXT, rows, dtype=dtype, state_dtype=state) for dtype, state in kinds]
    return [launch for sample in samples for launch in _launches(sample)]


def _launches(sample: Batch) -> list[Launch]:
    out, o = torch.empty_like(sample.x), torch.empty_like(sample.qkv()[2])
    raw = sample.g.to(out.dtype)
    update = conv.update_launch(sample.x, out, *sample.conv()[1:], **sample.update())
    q, k, v, g, beta, state = sample.gdn()
    return [
        update,
        constexpr_length.constexpr_length(update, sample.shape.k + 1),
        *conv_prefill.prefill_launches(sample.x, out, *sample.conv()[1:], **sample.prefill()),
        gdn.verify_launch(q, k, v, g, beta, o, state, **sample.verify()),
        gdn.verify_launch(
            q, k, v, g, beta, o, state, **sample.verify() | {"state_indices": sample.state_indices[:, :2]}
        ),
        replay.replay_launch(q, k, v, g, beta, o, state, sample.journal, **sample.replay()),
        decode.decode_launch(
            sample.x,
            raw,
            raw,
            o,
            sample.conv_state,
            sample.weight,
            sample.bias,
            sample.g[0],
            raw[0],
            state,
            sample.weight[: sample.shape.V, 0],
            1e-6,
            o.float(),
            o,
            torch.zeros(len(sample.rows), sample.shape.H, dtype=torch.int32),
            state_indices=sample.state_indices[:, 0],
        ),
        *chunk.prefill_launches(q, k, v, g, beta, o, state, **sample.prefill()),
        gating.gating_launch(raw, raw, sample.g[0], raw[0], g, beta),
        norm.gated_norm_launch(o, v, sample.weight[: sample.shape.V, 0], o, 1e-6),
    ]
