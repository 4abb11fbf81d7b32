"""The judgement of a transcript: a pure function, for one that was just heard and for one from a file."""

from __future__ import annotations

from dataclasses import dataclass

from harness.live import answers, counters, crowd, rescoring
from harness.live.ends import ends
from harness.live.finding import Finding
from harness.live.judges import Judges
from harness.live.liveness import liveness
from harness.live.noise import Noise, judged, measure
from harness.live.reference import reference
from harness.live.transcript import Transcript
from harness.verdict import Verdict, worst


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found, in the order in which it should be read."""

    noise: Noise
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """Of all checks that the server could be put to."""
        return worst(f.verdict for f in self.findings if f.verdict is not Verdict.UNSUPPORTED)

    @property
    def failed(self) -> tuple[Finding, ...]:
        """What is red."""
        return tuple(f for f in self.findings if f.verdict is Verdict.FAIL)


def _has_solo(transcript: Transcript) -> bool:
    """Whether the audit was to ask anybody alone."""
    return any(ask.leg == "solo" for ask in transcript.asked.values()) or not transcript.generated


def judge(transcript: Transcript, judges: Judges, other: Transcript | None = None) -> Audit:
    """Every check of one server; ``other`` is the transcript of a reference without speculation."""
    judges = judges.speaking_as(transcript.generated)
    noise = measure(transcript)
    scored = rescoring.scored(transcript, judges)
    findings = [
        liveness(transcript),
        answers.whole(transcript, judges),
        answers.grammar(transcript, judges),
        *((*crowd.compared(transcript, noise), ends(transcript, noise)) if _has_solo(transcript) else ()),
        rescoring.rescoring(transcript, noise, scored),
        rescoring.greedy(transcript, noise, scored),
        counters.counters(transcript),
        counters.memory(transcript),
        judged(noise, transcript),
        reference(transcript, other, noise),
    ]
    return Audit(noise=noise, findings=tuple(f for f in findings if f is not None))
