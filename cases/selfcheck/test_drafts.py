"""The drafter check: each mistake of a drafter is found in its row and named; rounding and sampling are not blamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.check.drafts import check_drafts
from harness.check.gauge import Gauge
from harness.check.reference import Reference, ReferenceBook
from harness.lab import Lab, Plan
from harness.oracle import ngram
from harness.oracle.attention import forget
from harness.oracle.model import Oracle
from harness.oracle.mtp import Drafter, draft
from harness.scenario import Request, Sampling, Scenario, Turn
from harness.targets.embedded import under_each_variant
from harness.trace import RowTrace, Trace
from harness.verdict import Divergence, Verdict

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
GAUGE = Gauge(noise=(1e-6,), signal=(1e-2,))
K = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of the correct engine."""

    scenario: Scenario
    trace: Trace
    oracle: Oracle

    def rows(self, request: str) -> list[tuple[int, RowTrace]]:
        return [(s.index, row) for s in self.trace.steps for row in s.rows if row.request == request]

    def verify(self, request: str, place: int) -> tuple[int, RowTrace]:
        """A verify row of a request."""
        return [(step, row) for step, row in self.rows(request) if not row.prompt_tokens][place]

    def tokens_before(self, request: str, step: int) -> list[int]:
        """Prompt and answer before a step."""
        prompt = self.scenario.request(request).prompt
        return [*prompt, *(t for s, row in self.rows(request) if s < step for t in row.committed)]

    def reference(self, trace: Trace | None = None) -> Reference:
        return Reference(ReferenceBook(self.oracle), self.scenario, trace or self.trace)

    def head(self, request: str) -> Drafter:
        reference = self.reference()
        history = reference.histories[request]
        return Drafter(self.oracle, history, reference.replay(request).hidden[: len(history) - 1])

    def with_row(self, step: int, request: str, **fields: Any) -> Trace:
        def other(row: RowTrace) -> RowTrace:
            return replace(row, **fields) if row.request == request else row

        steps = [
            replace(s, rows=tuple(other(row) for row in s.rows)) if s.index == step else s
            for s in self.trace.steps
        ]
        return replace(self.trace, steps=tuple(steps))

    def check(self, trace: Trace, gauge: Gauge = GAUGE, scenario: Scenario | None = None) -> Any:
        return check_drafts(scenario or self.scenario, trace, self.reference(trace), gauge)

    def first(self, step: int, request: str, drafts: tuple[int, ...]) -> Divergence:
        """What is found where a row was given other drafts."""
        evidence = self.check(self.with_row(step, request, proposed=drafts))
        assert evidence.verdict is Verdict.FAIL
        found: Divergence = evidence.divergences[0]
        assert (found.kind, found.at.step, found.at.request) == ("drafts", step, request)
        return found


def run_of(folder: Path, oracle: Oracle, scenario: Scenario) -> Run:
    trace = under_each_variant(folder, kernels="naive")("fixed").run(scenario)
    steps = tuple(replace(step, k=scenario.k) for step in trace.steps)
    return Run(scenario=scenario, trace=replace(trace, steps=steps), oracle=oracle)


@pytest.fixture(scope="module")
def oracle(flat: Path) -> Oracle:
    return Oracle.load(flat)


@pytest.fixture(scope="module")
def mtp(flat: Path, oracle: Oracle) -> Run:
    return run_of(flat, oracle, natural(flat, drafter="mtp"))


@pytest.fixture(scope="module")
def lookup(flat: Path, oracle: Oracle) -> Run:
    """A script that proposes what prompt lookup gives, judged as if the engine had looked it up."""
    text = (1, 2, 3, 4, 1)
    turns = (
        Turn(token=2),
        Turn(drafts=(3, 4, 1), accepted=3, token=9),
        Turn(token=1),
        Turn(token=2),
        Turn(drafts=(3, 4, 1), accepted=4, token=2),
        Turn(drafts=(3, 4, 9), accepted=1, token=5),
    )
    request = Request(id="r0", prompt=text, max_tokens=16)
    forced = Scenario(name="lookup", k=K, requests=(request,), script={"r0": turns})
    run = run_of(flat, oracle, forced)
    return replace(run, scenario=replace(forced, script=None, drafter="ngram"))


def natural(
    folder: Path,
    *,
    prompt: tuple[str, str] = ("The river runs", "To be or"),
    how: Sampling | None = None,
    **more: Any,
) -> Scenario:
    lab = Lab(folder, FIXTURES)
    requests = [
        Request(
            id=f"r{i}",
            prompt=lab.encode(text),
            max_tokens=16,
            arrival=i,
            ignore_eos=True,
            sampling=how or Sampling(),
        )
        for i, text in enumerate(("The river runs", "To be or"))
    ]
    return lab.natural("drafts", k=K, requests=requests, **more)


