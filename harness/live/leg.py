"""The live leg of a case: what its scenarios want is driven against the embedded server, under each variant."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.live.audit import Audit, judge
from harness.live.intent import Intent
from harness.live.judges import Judges
from harness.live.own_server import OwnServer, own_server
from harness.live.run import Audited, listen
from harness.live.scoring import scoring
from harness.live.session import Tell
from harness.live.transcript import Transcript
from harness.rundir import slug
from harness.verdict import Verdict

AT_A_TIME = 2
"""Servers that run beside each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLeg:
    """Audits by variant. ``must_fail`` are the variants that are known to be seen from outside."""

    audits: Mapping[str, Audit]
    transcripts: Mapping[str, Transcript]
    must_fail: tuple[str, ...]
    reference: str

    @property
    def unexpected(self) -> list[str]:
        """What is not as it must be, in sentences."""
        lines = []
        for variant, audit in self.audits.items():
            if variant == self.reference and audit.verdict.exit_code:
                lines.append(f"live: {variant} must pass, is {audit.verdict.value}")
            elif variant in self.must_fail and audit.verdict is not Verdict.FAIL:
                lines.append(f"live: {variant} must fail, is {audit.verdict.value}")
        return lines

    @property
    def exit_code(self) -> int:
        """0: the reference passes, and everything that must fail does; 125: it was left undecided; 1: otherwise."""
        if not self.unexpected:
            return 0
        undecided = self.audits[self.reference].verdict.exit_code == 125
        return 125 if undecided else 1


def live_leg(
    wanted: Intent,
    variants: Sequence[str],
    *,
    must_fail: Sequence[str],
    reference: str,
    folder: Path,
    seed: int,
    run_path: Path,
    tell: Tell,
) -> LiveLeg:
    """Serve each variant, two at a time, and audit it; transcripts and logs stay in ``run_path``."""
    judges = Judges(folder)
    served: list[OwnServer] = []
    stopped = threading.Event()

    def audit(variant: str) -> tuple[Transcript, Audit]:
        arguments = ["--variant", variant, "--model", str(folder), *wanted.setting.arguments]
        beside = run_path / f"live-{slug(variant)}"
        with own_server(arguments, beside.with_suffix(".log")) as own:
            served.append(own)
            if stopped.is_set():
                raise KeyboardInterrupt
            transcript = listen(
                Audited(url=own.url, model=own.model, log=own.log_tail),
                lambda offer: [*wanted.legs, *scoring(offer, seed)],
                beside.with_suffix(".jsonl"),
                lambda line: tell(f"{variant}: {line}"),
            )
        return transcript, judge(transcript, judges)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        try:
            found = dict(zip(variants, pool.map(audit, variants), strict=True))
        except BaseException:
            # whoever interrupts does not wait for the audits that run: they end with their servers
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for own in served:
                own.process.terminate()
            raise
    return LiveLeg(
        audits={variant: audit for variant, (_, audit) in found.items()},
        transcripts={variant: transcript for variant, (transcript, _) in found.items()},
        must_fail=tuple(name for name in must_fail if name in variants),
        reference=reference,
    )
