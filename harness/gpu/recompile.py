"""The recompile gate: after the listed warm-up, random batches compile nothing; a fault that compiles is seen.

    python -m harness.gpu.recompile --batches 500

Triton itself counts. One layer of each dtype serves its share of the batches.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from harness.engine.kernels.compile import Compilations
from harness.engine.kernels.constexpr_length import ConstexprLengthKernels
from harness.engine.kernels.samples import Shape
from harness.engine.kernels.traffic import Traffic, layer
from harness.engine.kernels.triton_kernels import TritonKernels
from harness.engine.kernels.warmup import warm_up

SHAPE = Shape(H=2, HV=4, K=128, V=128)
KINDS = (
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
)
"""Dtypes of tokens and of states."""
FAULTY = 20
"""Batches of the planted fault."""


def measure(batches: int, seed: int) -> dict[str, Any]:
    """Warm up, serve, and count: ``late`` are the kernels that were compiled when it was too late."""
    layers = [
        layer(SHAPE, dtype=dtype, state_dtype=state, device="cuda", seed=seed) for dtype, state in KINDS
    ]
    started = time.perf_counter()
    with Compilations() as first:
        listed = sum(len(warm_up(TritonKernels(), one)) for one in layers)
    torch.cuda.synchronize()
    warmed = time.perf_counter() - started
    random = Random(seed)
    steps = [Traffic(layer=one, random=random) for one in layers]
    with Compilations() as late:
        for index in range(batches):
            steps[index % len(steps)].step(TritonKernels())
    torch.cuda.synchronize()
    with Compilations() as planted:
        for index in range(FAULTY):
            steps[index % len(steps)].step(ConstexprLengthKernels())
    torch.cuda.synchronize()
    return {
        "entries": listed,
        "variants": len(first.names),
        "warm_up_seconds": round(warmed, 1),
        "batches": batches,
        "late": late.names,
        "planted": len(planted.names),
    }


def verdict(found: dict[str, Any]) -> tuple[int, str]:
    """Exit code and one sentence."""
    warmed = f"{found['entries']} entries of the warm-up compiled {found['variants']} variants"
    if found["late"]:
        names = ", ".join(sorted(set(found["late"])))
        return 1, f"{warmed}, and {found['batches']} batches {len(found['late'])} more: {names}"
    if not found["planted"]:
        return 125, f"{warmed}, but a length as constexpr was not seen to compile anything"
    return 0, f"{warmed}, {found['batches']} batches none; a length as constexpr compiled {found['planted']}"


def main(argv: Sequence[str] | None = None) -> int:
    """One JSON line; returns its ``exit``."""
    parser = argparse.ArgumentParser(prog="python -m harness.gpu.recompile")
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    found = measure(args.batches, args.seed)
    code, told = verdict(found)
    print(json.dumps({"verb": "recompile", **found, "told": told, "exit": code}))
    return code


if __name__ == "__main__":
    sys.exit(main())