@pytest.mark.parametrize("name", ["mtp", "lookup"])
def test_a_correct_drafter_passes_and_every_row_is_compared(
    name: str, request: pytest.FixtureRequest
) -> None:
    run: Run = request.getfixturevalue(name)
    evidence = run.check(run.trace)
    assert evidence.verdict is Verdict.PASS
    assert evidence.compared == sum(len(step.rows) for step in run.trace.steps)
    assert any(row.proposed for step in run.trace.steps for row in step.rows)


@pytest.mark.parametrize("place", range(K))
def test_one_other_draft_fails_and_names_its_place(mtp: Run, place: int) -> None:
    step, row = mtp.verify("r0", 2)
    logits = mtp.head("r0").after(len(mtp.tokens_before("r0", step)), K).logits[place]
    drafts = tuple(int(logits.argmin()) if j == place else d for j, d in enumerate(row.proposed))
    assert mtp.first(step, "r0", drafts).cause == "drafts differ"


def after(run: Run, step: int, off: int) -> tuple[int, ...]:
    count = len(run.tokens_before("r0", step)) + off
    return tuple(run.head("r0").after(count, K).tokens.tolist())


def without(run: Run, step: int, first: int, end: int) -> tuple[int, ...]:
    count = len(run.tokens_before("r0", step))
    head = run.head("r0")
    past = forget(head.past(count - 2), first=first, end=end)
    return tuple(head.after_other(count, K, past).tokens.tolist())


