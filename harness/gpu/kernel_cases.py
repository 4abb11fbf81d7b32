"""Every kernel over ragged rows, padding, empty rows and strided views: what runs under a sanitizer.

    python -m harness.gpu.kernel_cases float32

runs one part and prints how many launches it made, as JSON. Nothing is compared: a sanitizer watches. ``--exact``
leaves out the steps whose tensors are views: where they lie says nothing about shared memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import torch

from harness.engine.kernels import chunk
from harness.engine.kernels.launch import Launch
from harness.engine.kernels.samples import Row, Shape, batch
from harness.engine.kernels.traffic import Traffic, layer
from harness.engine.kernels.triton_kernels import TritonKernels
from harness.gpu import planted

REAL = Shape(H=1, HV=2, K=128, V=128, k=3)
ODD = Shape(H=1, HV=3, K=24, V=20, k=5)
SLOTS = 17
ROWS = (1, 4, 5, 9, 17)
"""Rows of a step: both sides of every threshold, and the most that the pools hold."""


@dataclass(slots=True)
class Counted:
    """Runs launches and counts them."""

    names: list[str] = field(default_factory=list)

    def __call__(self, launch: Launch) -> None:
        launch.run()
        self.names.append(launch.name)


Run = Callable[[Launch], None]


def traffic(dtype: torch.dtype, state_dtype: torch.dtype, run: Run, memory: Sequence[bool]) -> None:
    """Steps of every kernel at real and at odd sizes: each tensor in an allocation of its own size, and as views."""
    kernels = TritonKernels(run=run)
    for shape in (REAL, ODD):
        served = layer(shape, dtype=dtype, state_dtype=state_dtype, device="cuda", slots=SLOTS)
        for exact in memory:
            steps = Traffic(layer=served, random=Random(7), slots=SLOTS, exact=exact)
            for rows in ROWS:
                steps.step(kernels, rows)


def tunings() -> Iterator[tuple[int, dict[str, int], dict[str, int]]]:
    """Chunk sizes, blocks and options with which the prefill may be launched, now or after a search."""
    for size in (16, 64):
        for block_v in (16, 32, 64):
            for warps in (4, 8):
                yield size, {"BLOCK_V": block_v}, {"num_warps": warps, "num_stages": 1}
    yield 64, {"BLOCK_V": 32}, {"num_warps": 4, "num_stages": 2}
    yield 64, {"BLOCK_V": 32}, {"num_warps": 4, "num_stages": 3}


def prefill(run: Run) -> None:
    """The chunked prefill under every tuning, bfloat16 and float32."""
    rows = [Row(length=n, known=bool(n % 2)) for n in (1, 64, 65, 130)]
    rows += [Row(length=0), Row(length=5, padding=True)]
    for dtype in (torch.bfloat16, torch.float32):
        for shape in (REAL, ODD):
            sample = batch(shape, rows, device="cuda", dtype=dtype)
            q, k, v, g, beta, state = (x.clone() for x in sample.gdn())
            for size, blocks, options in tunings() if dtype == torch.bfloat16 else [*tunings()][:1]:
                out = torch.zeros_like(v)
                wy, scan = chunk.prefill_launches(
                    q, k, v, g, beta, out, state, **sample.prefill(), chunk=size
                )
                run(wy)
                grid = (-(-shape.V // blocks["BLOCK_V"]), *scan.grid[1:])
                run(replace(scan, grid=grid, arguments={**scan.arguments, **blocks}, options=options))


PARTS: dict[str, Callable[[Run, Sequence[bool]], None]] = {
    "float32": partial(traffic, torch.float32, torch.float32),
    "bfloat16": partial(traffic, torch.bfloat16, torch.float32),
    "bfloat16-states": partial(traffic, torch.bfloat16, torch.bfloat16),
    "prefill": lambda run, _: prefill(run),
    "planted-out-of-bounds": lambda run, _: run(planted.out_of_bounds()),
    "planted-shared-race": lambda run, _: run(planted.shared_race()),
}
"""What can be run; the last two are mistakes."""


def main(part: str, memory: Sequence[bool]) -> None:
    """Run a part to its end."""
    run = Counted()
    PARTS[part](run, memory)
    torch.cuda.synchronize()
    counted = {name: run.names.count(name) for name in sorted(set(run.names))}
    print(json.dumps({"part": part, "launches": len(run.names), "kernels": counted}))


if __name__ == "__main__":
    main(sys.argv[1], (True,) if "--exact" in sys.argv else (True, False))
