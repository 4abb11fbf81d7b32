"""What the verb ``live-vllm`` does: a released vLLM on the CPU, audited as it is and with a work-around."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from harness.cases import find_root
from harness.codec import encode
from harness.console import console_of
from harness.errors import CaseError
from harness.live.audit import Audit, judge
from harness.live.judges import Judges
from harness.live.run import Audited, listen
from harness.live.subjects import legs
from harness.live.transcript import Transcript
from harness.oracle.model import Oracle
from harness.report.audit import page, screen
from harness.report.terminal import verdict_text
from harness.rundir import RunDir, slug
from harness.verdict import Verdict
from harness.vllm_cpu.recording import Recording
from harness.vllm_cpu.server import VllmServer, serving_vllm
from harness.vllm_cpu.states_run import findings, record_drafted, record_plain

PATIENCE = 120.0
"""Seconds that this vLLM may be silent: its first guided request imports and compiles."""
CROWDS = 2
MAX_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One way to serve, and what its audit must come to."""

    name: str
    plugin: bool
    speculate: bool
    must: tuple[Verdict, ...]


GOOD = (Verdict.PASS, Verdict.NEAR_TIE)
OFF = Serving(name="speculation off", plugin=False, speculate=False, must=GOOD)
MENDED = Serving(name="with the work-around", plugin=True, speculate=True, must=GOOD)
RELEASED = Serving(name="as released", plugin=False, speculate=True, must=(Verdict.FAIL,))


class _Run:
    """Servers one after the other, each audited while it is there."""

    def __init__(self, console: Console, run_dir: RunDir, seed: int, states: bool) -> None:
        self.console, self.run_dir, self.seed, self.states = console, run_dir, seed, states
        self.transcripts: dict[str, Transcript] = {}
        self.audits: dict[str, Audit] = {}
        self.recordings: dict[str, Recording] = {}
        self.folder = Path()

    def tell(self, line: str) -> None:
        """A line of progress: everything here takes a while."""
        self.console.print(line, highlight=False, soft_wrap=True)

    def serve(self, serving: Serving, record: Callable[[VllmServer], None] | None = None) -> None:
        """Start, audit, record, stop; the audit is on disk before the next one starts."""
        stem = f"vllm-{slug(serving.name)}"
        with serving_vllm(
            serving.plugin, serving.speculate, self.run_dir.path / f"{stem}.log", self.tell
        ) as server:
            self.folder = server.folder
            transcript = listen(
                Audited(
                    url=server.url, model=server.model, patience=PATIENCE, log=lambda: _last_words(server)
                ),
                lambda offer: legs(offer, self.seed, crowds=CROWDS, max_tokens=MAX_TOKENS),
                self.run_dir.path / f"{stem}.jsonl",
                lambda line: self.tell(f"{serving.name}: {line}"),
            )
            if self.states and record is not None:
                record(server)
        other = self.transcripts.get(OFF.name) if serving.speculate else None
        audit = judge(transcript, Judges(server.folder), other)
        self.transcripts[serving.name], self.audits[serving.name] = transcript, audit
        title = f"vLLM on the CPU, {serving.name}"
        self.console.print(Text(f"\n{title}", "bold"))
        for line in screen(audit, transcript):
            self.console.print(line, soft_wrap=True, highlight=False)
        self.run_dir.record("live-vllm", serving.name, encode(audit))
        self.run_dir.write_text(f"{stem}.html", page(title, audit, transcript, {"seed": self.seed}))


def live_vllm(args: argparse.Namespace) -> dict[str, Any]:
    """Speculation off must pass, MTP with the work-around must pass, MTP as released must fail."""
    console = console_of(args)
    try:
        root = find_root()
    except CaseError:
        root = Path.cwd()
    started = datetime.now().isoformat(timespec="seconds")
    run_dir = RunDir.create(args.reports or root / "reports", "live-vllm", {"started": started})
    run = _Run(console, run_dir, args.seed, args.states)
    run.serve(OFF, lambda server: run.recordings.update(plain=record_plain(server, run_dir.path, run.tell)))
    run.serve(MENDED, lambda server: run.recordings.update(record_drafted(server, run_dir.path, run.tell)))
    run.serve(RELEASED)
    wrong = [
        f"{serving.name}: must be {' or '.join(v.value for v in serving.must)}, is {found.value}"
        for serving in (OFF, MENDED, RELEASED)
        if (found := run.audits[serving.name].verdict) not in serving.must
    ]
    states = findings(run.recordings, Oracle.load(run.folder), run.tell) if args.states else []
    for finding in states:
        line = Text.assemble("states: ", verdict_text(finding.verdict), f" {finding.text}")
        console.print(line, soft_wrap=True, highlight=False)
        if finding.verdict is not Verdict.PASS:
            wrong.append(f"states: {finding.text}")
    for sentence in wrong:
        console.print(Text(f"UNEXPECTED: {sentence}", "bold red"), soft_wrap=True, highlight=False)
    result = {
        "verdicts": {name: audit.verdict.value for name, audit in run.audits.items()},
        "states": [{"verdict": f.verdict.value, "text": f.text} for f in states],
        "unexpected": wrong,
    }
    run_dir.run["result"] = result
    run_dir.save()
    console.print(f"report: {run_dir.path}", soft_wrap=True, highlight=False)
    return {"verb": "live-vllm", **result, "run_dir": str(run_dir.path), "exit": 1 if wrong else 0}


def _last_words(server: VllmServer) -> list[str]:
    """What the engine died of, which the end of the log does not say, and the end of the log."""
    cause = server.cause()
    return [*server.log_tail(), *([cause] if cause else [])]
