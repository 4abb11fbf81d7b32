"""What was measured, as Markdown."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
import triton

from harness.bench.gpu.steps import Decoded, Prefilled
from harness.bench.gpu.upstream import FLA, VLLM
from harness.bench.gpu.verify import Verified

CLOCKS = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu"


@dataclass(slots=True)
class Report:
    """The lines of every table, filled as they come."""

    command: str
    bandwidth: float  # bytes per second of a copy
    uniform: list[Verified] = field(default_factory=list)
    special: list[Verified] = field(default_factory=list)
    mixed: list[tuple[Verified, Verified]] = field(default_factory=list)
    decodes: list[Decoded] = field(default_factory=list)
    prefills: list[Prefilled] = field(default_factory=list)

    def markdown(self, clocks: str) -> str:
        """The whole page."""
        versions = f"torch {torch.__version__}, triton {triton.__version__}, vLLM {VLLM}, fla-core {FLA}"
        lines = [
            "# Kernels on a GPU",
            "",
            f"Made by `{self.command}`. {versions}.",
            f"Card after the run ({CLOCKS.replace(',', ', ')}): {clocks}.",
            f"A copy of 4 GiB moves {self.bandwidth / 1e9:.0f} GB/s, bytes read and written together.",
            "",
            "Qwen3-Next's sizes (16 key and 32 value heads of 128), bfloat16 activations. Medians of CUDA-graph",
            "replays, state pools rotated over at least 4 times the L2 cache, all in one process. `vLLM` is the verify",
            "kernel of its wheel on the same rows; `of it` is our time over its; `share` is the bytes that a layout",
            "has to move over the time, against the copy.",
            "",
            *self._verified("Verify steps, float32 state", self.uniform),
            *self._plot(),
            *self._verified("Accepted counts at their ends, and bfloat16 states", self.special),
            *self._mixed(),
            *self._decoded(),
            *self._prefilled(),
        ]
        return "\n".join(lines) + "\n"

    def _verified(self, title: str, rows: Sequence[Verified]) -> Iterable[str]:
        if not rows:
            return []
        head = "rows | k | B | vLLM us | slots us | of it | share | replay us | of it | share"
        return [f"## {title}", "", *_table(head, [self._line(row) for row in rows])]

    def _line(self, row: Verified) -> Sequence[str]:
        cells = [row.what, str(row.drafts), str(row.batch), f"{row.vllm:.1f}"]
        for time, needed in ((row.slots, row.slots_bytes), (row.replay, row.replay_bytes)):
            cells += [f"{time:.1f}", f"{time / row.vllm:.2f}", self._share(needed, time)]
        return cells

    def _plot(self, batch: int = 64) -> Iterable[str]:
        rows = [row for row in self.uniform if row.batch == batch]
        if not rows:
            return []
        lines = [
            f"    line [{', '.join(f'{time:.0f}' for time in times)}]"
            for times in zip(*((row.vllm, row.slots, row.replay) for row in rows), strict=True)
        ]
        return [
            "```mermaid",
            "xychart-beta",
            f'    title "B = {batch}: vLLM, slots, replay (from the top at the right end)"',
            f'    x-axis "drafts per row, k" [{", ".join(str(row.drafts) for row in rows)}]',
            '    y-axis "us"',
            *lines,
            "```",
            "",
        ]

    def _share(self, needed: int, time: float) -> str:
        return f"{100 * needed / (time * 1e-6) / self.bandwidth:.0f} %"

    def _mixed(self) -> Iterable[str]:
        lines = [
            [
                str(mixed.drafts),
                str(mixed.batch),
                f"{mixed.slots:.1f}",
                f"{mixed.slots / uniform.slots:.2f}",
                f"{mixed.replay:.1f}",
                f"{mixed.replay / uniform.replay:.2f}",
            ]
            for mixed, uniform in self.mixed
        ]
        head = "k | B | slots us | of a uniform batch | replay us | of a uniform batch"
        return ["## Rows of 1 to k + 1 tokens against as many rows of equal length", "", *_table(head, lines)]

    def _decoded(self) -> Iterable[str]:
        lines = [
            [
                str(d.batch),
                *(f"{time:.1f}" for time in (d.convolution, d.recurrence, d.norm, d.together, d.ours)),
                f"{d.ours / (d.convolution + d.recurrence + d.norm):.2f}",
                f"{d.ours / d.together:.2f}",
            ]
            for d in self.decodes
        ]
        head = (
            "B | convolution us | recurrence with gates us | gated norm us | the three in a row us | ours us"
            " | of their sum | of the three in a row"
        )
        return ["## One layer's decode step: vLLM's kernels and ours", "", *_table(head, lines)]

    def _prefilled(self) -> Iterable[str]:
        if not self.prefills:
            return []
        first = self.prefills[0].time
        lines = [
            [
                p.what,
                f"{p.time:.0f}",
                f"{p.time / first:.2f}",
                f"{p.output_error:.1e}",
                f"{p.state_error:.1e}",
            ]
            for p in self.prefills
        ]
        head = "kernels | us | of fla-core's | error of outputs | error of final states"
        return [
            "## Prefill of 16 prompts of 2048 tokens (relative RMS against float64)",
            "",
            *_table(head, lines),
        ]


def _table(head: str, lines: Iterable[Sequence[str]]) -> list[str]:
    names = head.split(" | ")
    return [
        f"| {head} |",
        "|" + "---|" * len(names),
        *(f"| {' | '.join(cells)} |" for cells in lines),
        "",
    ]


def clocks() -> str:
    """The card and its clocks, as nvidia-smi says."""
    asked = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0]