MISTAKES: dict[str, tuple[str, Callable[[Run, int, RowTrace], tuple[int, ...]]]] = {
    "of the row before": (
        "stale drafts",
        lambda run, step, row: [r.proposed for s, r in run.rows("r0") if s < step][-1],
    ),
    "none": ("no drafts", lambda run, step, row: ()),
    "too few": ("drafts missing", lambda run, step, row: row.proposed[:2]),
    "too many": ("too many drafts", lambda run, step, row: (*row.proposed, 7)),
    "of the other request": (
        "drafts of another request",
        lambda run, step, row: next((r.proposed for s, r in run.rows("r1") if s == step), row.proposed),
    ),
    "one token early": ("drafter read another place", lambda run, step, row: after(run, step, -1)),
    "one token late": ("drafter read another place", lambda run, step, row: after(run, step, 1)),
    "with an empty cache": ("drafter cache stale", lambda run, step, row: without(run, step, 0, 999)),
    "the first one missing": ("drafts shifted", lambda run, step, row: (*row.proposed[1:], 5)),
    "not in the vocabulary": ("drafts differ", lambda run, step, row: (-1, 5, 6)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_drafters_mistake_is_found_in_its_row_and_named(mtp: Run, mistake: str) -> None:
    """Few tokens may fit several mistakes; the right one is named more often than not."""
    cause, suspect = MISTAKES[mistake]
    causes = []
    for step, row in mtp.rows("r0")[2:-1]:
        drafts = suspect(mtp, step, row)
        old = [r.proposed for s, r in mtp.rows("r0") if s < step]
        if drafts != row.proposed and (drafts not in old or cause in ("stale drafts", "no drafts")):
            causes.append(mtp.first(step, "r0", drafts).cause)
    assert causes.count(cause) > len(causes) / 2, causes


def test_drafts_at_a_prompt_are_out_of_place(mtp: Run) -> None:
    step, row = mtp.rows("r1")[0]
    assert row.prompt_tokens
    assert mtp.first(step, "r1", (5, 6)).cause == "drafts out of place"


def test_drafts_from_before_a_preemption_are_stale(mtp: Run) -> None:
    _, row = mtp.verify("r0", 1)
    step, _ = mtp.verify("r0", 2)
    again = len(mtp.tokens_before("r0", step))
    for drafts in (row.proposed, (1, 2, 3)):  # those of a row before, and some that came into no row
        trace = mtp.with_row(step, "r0", prompt_tokens=again, resumed=True, kept=(), proposed=drafts)
        (found, *_) = mtp.check(trace).divergences
        assert (found.at.step, found.cause) == (step, "stale drafts")


def test_a_discarded_row_is_not_judged(mtp: Run) -> None:
    step, _ = mtp.verify("r0", -1)
    trace = mtp.with_row(step, "r0", discarded=True, committed=(), proposed=(1, 2, 3), finish_reason=None)
    assert mtp.check(trace).verdict is Verdict.PASS


def test_a_draft_that_is_second_best_by_less_than_the_noise_is_a_near_tie(mtp: Run, oracle: Oracle) -> None:
    step, row = mtp.verify("r0", 2)
    best, *rest = row.proposed
    twin = next(token for token in range(1000) if token not in row.proposed)
    lm_head = oracle.weights.lm_head.copy()
    lm_head[twin] = lm_head[best] * (1 - 1e-4)  # a token that is second best by next to nothing
    run = replace(mtp, oracle=Oracle(replace(oracle.weights, lm_head=lm_head)))
    logits = run.head("r0").after(len(run.tokens_before("r0", step)), 1).logits[0]
    gap = float((logits[best] - logits[twin]) / np.sqrt(np.mean(np.square(logits))))
    trace = run.with_row(step, "r0", proposed=(twin, *rest))
    for noise, verdict in ((gap / 9.9, Verdict.NEAR_TIE), (gap / 10.1, Verdict.FAIL)):
        assert run.check(trace, Gauge(noise=(noise,), signal=(1.0,))).verdict is verdict


def test_length_is_judged_only_where_k_is_known(mtp: Run) -> None:
    step, row = mtp.verify("r0", 2)
    shorter = mtp.with_row(step, "r0", proposed=row.proposed[:1])
    assert mtp.check(shorter).verdict is Verdict.FAIL
    silent = replace(shorter, steps=tuple(replace(s, k=None) for s in shorter.steps))
    assert mtp.check(silent).verdict is Verdict.PASS


def test_k_of_the_step_before_bounds_the_drafts(mtp: Run) -> None:
    step, row = mtp.verify("r0", 2)
    shorter = mtp.with_row(step, "r0", proposed=row.proposed[:2])
    steps = [replace(s, k=2) if s.index == step - 1 else s for s in shorter.steps]
    assert [d.at.request for d in mtp.check(replace(shorter, steps=tuple(steps))).divergences] == ["r1"]


def test_prompt_lookup_is_judged_too(lookup: Run) -> None:
    step, row = next((s, r) for s, r in lookup.rows("r0") if r.proposed)
    assert row.proposed == (3, 4, 1)
    assert lookup.first(step, "r0", (*row.proposed[:-1], 9)).cause == "drafts differ"
    assert lookup.first(step, "r0", ()).cause == "no drafts"


def test_sampled_drafts_may_be_whatever_their_law_allows(flat: Path, oracle: Oracle) -> None:
    how = Sampling(temperature=1.0, top_k=4, seed=1)
    run = run_of(flat, oracle, natural(flat, how=how, sample_drafts=True))
    assert run.check(run.trace).verdict is Verdict.PASS
    step, _ = run.verify("r0", 1)
    logits = run.head("r0").after(len(run.tokens_before("r0", step)), 1).logits[0]
    for rank, verdict in ((3, Verdict.PASS), (4, Verdict.FAIL)):
        trace = run.with_row(step, "r0", proposed=(int(np.argsort(-logits)[rank]),))
        silent = replace(trace, steps=tuple(replace(s, k=None) for s in trace.steps))
        assert run.check(silent).verdict is verdict


def test_a_script_proposes_its_next_turn(flat: Path, oracle: Oracle) -> None:
    plans = {"r0": Plan(turns=((3, 2), (2, 1), (3, 4))), "r1": Plan(guided=True, turns=((1, 2), (3, 1)))}
    run = run_of(flat, oracle, Lab(flat, FIXTURES).forced("script", k=K, plans=plans))
    assert run.check(run.trace).verdict is Verdict.PASS
    step, row = run.verify("r0", 1)
    before = run.verify("r0", 0)[1].proposed
    assert run.first(step, "r0", before[:2]).cause == "stale drafts"
    assert run.first(step, "r0", row.proposed[:1]).cause == "drafts missing"


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 1, 2], [3, 1, 2]),
        ([1, 2, 8, 1, 2, 9, 1, 2], [8, 1, 2]),  # the first of equally long ones
        ([5, 1, 2, 3, 7, 9, 1, 2, 3, 4, 1, 2, 3], [7, 9, 1]),
        ([4, 1, 2, 7, 3, 1, 2, 8, 3, 1, 2], [8, 3, 1]),  # the longer one
        ([6, 6, 6], [6]),
        ([1, 2, 3], []),
        ([], []),
    ],
)
def test_prompt_lookup_gives_what_stood_behind_the_same_words(tokens: list[int], expected: list[int]) -> None:
    assert ngram.propose(tokens, 3) == expected


def test_one_reading_of_a_history_drafts_as_a_fresh_drafter_after_every_token(oracle: Oracle) -> None:
    tokens = np.random.default_rng(3).integers(0, 1000, 14).tolist()
    hidden = oracle.fold().extend(tokens[:-1]).hidden
    head = Drafter(oracle, tokens, hidden)
    for count in range(2, len(tokens) + 1):
        fresh, kept = draft(oracle, tokens[:count], hidden[: count - 1], K), head.after(count, K)
        assert kept.tokens.tolist() == fresh.tokens.tolist()
        assert np.abs(kept.logits - fresh.logits).max() < 1e-9
        other = head.after_other(count, K, head.past(count - 2))
        assert np.abs(other.logits - fresh.logits).max() < 1e-9
