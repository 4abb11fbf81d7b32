"""Speculation changes no law: sampled answers have the distribution of plain sampling, guided or free.

One request, many seeds, in large batches; the exact law of its first tokens comes from the oracle's logits. The
statistics have their own power shown: a sampler with one wrong decision is found out by the same test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

from harness import Grammar, Judge, Lab, Request, Sampling, Scenario, Trace, Verdict
from harness.engine.config import EngineConfig
from harness.engine.engine import Engine
from harness.engine.guided import Grammars
from harness.engine.kernels import NaiveKernels
from harness.engine.loader import Loader
from harness.engine.policy import POLICY
from harness.engine.request import EngineRequest
from harness.engine.sampler import CORRECT_SAMPLER, SamplerDecisions, SamplingParams
from harness.oracle.accept import transform_logits
from harness.oracle.grammar import GrammarOracle
from harness.oracle.model import Fold, Oracle
from harness.targets.embedded import EmbeddedTarget, under_each_variant

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
ALPHA = 1e-6
"""A correct sampler fails one of a million tests like these."""
LEAST_EXPECTED = 5.0
SEEDS, AT_A_TIME = 1000, 250
"""The rest waits for the memory of those before."""
TOKENS = 4
"""The first comes from the prompt's own step; three have been through verification."""
TEMPERATURE, TOP_K, TOP_P = 3.0, 4, 0.95
WITHOUT_E = r"[a-df-zA-Z ,.]{8,60}"
"""About half of what the drafter proposes contains the forbidden letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the one request is drafted and constrained."""

    sample_drafts: bool
    grammar: str | None = None


SETTINGS = {
    "argmax drafts": Setting(sample_drafts=False),
    "sampled drafts": Setting(sample_drafts=True),
    "argmax drafts, guided": Setting(sample_drafts=False, grammar=WITHOUT_E),
    "sampled drafts, guided": Setting(sample_drafts=True, grammar=WITHOUT_E),
}
FAULTS = {
    "argmax drafts": replace(CORRECT_SAMPLER, residual_law=lambda p, q: p),
    # What seems right: nothing is left to verify, so draw from the target's law.
    "sampled drafts, guided": replace(CORRECT_SAMPLER, refused_law=lambda p, q: p),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How often each answer came, and what happened on the way."""

    counts: Counter[tuple[int, ...]]
    accepted: int
    rejected: int
    refused: int


@pytest.fixture(scope="module")
def prompt(peaked: Path) -> tuple[int, ...]:
    lab = Lab(peaked, FIXTURES)
    return lab.encode(lab.prompts("text")[1])[:6]


@pytest.fixture(scope="module")
def loader(peaked: Path) -> Loader:
    return Loader(peaked)


@pytest.fixture(scope="module")
def exact(peaked: Path, prompt: tuple[int, ...]) -> Callable[[str | None], Mapping[tuple[int, ...], float]]:
    """The joint law of the first tokens without speculation, from the oracle's logits alone."""
    oracle, known = Oracle.load(peaked), {}

    def exact(grammar: str | None) -> Mapping[tuple[int, ...], float]:
        if grammar not in known:
            known[grammar] = joint_law(oracle, peaked, prompt, grammar)
        return known[grammar]

    return exact


def joint_law(
    oracle: Oracle, folder: Path, prompt: tuple[int, ...], grammar: str | None
) -> dict[tuple[int, ...], float]:
    judge = GrammarOracle.compile(folder, "regex", grammar) if grammar else None
    law: dict[tuple[int, ...], float] = {}

    def walk(fold: Fold, logits: np.ndarray, answer: tuple[int, ...], probability: float) -> None:
        if len(answer) == TOKENS:
            law[answer] = probability
            return
        allowed = judge.next_mask(answer) if judge else None
        p = transform_logits(logits, temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P, allowed=allowed)
        for token in np.flatnonzero(p).tolist():
            ahead = fold.copy()
            walk(ahead, ahead.push(token).logits, (*answer, token), probability * float(p[token]))

    start = oracle.fold()
    walk(start, start.extend(prompt).logits[-1], (), 1.0)
    return law


def sample(
    loader: Loader,
    prompt: tuple[int, ...],
    setting: Setting,
    decisions: SamplerDecisions = CORRECT_SAMPLER,
) -> Result:
    """The same request under every seed, in large batches."""
    config = EngineConfig(
        k=3, sample_drafts=setting.sample_drafts, max_num_seqs=AT_A_TIME, token_budget=10**6, max_model_len=16
    )
    policy = replace(POLICY, sampler=decisions)
    parts, grammars = (config, policy, NaiveKernels()), Grammars(loader.vocabulary)
    engine = Engine(loader.model(*parts), loader.head(*parts), grammars, config, policy)
    requests = [
        EngineRequest(
            id=f"seed {seed}",
            prompt=prompt,
            max_tokens=TOKENS,
            sampling=SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P, seed=seed),
            guide=grammars.guide("regex", setting.grammar) if setting.grammar else None,
        )
        for seed in range(SEEDS)
    ]
    for request in requests:
        engine.add(request)
    accepted = rejected = refused = 0
    while step := engine.step():
        for row in step.rows:
            if not row.in_prompt:
                accepted += len(row.committed) - 1
                rejected += len(row.committed) <= len(row.kept) and not row.request.finish_reason
                refused += row.before.grammar_kept < len(row.before.proposed)
    answers = Counter(tuple(request.tokens[len(prompt) :]) for request in requests)
    return Result(counts=answers, accepted=accepted, rejected=rejected, refused=refused)


