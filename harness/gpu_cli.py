"""Arguments of the verb ``gpu-bench``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_verb(verbs: Any) -> None:
    """Add it to the command line."""

    def run(args: argparse.Namespace) -> dict[str, Any]:
        from harness.gpu_verbs import bench

        return bench(args)

    parser = verbs.add_parser("gpu-bench", help="time the kernels on a GPU beside vLLM's and fla-core's")
    add = parser.add_argument
    add("--drafts", type=_numbers, default=tuple(range(8)), metavar="0,1,..", help="drafts per row (0 to 7)")
    add("--batches", type=_numbers, default=(1, 4, 16, 64, 256, 512), metavar="1,4,..", help="rows of a step")
    add(
        "--parts",
        type=lambda text: tuple(text.split(",")),
        default=("verify", "special", "mixed", "decode", "prefill"),
        metavar="PART,..",
        help="verify, special, mixed, decode, prefill (all)",
    )
    add("--out", type=Path, metavar="FILE", help="the table (reports/baselines/gpu.md)")
    add("--cases", type=Path, metavar="ROOT", help="the repository (found from here)")
    add("--seed", type=int, default=20240601)
    add("--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone")
    parser.set_defaults(run=run)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"saw {text!r}, expected numbers such as 1,3,5") from error
    if min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"saw {text!r}, expected no negative number")
    return numbers
