"""What a child process runs, and how it is made: our engine with parts of a release, or of the user, in it.

==============  =====================================================================================
``forward``     the release's layer code with its kernels, fed by its own metadata builder; prompts are ours
``layer``       the same, and its own convolution over prompts
``kernels``     our layer; convolution update and verify recurrence are the release's
``conv``        the convolution update alone
``recurrence``  the verify recurrence alone
==============  =====================================================================================
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from harness.engine.kernels.base import Kernels
from harness.engine.kernels.naive import NaiveKernels
from harness.engine.kernels.select import Selection
from harness.engine.linear_layer import LinearLayer
from harness.engine.loader import Loader
from harness.engine.policy import POLICY, Policy
from harness.engine.variants import only_with_drafts
from harness.targets.embedded import EmbeddedTarget
from harness.targets.upstream import compiler, einops_twin, interpreter
from harness.targets.upstream.layouts import CONV, FLA, THIRD_PARTY, Layout, layout_of
from harness.targets.upstream.loading import with_release
from harness.targets.upstream.order import Order
from harness.targets.upstream.wheel import Release

MATH = "vllm.utils.math_utils"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The engine with its suspect, and what a reader must know of it."""

    target: EmbeddedTarget
    notes: dict[str, str]


def make(order: Order) -> Made:
    """The suspect that an order names. Raises what loading it raises."""
    notes = {}
    if os.environ.get("TRITON_INTERPRET") == "1":
        notes["interpreter"] = f"repaired: {interpreter.repair()}"
    if order.project is None:
        return _made(order, user_kernels(order), "all but the verify recurrence is ours", notes)
    if not notes:
        notes["compiler"] = f"repaired: {compiler.repair()}"
    if einops_twin.install():
        notes["einops"] = "not installed: rearrange typed again"
    release = Release(project=order.project, version=order.version, root=Path(order.root))
    notes["sources"] = f"{release.name} ({release.root})"
    return _MAKERS[order.project](order, release, notes)


def _vllm(order: Order, release: Release, notes: dict[str, str]) -> Made:
    layout = layout_of(release)
    real = [package.rpartition(".")[0] for package in (FLA, THIRD_PARTY)]
    with_release(release.root, "vllm", (*real, CONV, MATH))
    for module in (CONV, layout.ops):
        importlib.import_module(module)
    if order.suspect in ("forward", "layer"):
        return _forward(order, release, layout, notes)
    from harness.targets.upstream.kernels import VllmKernels

    conv, recurrence = (order.suspect in ("kernels", part) for part in ("conv", "recurrence"))
    return _made(
        order, VllmKernels(layout, conv=conv, recurrence=recurrence), "all but the suspect is ours", notes
    )


def _forward(order: Order, release: Release, layout: Layout, notes: dict[str, str]) -> Made:
    from harness.targets.upstream.forward import Forward, ForwardLayer
    from harness.targets.upstream.metadata_stubs import reverse_ties
    from harness.targets.upstream.steps import Steps

    if order.device == "cpu":
        torch.argsort = reverse_ties(torch.argsort)
        notes["argsort"] = (
            "where the release does not ask for a stable sort, ties come in reverse, as they may on a GPU"
        )
    steps = Steps(release)
    theirs = Forward(release, layout, prompts=order.suspect == "layer")
    notes |= {
        "code": f"{layout.entry} of {layout.model}",
        "typed again": ", ".join([*theirs.retyped, *steps.retyped]),
        "accepted counts": "kept as its runner does: "
        + ("every step" if steps.feed.refreshes else "steps with drafts"),
    }
    policy = POLICY if steps.feed.refreshes else replace(POLICY, refreshes_accepted=only_with_drafts)
    ours = "prompts are ours" if order.suspect == "forward" else "the recurrence over prompts is ours"
    return _made(order, NaiveKernels(), ours, notes, policy, ForwardLayer.maker(theirs, steps))


def _fla(order: Order, release: Release, notes: dict[str, str]) -> Made:
    from harness.targets.upstream.fla import FlaKernels

    notes["verify"] = (
        "fla-core has no verify form: its recurrent kernel runs token by token, the slots are ours"
    )
    notes["prompts"] = "the recurrent kernel: the chunk kernel refuses float32"
    return _made(order, FlaKernels(release.root), "all but the recurrences is ours", notes)


def _sglang(order: Order, release: Release, notes: dict[str, str]) -> Made:
    from harness.targets.upstream.sglang import SglangKernels

    notes["verify"] = "its states go to a scratch; copying them to slots is typed again"
    return _made(order, SglangKernels(release.root), "all but the verify recurrence is ours", notes)


_MAKERS = {"vllm": _vllm, "fla": _fla, "sglang": _sglang}


def user_kernels(order: Order) -> Kernels:
    """The user's verify recurrence, everything else ours."""
    from harness.targets.user_kernel import UserKernels, find

    return UserKernels(find(order.suspect))


def _made(
    order: Order,
    kernels: Kernels,
    ours: str,
    notes: dict[str, str],
    policy: Policy = POLICY,
    linear_layer: Callable[..., LinearLayer] = LinearLayer,
) -> Made:
    how = "interpreted" if os.environ.get("TRITON_INTERPRET") == "1" else "compiled"
    target = EmbeddedTarget(
        loader=Loader(Path(order.model), device=order.device, linear_layer=linear_layer),
        policy=policy,
        kernels=Selection(kernels, f"{order.title}, {how}; {ours} (naive)"),
        device=order.device,
        state_dtype=getattr(torch, order.state_dtype),
    )
    return Made(target=target, notes=notes)
