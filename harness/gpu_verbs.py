"""The verb ``gpu-bench``: every table of the kernels' baseline in one call."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console

from harness.cases import find_root
from harness.errors import UsageError
from harness.models.tiny import default_cache

NOTES = "<!-- what follows was written by hand, and is kept -->"
PARTS = ("verify", "special", "mixed", "decode", "prefill")


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Time everything and write the page."""
    import torch

    if unknown := set(args.parts) - set(PARTS):
        raise UsageError(f"saw part {sorted(unknown)[0]!r}", hint=f"choose among {','.join(PARTS)}")
    if not torch.cuda.is_available():
        raise UsageError(
            "gpu-bench times kernels on a GPU, and torch sees none",
            hint="specharness doctor says what is here",
        )
    from harness.bench.gpu.clock import copy_bandwidth
    from harness.bench.gpu.report import Report, clocks
    from harness.bench.gpu.steps import decodes, prefills
    from harness.bench.gpu.upstream import Upstream
    from harness.bench.gpu.verify import Verify

    console = Console(stderr=True, quiet=getattr(args, "json", False), highlight=False)
    random = torch.Generator("cuda").manual_seed(args.seed)
    # where the page went says nothing about the figures
    asked = [word for word in sys.argv[1:] if str(args.out) not in (word, word.removeprefix("--out="))]
    command = shlex.join(["specharness", *(word for word in asked if word != "--out")])
    report = Report(command=command, bandwidth=copy_bandwidth())
    upstream = Upstream(default_cache(os.environ).parent)
    verify = Verify(upstream, random)
    path = args.out or (args.cases or find_root()) / "reports" / "baselines" / "gpu.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    notes = path.read_text(encoding="utf-8").partition(NOTES)[2] if path.is_file() else "\n"

    def keep(part: str, table: list[Any], lines: Callable[[], Iterable[Any]]) -> None:
        for line in lines() if part in args.parts else ():
            table.append(line)
            console.print(f"{part}: {line}", soft_wrap=True)
            page = report.markdown(clocks()) + NOTES + notes
            path.write_text(page, encoding="utf-8")  # after every line: what is known survives what comes

    keep("prefill", report.prefills, lambda: prefills(upstream, random))
    keep("decode", report.decodes, lambda: decodes(upstream, random, (1, 2, 4, 8, 16)))
    keep("mixed", report.mixed, verify.mixed)
    keep("special", report.special, verify.extremes)
    keep("special", report.special, verify.half)
    keep("verify", report.uniform, lambda: verify.table(args.drafts, args.batches))
    return {"verb": "gpu-bench", "table": str(path), "copy_bandwidth": report.bandwidth, "exit": 0}
