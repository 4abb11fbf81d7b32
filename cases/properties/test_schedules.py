"""Any schedule on the correct engine passes every check: arrivals, budgets, lengths, grammars, drafters, all drawn."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness import Grammar, Judge, Lab, Request, Sampling, Scenario, Verdict
from harness.targets.embedded import under_each_variant

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
EXAMPLES = 25
GRAMMARS = ("[0-9]{1,3}", "[a-z ]{2,9}", "(yes|no|maybe)", r"\[[0-9](, [0-9])*\]")


@st.composite
def requests(draw: st.DrawFn, index: int) -> Request:
    """A prompt of 1 to 30 tokens, guided or free, greedy or sampled."""
    grammar = draw(st.sampled_from((None, None, *GRAMMARS)))
    temperature = draw(st.sampled_from((0.0, 0.0, 0.8, 1.5)))
    return Request(
        id=f"r{index}",
        prompt=tuple(draw(st.lists(st.integers(4, 900), min_size=1, max_size=30))),
        max_tokens=draw(st.integers(1, 14)),
        arrival=draw(st.integers(0, 6)),
        grammar=Grammar(kind="regex", text=grammar) if grammar else None,
        sampling=Sampling(temperature=temperature, top_k=draw(st.sampled_from((0, 5))), seed=index),
        ignore_eos=draw(st.booleans()),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Scenario:
    """One to five requests on an engine of any setting."""
    count = draw(st.integers(1, 5))
    return Scenario(
        name="drawn",
        requests=tuple(draw(requests(i)) for i in range(count)),
        k=draw(st.integers(1, 8)),
        drafter=draw(st.sampled_from(("mtp", "mtp", "ngram"))),
        sample_drafts=draw(st.booleans()),
        token_budget=draw(st.sampled_from((1, 3, 7, 12, 40, 512))),
        max_model_len=draw(st.integers(31, 48)),
        max_num_seqs=draw(st.integers(1, 5)),
        capture_sizes=draw(st.sampled_from(((), (4, 8), (16, 32)))),
    )


def test_every_schedule_passes_every_check_and_some_find_the_merged_fix_out(peaked: Path) -> None:
    under, judge, lab = under_each_variant(peaked), Judge(peaked), Lab(peaked, FIXTURES)
    target, merged = under("fixed"), under("as-merged")
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
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(schedules())
    def check(scenario: Scenario) -> None:
        trace = target.run(scenario)
        judgement = judge.judge(scenario, trace, gauges)
        assert judgement.verdict in (Verdict.PASS, Verdict.NEAR_TIE), [
            (e.check, e.verdict, e.summary, e.divergences[:1]) for e in judgement.evidence
        ]
        for request in scenario.requests:
            done = trace.completions[request.id]
            assert done.finish_reason in ("stop", "length")
            assert 1 <= len(done.tokens) <= request.max_tokens
            assert len(request.prompt) + len(done.tokens) <= scenario.max_model_len
        for step in trace.steps:
            assert sum(row.tokens for row in step.rows) <= scenario.token_budget
            assert len(step.rows) <= scenario.max_num_seqs
        of_merged.append(judge.judge(scenario, merged.run(scenario), gauges).verdict)
        judge.forget()

    check()
    assert len(of_merged) >= EXAMPLES
    assert of_merged.count(Verdict.FAIL) >= 2