def p_value(counts: Counter[tuple[int, ...]], law: Mapping[tuple[int, ...], float]) -> float:
    """Of Pearson's test; rare answers share bins until each bin expects at least ``LEAST_EXPECTED``."""
    assert set(counts) <= set(law), "an answer came that the law forbids"
    expected, observed = [0.0], [0]
    for answer, probability in sorted(law.items(), key=lambda item: item[1]):
        if expected[-1] >= LEAST_EXPECTED:
            expected.append(0.0)
            observed.append(0)
        expected[-1] += probability * counts.total()
        observed[-1] += counts[answer]
    assert min(expected) >= LEAST_EXPECTED
    e, o = np.array(expected), np.array(observed)
    return float(chi2.sf(((o - e) ** 2 / e).sum(), len(e) - 1))


Exact = Callable[[str | None], Mapping[tuple[int, ...], float]]


@pytest.mark.parametrize("name", SETTINGS)
def test_first_tokens_have_the_law_of_plain_sampling(
    loader: Loader, prompt: tuple[int, ...], exact: Exact, name: str
) -> None:
    law, result = exact(SETTINGS[name].grammar), sample(loader, prompt, SETTINGS[name])
    assert sum(law.values()) == pytest.approx(1.0)
    assert len(law) > 50
    assert min(result.accepted, result.rejected) > 50
    assert result.refused > 100 or SETTINGS[name].grammar is None
    assert p_value(result.counts, law) > ALPHA


@pytest.mark.parametrize("name", FAULTS)
def test_one_wrong_decision_is_found_out(
    loader: Loader, prompt: tuple[int, ...], exact: Exact, name: str
) -> None:
    wrong = sample(loader, prompt, SETTINGS[name], FAULTS[name])
    assert p_value(wrong.counts, exact(SETTINGS[name].grammar)) < ALPHA


def requests_of(lab: Lab, count: int = 10) -> list[Request]:
    """Guided and free requests in turn; every kind of cut occurs, each under another seed."""
    cuts = (
        {"temperature": 0.8},
        {"temperature": 0.8, "top_k": 5},
        {"temperature": 1.2, "top_p": 0.9},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.95},
        {"temperature": 2.0, "top_k": 3},
    )
    return [
        replace(request, sampling=Sampling(seed=i, **cuts[i // 2 % len(cuts)]))
        for i, request in enumerate(lab.mixed_requests(count, max_tokens=24))
    ]


@pytest.mark.parametrize("sample_drafts", [False, True], ids=["argmax drafts", "sampled drafts"])
class TestNaturalRuns:
    @pytest.fixture
    def scenario(self, peaked: Path, sample_drafts: bool) -> Scenario:
        return Scenario(
            name="sampled",
            requests=tuple(requests_of(Lab(peaked, FIXTURES))),
            k=3,
            sample_drafts=sample_drafts,
            must_observe={"rollback": 10, "all drafts accepted": 3, "grammar trim": 5, "unequal rows": 5},
        )

    @pytest.fixture
    def target(self, peaked: Path) -> EmbeddedTarget:
        return under_each_variant(peaked)("fixed")

    def test_every_check_passes(self, peaked: Path, scenario: Scenario, target: EmbeddedTarget) -> None:
        trace, judge = target.run(scenario), Judge(peaked)
        judgement = judge.judge(scenario, trace, judge.calibrate(target, scenario, trace))
        assert judgement.verdict in (Verdict.PASS, Verdict.NEAR_TIE), judgement.evidence

    def test_a_request_has_the_same_tokens_in_any_company(
        self, scenario: Scenario, target: EmbeddedTarget
    ) -> None:
        crowd = answers(target.run(scenario))
        shuffled = replace(scenario, requests=scenario.requests[::2] + scenario.requests[1::2])
        padded = replace(scenario, capture_sizes=(16, 32, 64))
        assert answers(target.run(scenario, reverse_rows=True)) == crowd
        assert answers(target.run(shuffled)) == crowd
        assert answers(target.run(padded)) == crowd
        for request in scenario.requests:
            alone = answers(target.run(replace(scenario, requests=(request,))))
            assert alone[request.id] == crowd[request.id]

    def test_another_seed_gives_other_tokens(self, scenario: Scenario, target: EmbeddedTarget) -> None:
        others = replace(
            scenario,
            requests=tuple(
                replace(request, sampling=replace(request.sampling, seed=request.sampling.seed + 100))
                for request in scenario.requests
            ),
        )
        before, after = answers(target.run(scenario)), answers(target.run(others))
        assert sum(before[name] != after[name] for name in before) > len(before) // 2


def answers(trace: Trace) -> dict[str, tuple[int, ...]]:
    assert trace.crash is None, trace.crash
    return {name: completion.tokens for name, completion in trace.completions.items()}


def test_grammars_hold_for_every_seed(peaked: Path) -> None:
    """Whatever is drawn, a guided answer that ended is a sentence of its grammar."""
    judge = GrammarOracle.compile(peaked, "regex", WITHOUT_E)
    lab = Lab(peaked, FIXTURES)
    requests = tuple(
        Request(
            id=f"r{seed}",
            prompt=lab.encode("The "),
            max_tokens=12,
            grammar=Grammar(kind="regex", text=WITHOUT_E),
            sampling=Sampling(temperature=2.0, top_k=20, seed=seed),
        )
        for seed in range(16)
    )
    trace = under_each_variant(peaked)("fixed").run(
        Scenario(name="seeds", requests=requests, k=3, sample_drafts=True)
    )
    for tokens in answers(trace).values():
        assert judge.legal_prefix(tokens) == len(tokens) > 0
