"""Arguments of the verb ``nightly``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

Prepare = Callable[[argparse.Namespace], None]
CORE = ("24881", "24730")
"""Issues that have to be reproduced, and their fix to pass, before speed means anything."""


def add_verb(verbs: Any, prepare: Prepare) -> None:
    """Add it to the command line; ``prepare`` is what must happen before heavy imports."""

    def nightly(args: argparse.Namespace) -> dict[str, Any]:
        prepare(args)
        from harness.nightly_verbs import nightly

        return nightly(args)

    parser = verbs.add_parser(
        "nightly", help="correctness, then the benchmark, then the gate: one directory, one exit code"
    )
    add = parser.add_argument
    add("--history", metavar="URL", help="a folder, or any fsspec URL (needed unless --resume)")
    add("--series", default="nightly", metavar="NAME", help="of the history (nightly)")
    add("--issues", action="append", metavar="ISSUE", help=f"to reproduce first ({', '.join(CORE)})")
    add("--target", metavar="NAME", help="of repro: embedded (default), vllm==0.11.0, your kernel ...")
    add(
        "--base-url",
        metavar="URL",
        help="a server of yours: it is audited and measured, not the embedded one",
    )
    add("--model", metavar="NAME", help="as the server calls it")
    add("--tokenizer", type=Path, metavar="FOLDER", help="its tokenizer.json")
    add("--commit", metavar="SHA", help="what is served (default: this checkout)")
    add(
        "--calibration", type=Path, metavar="PATH", help="what calibrate wrote: its folder, or one file of it"
    )
    add("--known", type=Path, metavar="FILE", help="changes that are acknowledged, as TOML")
    add("--pairs", type=int, default=16, metavar="N", help="measured by the gate at most, even (16)")
    add("--no-measure", action="store_true", help="the past nights alone decide")
    add(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="append the summary ($GITHUB_STEP_SUMMARY where that is set)",
    )
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML there, too")
    add("--resume", type=Path, metavar="RUN_DIR", help="go on with a night that was killed, as it began")
    add("--reports", type=Path, metavar="FOLDER", help="where the run directory goes")
    add("--json", action="store_true", default=argparse.SUPPRESS, help="print the JSON line alone")
    add("bench", nargs="*", metavar="-- ARGS", help="for the benchmark: -- --requests 100 --rate 4")
    parser.set_defaults(
        run=nightly, device="cpu", kernels="auto", gpu_gate=lambda: "gpu-gate" in verbs.choices
    )
