"""Any schedule on the correct engine passes every check: whatever explorations draw, here drawn by Hypothesis."""

from __future__ import annotations

from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness import Judge, Lab, Verdict
from harness.explore.generate import draw
from harness.explore.words import Words
from harness.targets.embedded import under_each_variant

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
EXAMPLES = 25


def test_every_schedule_passes_every_check_and_some_find_the_merged_fix_out(peaked: Path) -> None:
    under, judge, lab = under_each_variant(peaked), Judge(peaked), Lab(peaked, FIXTURES)
    target, merged, words = under("fixed"), under("as-merged"), Words.of(lab)
    # Noise and signal belong to the model, not to a schedule, so they are measured once.
    gauge = lab.natural("gauge", requests=lab.mixed_requests(4, max_tokens=24), k=3)
    gauges = judge.calibrate(target, gauge, target.run(gauge))
    of_merged: list[Verdict] = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.randoms(use_true_random=True))
    def check(random: Random) -> None:
        scenario = draw(random, words, "drawn")
        trace = target.run(scenario)
        judgement = judge.judge(scenario, trace, gauges)
        assert judgement.verdict in (Verdict.PASS, Verdict.NEAR_TIE), [
            (e.check, e.verdict, e.summary, e.divergences[:1]) for e in judgement.evidence
        ]
        for request in scenario.requests:
            done = trace.completions[request.id]
            assert done.finish_reason in ("stop", "length", "abort", "script")
            assert 1 <= len(done.tokens) <= request.max_tokens or done.finish_reason == "abort"
            assert len(request.prompt) + len(done.tokens) <= scenario.max_model_len
        for step in trace.steps:
            assert sum(row.tokens for row in step.rows) <= scenario.token_budget
            assert len(step.rows) <= scenario.max_num_seqs
        of_merged.append(judge.judge(scenario, merged.run(scenario), gauges).verdict)
        judge.forget()

    check()
    assert len(of_merged) >= EXAMPLES
    assert of_merged.count(Verdict.FAIL) >= 2
