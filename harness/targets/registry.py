"""Targets by name.

==============================  ===============================================================================
``embedded``                    the engine in this package, under one of its variants
``vllm==0.10.2``                code of a release, inside our engine; also ``sglang==X``, ``fla==X``
``vllm:FOLDER``                 the same code of a checkout
``package.module:function``     your own verify recurrence (docs/plug-in-a-kernel.md)
``live``                        the embedded server, from outside: ``repro`` alone (docs/live.md)
==============================  ===============================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from harness.errors import TargetError, UsageError
from harness.scenario import Scenario
from harness.targets.protocols import EngineTarget

EMBEDDED = "embedded"
LIVE = "live"
"""A server: ``repro`` drives the intent of scenarios against it, and opens no target."""
SUSPECTS = ("forward", "layer", "kernels", "conv", "recurrence")
"""Parts of a release that may be tested; the first is the default."""
PROJECTS = ("vllm", "sglang", "fla")
_USERS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_RELEASE = re.compile(rf"({'|'.join(PROJECTS)})(==|:)(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """What every target is opened with."""

    folder: Path  # of the model
    kernels: Literal["auto", "triton", "naive"] = "auto"
    device: str = "cpu"
    graphs: bool = True  # captured steps are CUDA graphs, where the device has them
    state_dtype: str = "float32"
    layout: Literal["slots", "replay"] = "slots"  # of the embedded engine
    cache: Path | None = None  # where sources of releases are kept
    tell: Callable[[str], None] = lambda line: None


def open_target(name: str, options: TargetOptions) -> Callable[[str], EngineTarget]:
    """A function from a variant's name to the target under it; TargetError lists what exists."""
    if name == EMBEDDED:
        _has_device(options.device)
        from harness.targets.embedded import under_each_variant

        return under_each_variant(
            options.folder,
            kernels=options.kernels,
            device=options.device,
            graphs=options.graphs,
            state_dtype=options.state_dtype,
            layout=options.layout,
        )
    if options.layout != "slots":
        raise UsageError(
            f"saw layout {options.layout} for {name}, which has its own", hint="leave --layout out"
        )
    from harness.targets.upstream.order import Order
    from harness.targets.upstream.target import under_each_suspect

    order = partial(Order, model=str(options.folder), device=options.device, state_dtype=options.state_dtype)
    if match := _RELEASE.fullmatch(name):
        from harness.targets.upstream.wheel import release_files

        project, _, where = match.groups()
        release = release_files(project, where, options.cache or _no_cache(), options.tell)
        return under_each_suspect(
            lambda column: order(
                title=column,
                suspect=_suspect(column),
                project=project,
                version=release.version,
                root=str(release.root),
            )
        )
    if _USERS.fullmatch(name):
        return under_each_suspect(lambda column: order(title=column, suspect=name))
    raise TargetError(
        f"saw target {name!r}, expected one of: {EMBEDDED}, "
        f"{', '.join(f'{p}==VERSION' for p in PROJECTS)}, vllm:FOLDER, package.module:function",
        hint="specharness repro --help",
    )


def columns(name: str, asked: list[str] | None) -> list[str] | None:
    """How the columns of a target are called, one per suspect; ``None`` for the embedded engine, which has variants."""
    if name == EMBEDDED:
        return None
    title = name.replace("==", " ")
    if not name.startswith("vllm"):  # one suspect
        return [title]
    return [
        title if s == SUSPECTS[0] else f"{title}: {s}" for s in (_suspect(a) for a in asked or [SUSPECTS[0]])
    ]


def interprets(name: str, device: str) -> bool:
    """Whether the target runs under Triton's interpreter, which takes milliseconds per program and token."""
    return name != EMBEDDED and device == "cpu"


def left_out(name: str, device: str, scenario: Scenario, *, natural: bool = False) -> str | None:
    """Why a scenario is not run on this target; ``None`` where it is. ``natural``: whoever asks has time."""
    if name == EMBEDDED:
        return None
    if interprets(name, device) and not scenario.forced and not natural:
        return "a natural run is too long for Triton's interpreter; --device cuda runs it"
    if scenario.capture_sizes:
        return "captured graphs are padded by a release's metadata builder: specharness upstream-table judges those"
    if scenario.most_compilations is not None:
        return "compilations are counted on the embedded kernels alone"
    return None


def _suspect(column: str) -> str:
    """``vllm 0.10.2: conv`` or ``conv`` -> ``conv``; without a suspect, the default."""
    found = column.rpartition(": ")[2]
    if found in SUSPECTS:
        return found
    if ": " in column or not re.match(rf"({'|'.join(PROJECTS)})[ :]", column):
        raise TargetError(f"saw variant {column!r}, expected one of {', '.join(SUSPECTS)}")
    return SUSPECTS[0]


def _no_cache() -> Path:
    raise TargetError("saw no cache for the sources of releases", hint="set XDG_CACHE_HOME")


def _has_device(device: str) -> None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise TargetError(
            "saw device cuda, but this torch finds no GPU", hint="specharness doctor, or pass --device cpu"
        )
