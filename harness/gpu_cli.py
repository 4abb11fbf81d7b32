"""Arguments of the verbs ``gpu-bench``, ``gpu-gate`` and ``sanitize``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTS = ("recompile", "kernels", "cases", "matrix", "sanitize")


def add_verbs(verbs: Any) -> None:
    """Add them to the command line."""
    _add_bench(verbs)
    _add_gate(verbs)


def _add_bench(verbs: Any) -> None:

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


def _add_gate(verbs: Any) -> None:
    def gate(args: argparse.Namespace) -> dict[str, Any]:
        from harness.gpu_gate_verbs import gate

        return gate(args)

    def sanitize(args: argparse.Namespace) -> dict[str, Any]:
        from harness.gpu_gate_verbs import sanitize

        return sanitize(args)

    parser = verbs.add_parser(
        "gpu-gate", help="is this commit right on this machine's GPU? everything in 5 minutes"
    )
    add = parser.add_argument
    usual = "recompile, kernels and cases"
    add("--only", action="append", choices=PARTS, help=f"only this part; may be repeated (default: {usual})")
    add("--add", action="append", choices=PARTS, help="this part, too; may be repeated")
    add("--batches", type=int, default=500, metavar="N", help="of the recompile gate (500)")
    _add_common(parser, gate)
    parser = verbs.add_parser("sanitize", help="the kernels under compute-sanitizer: memcheck and racecheck")
    _add_common(parser, sanitize)


def _add_common(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], dict[str, Any]]) -> None:
    add = parser.add_argument
    add("--workers", type=int, default=os.cpu_count() or 4, metavar="N", help="jobs at a time (one per core)")
    add("--seconds", type=float, default=600, metavar="S", help="for everything (600)")
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    add(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="append a section ($GITHUB_STEP_SUMMARY where that is set)",
    )
    add("--seed", type=int, default=0, help="seed of everything random (default 0)")
    add("--cases", type=Path, metavar="FOLDER", help="folder that holds cases/ and fixtures/")
    add("--reports", type=Path, metavar="FOLDER", help="where the run directory goes")
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
