"""Verification sampling against its exact law, and against three samplers that are wrong in a known way.

A run is judged by a chi-square test on the joint law of (accepted drafts, last token). The exact law is computed here
from the papers in a few lines of numpy, and so is the law of each wrong sampler: that gives the power of the very test
that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2, ncx2

from harness.engine.guided import Grammars, Vocabulary, apply_masks
from harness.engine.sampler import (
    CORRECT_SAMPLER,
    Sampler,
    SamplerDecisions,
    SamplingParams,
    sample_draft,
    target_probs,
    verify_greedy,
    verify_stochastic,
)
from harness.errors import EngineError, UsageError

Array = NDArray[np.float64]

ALPHA = 1e-6
POWER = 0.99
TRIALS = 2_000
PLAIN = SamplingParams(temperature=1.0)


# The exact law.


def residual(p: Array, q: Array) -> Array:
    excess = np.maximum(p - q, 0)
    return excess / excess.sum()


def not_renormalised(p: Array, q: Array) -> Array:
    # What is missing to 1 falls to the last token with mass: the end of the inverse cumulative law.
    excess = np.maximum(p - q, 0)
    excess[np.flatnonzero(excess)[-1]] += 1 - excess.sum()
    return excess


def exact_law(
    p: Array,
    q: Array,
    recovered: Callable[[Array, Array], Array] = residual,
    bonus: Callable[[Array, Array], Array] = lambda p, q: p,
) -> Array:
    """[n + 1, vocab] and [n, vocab] laws -> [n + 1, vocab] probability of (accepted drafts, last token)."""
    law, reached = np.zeros_like(p), 1.0
    for i, (p_i, q_i) in enumerate(zip(p, q, strict=False)):
        accepted = np.minimum(p_i, q_i).sum()  # sum over drafts of q(d) min(1, p(d) / q(d))
        law[i] = reached * (1 - accepted) * recovered(p_i, q_i)
        reached *= accepted
    law[-1] = reached * bonus(p[-1], q[-1])
    return law


# The test.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Cells of a law that are expected at least five times, and one bin for all others.

    The rule looks at expected counts only: rarest cells first, until the bin that they share holds five.
    """

    expected: Array
    owner: NDArray[np.intp]

    @classmethod
    def of(cls, law: Array, trials: int) -> Bins:
        expected = law.flatten() * trials
        order = np.argsort(expected, kind="stable")
        shared = int(np.searchsorted(np.cumsum(expected[order]), 5)) + 1
        shared = max(shared, int((expected < 5).sum()))
        owner = np.empty(expected.size, dtype=np.intp)
        owner[order] = np.maximum(np.arange(expected.size) - shared + 1, 0)
        return cls(expected=np.bincount(owner, expected), owner=owner)

    @property
    def critical(self) -> float:
        return float(chi2.isf(ALPHA, len(self.expected) - 1))

    def distance(self, counts: Array) -> float:
        merged = np.bincount(self.owner, counts.flatten(), len(self.expected))
        return float(((merged - self.expected) ** 2 / self.expected).sum())

    def power(self, other: Array, trials: int) -> float:
        """Probability that a sampler with the law ``other`` is found out."""
        return float(ncx2.sf(self.critical, len(self.expected) - 1, self.distance(other * trials)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Target logits, and drafts that are either fixed or drawn from logits of their own."""

    logits: torch.Tensor  # [n + 1, vocab], masked
    drafts: list[int] | None = None
    draft_logits: torch.Tensor | None = None  # [n, vocab]

    @property
    def p(self) -> Array:
        return torch.softmax(self.logits.double(), dim=-1).numpy()

    @property
    def q(self) -> Array:
        if self.draft_logits is not None:
            return torch.softmax(self.draft_logits.double(), dim=-1).numpy()
        assert self.drafts is not None
        # A draft without a law is a point mass; a placeholder is no mass at all.
        return np.stack([np.arange(self.logits.shape[1]) == draft for draft in self.drafts]).astype(float)

    def count(self, decisions: SamplerDecisions, trials: int, seed: int) -> Array:
        """[n + 1, vocab] counts of (accepted drafts, last token)."""
        sampler, generator = Sampler(decisions=decisions), torch.Generator().manual_seed(seed)
        counts = np.zeros(tuple(self.logits.shape))
        for _ in range(trials):
            if self.draft_logits is None:
                drafts, q = list(self.drafts or []), None
            else:
                drawn = [sample_draft(row, PLAIN, generator) for row in self.draft_logits]
                drafts, q = [token for token, _ in drawn], torch.stack([law for _, law in drawn])
            committed = sampler.sample(self.logits, drafts, q, PLAIN, generator)
            assert committed[:-1] == drafts[: len(committed) - 1]
            counts[len(committed) - 1, committed[-1]] += 1
        return counts


@pytest.fixture(scope="module")
def settings(peaked: Path) -> dict[str, Setting]:
    dice = torch.Generator().manual_seed(5)
    small = torch.randn(4, 9, generator=dice)
    drafter = torch.randn(3, 9, generator=dice)
    vocabulary = Vocabulary.load(peaked)
    a, b, c = (int(vocabulary.info.decoded_vocab.index(letter)) for letter in (b"a", b"b", b"c"))
    guide = Grammars(vocabulary).guide("regex", "[a-d]{1,40}")
    masks = torch.zeros(4, vocabulary.words, dtype=torch.int32)
    guide.fill_masks([a, b, c], masks)
    large = torch.randn(4, vocabulary.size, generator=dice)
    large[[0, 1, 2], [a, b, c]] += 4.0  # likely drafts: every row of the window is reached often
    # Some of the drafter's mass lies outside the grammar. Whatever legal letter is drafted, the next mask is the same.
    large_drafter = torch.full((3, vocabulary.size), -torch.inf)
    large_drafter[:, [a, b, c, 0, 1]] = torch.randn(3, 5, generator=dice)
    large_drafter[[0, 1, 2], [a, b, c]] += 2.0
    return {
        "point mass": Setting(logits=small, drafts=small[:3].argmax(dim=-1).tolist()),
        "placeholder": Setting(logits=small, drafts=[int(small[0].argmax()), -1, 3]),
        "draft law": Setting(logits=small, draft_logits=drafter),
        "point mass, grammar": Setting(logits=apply_masks(large, masks), drafts=[a, b, c]),
        "draft law, grammar": Setting(logits=apply_masks(large, masks), draft_logits=large_drafter),
    }


SETTINGS = ("point mass", "placeholder", "draft law", "point mass, grammar", "draft law, grammar")
REACHES_BONUS = tuple(name for name in SETTINGS if name != "placeholder")

WRONG = {
    "residual not renormalised": (
        replace(CORRECT_SAMPLER, residual_law=lambda p, q: (p - q).clamp(min=0.0)),
        {"recovered": not_renormalised},
    ),
    "recovered token from p": (
        replace(CORRECT_SAMPLER, residual_law=lambda p, q: p),
        {"recovered": lambda p, q: p},
    ),
    "bonus token from the draft law": (
        replace(CORRECT_SAMPLER, bonus_law=lambda p, q: p if q is None else q),
        {"bonus": lambda p, q: q},
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_committed_tokens_follow_the_exact_law(name: str, settings: dict[str, Setting]) -> None:
    setting = settings[name]
    law = exact_law(setting.p, setting.q)
    counts = setting.count(CORRECT_SAMPLER, TRIALS, seed=1)
    bins = Bins.of(law, TRIALS)
    assert bins.expected.min() >= 5
    assert len(bins.expected) > 10
    assert bins.distance(counts) < bins.critical
    assert not counts[law == 0].any()


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("name", REACHES_BONUS)
def test_a_wrong_sampler_is_found_out(name: str, fault: str, settings: dict[str, Setting]) -> None:
    setting, (decisions, laws) = settings[name], WRONG[fault]
    bins = Bins.of(exact_law(setting.p, setting.q), TRIALS)
    assert bins.power(exact_law(setting.p, setting.q, **laws), TRIALS) >= POWER
    assert bins.distance(setting.count(decisions, TRIALS, seed=2)) > bins.critical


@pytest.mark.parametrize("name", REACHES_BONUS)
def test_the_first_committed_token_has_the_target_law(name: str, settings: dict[str, Setting]) -> None:
    setting = settings[name]
    sampler, generator = Sampler(), torch.Generator().manual_seed(3)
    counts = np.zeros(setting.logits.shape[1])
    for _ in range(TRIALS):
        if setting.draft_logits is None:
            drafts, q = list(setting.drafts or []), None
        else:
            token, law = sample_draft(setting.draft_logits[0], PLAIN, generator)
            drafts, q = [token], law[None]
        drafts = drafts[:1]
        counts[sampler.sample(setting.logits[:2], drafts, q, PLAIN, generator)[0]] += 1
    bins = Bins.of(setting.p[0], TRIALS)
    assert bins.distance(counts) < bins.critical


# Edges.


def one_hot(*tokens: int, vocab: int = 5) -> torch.Tensor:
    return torch.eye(vocab)[list(tokens)]


def some_logits(rows: int, vocab: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_drafts_from_the_target_law_itself_are_always_accepted() -> None:
    p, dice = target_probs(some_logits(4), PLAIN), generator()
    for _ in range(300):
        drafts = torch.multinomial(p[:3], 1, generator=dice)[:, 0].tolist()
        assert verify_stochastic(p, drafts, p[:3], dice)[:3] == drafts


def test_drafts_outside_the_target_law_are_never_accepted() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    q = torch.tensor([[0.0, 0.0, 0.5, 0.5]])
    for seed in range(100):
        for law in (q, None):
            committed = verify_stochastic(p, [2], law, generator(seed))
            assert len(committed) == 1
            assert committed[0] in (0, 1)


def test_a_draft_that_its_own_law_calls_impossible_is_judged_by_the_target() -> None:
    assert verify_stochastic(one_hot(1, 2), [1], one_hot(0), generator()) == [1, 2]
    assert verify_stochastic(one_hot(1, 2), [3], one_hot(0), generator()) == [1]


def test_a_rejection_by_rounding_falls_back_to_the_target_law() -> None:
    # p is q up to rounding, so there is no excess to recover from.
    reject = replace(CORRECT_SAMPLER, acceptance=lambda p, q: torch.zeros_like(p))
    assert verify_stochastic(one_hot(3, 1), [3], one_hot(3), generator(), reject) == [3]


def test_a_law_that_falls_short_of_one_gives_no_token_without_mass() -> None:
    short = replace(CORRECT_SAMPLER, bonus_law=lambda p, q: p / 2)
    assert {verify_stochastic(one_hot(1), [], None, generator(seed), short)[0] for seed in range(50)} == {1}


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("with_law", [False, True])
def test_a_placeholder_is_rejected_at_every_position(position: int, with_law: bool, stochastic: bool) -> None:
    # All mass on the last token: as an index, -1 would find it and be accepted.
    drafts = [4] * position + [-1] + [4] * (3 - position)
    logits = one_hot(4, 4, 4, 4, 4).log()
    q = one_hot(4, 4, 4, 4) if with_law else None
    params = PLAIN if stochastic else SamplingParams()
    assert Sampler().sample(logits, drafts, q, params, generator()) == [4] * (position + 1)


@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.parametrize("places", [0, 1, 2])
def test_a_refused_draft_counts_as_rejected_whether_it_is_cut_or_leaves_a_placeholder(
    kept: int, places: int
) -> None:
    # The drafter gave half to token 0, half to what the grammar refuses: what is left of the target is token 1.
    p = torch.tensor([[0.0, 0.0, 1.0, 0.0]] * kept + [[0.5, 0.5, 0.0, 0.0]] * (places + 1))
    refused = torch.tensor([0.5, 0.0, 0.0, 0.5])
    drafts, q = [2] * kept + [-1] * places, one_hot(*[2] * kept, vocab=4)
    unaware = set()
    for seed in range(40):
        committed = verify_stochastic(p, drafts, q, generator(seed), refused=refused)
        assert committed == [2] * kept + [1]
        unaware.add(verify_stochastic(p, drafts, q, generator(seed))[-1])
    assert unaware == {0, 1}


def test_a_refused_draft_is_no_matter_before_the_others_are_accepted() -> None:
    p = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    refused = torch.tensor([0.5, 0.0, 0.0, 0.5])
    for seed in range(40):
        assert verify_stochastic(p, [2, -1], one_hot(2, vocab=4), generator(seed), refused=refused) == [1]


def test_a_placeholder_that_is_taken_for_a_draft_is_accepted() -> None:
    """Its law is zero, so any chance at all of the token that is looked up in its place divides to certainty."""
    wrong = replace(CORRECT_SAMPLER, is_draft=lambda drafts: torch.ones_like(drafts, dtype=torch.bool))
    p = target_probs(some_logits(3), PLAIN)
    for q in (None, p[:1], p[:2]):
        assert verify_stochastic(p, [int(p[0].argmax()), -1], q, generator(3), wrong)[1:2] == [-1]
        assert -1 not in verify_stochastic(p, [int(p[0].argmax()), -1], q, generator(3))


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-6, 2e-5])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    for seed in range(50):
        logits = some_logits(4, seed=seed)
        drafts = logits[:3].argmax(dim=-1).tolist()
        drafts[seed % 3] = seed % 12
        cold = SamplingParams(temperature=temperature)
        assert Sampler().sample(logits, drafts, None, cold, generator(seed)) == verify_greedy(logits, drafts)


def test_the_best_token_alone_is_greedy_also_among_equals() -> None:
    for seed in range(50):
        logits = some_logits(4, vocab=300, seed=seed).round()
        drafts = logits[:3].argmax(dim=-1).tolist()
        for only in (SamplingParams(temperature=2.0, top_k=1), SamplingParams(temperature=2.0, top_p=1e-9)):
            assert Sampler().sample(logits, drafts, None, only, generator(seed)) == verify_greedy(
                logits, drafts
            )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("draft", range(4))
def test_a_mask_that_leaves_one_token_commits_it(draft: int, temperature: float) -> None:
    masks = torch.full((2, 1), 0b100, dtype=torch.int32)
    logits = apply_masks(some_logits(2, vocab=4), masks)
    for q in (None, torch.full((1, 4), 0.25)):
        committed = Sampler().sample(logits, [draft], q, SamplingParams(temperature=temperature), generator())
        assert committed == ([2, 2] if draft == 2 else [2])


@pytest.mark.parametrize("temperature", [0.0, 1e-9])
def test_a_row_without_drafts_commits_one_token(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    logits = one_hot(3).log()
    assert Sampler().sample(logits, [], None, params, generator()) == [3]
    assert Sampler().sample(logits, [], torch.empty(0, 5), params, generator()) == [3]


@pytest.mark.parametrize(
    ("drafts", "committed"),
    [([1, 2, 3], [1, 2, 3, 4]), ([0, 2, 3], [1]), ([1, 0, 3], [1, 2]), ([1, 2, 0], [1, 2, 3])],
)
def test_greedy_commits_up_to_the_first_difference(drafts: list[int], committed: list[int]) -> None:
    assert verify_greedy(one_hot(1, 2, 3, 4), drafts) == committed


# Random streams.


def test_the_company_in_a_batch_does_not_change_a_request() -> None:
    def steps(dice: torch.Generator, between: Callable[[int], object]) -> list[list[int]]:
        committed = []
        for step in range(20):
            between(step)
            n = step % 4
            logits = some_logits(n + 1, seed=step)
            committed.append(Sampler().sample(logits, [step % 12] * n, None, PLAIN, dice))
        return committed

    other = generator(8)

    def company(step: int) -> None:
        torch.manual_seed(step)
        Sampler().sample(some_logits(step % 3 + 1), [1] * (step % 3), None, PLAIN, other)

    assert steps(generator(7), lambda step: None) == steps(generator(7), company)


@pytest.mark.parametrize("draft", [0, 4, -1])
def test_a_step_draws_as_often_whatever_becomes_of_its_drafts(draft: int) -> None:
    used, expected = generator(), generator()
    verify_stochastic(one_hot(4, 4, 4), [draft, 4], None, used)
    torch.rand(3, generator=expected, dtype=torch.float64)
    assert used.get_state().equal(expected.get_state())


# Laws from logits.


def naive_probs(logits: list[float], temperature: float, top_k: int, top_p: float) -> Array:
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    kept = order[: top_k or len(order)]
    weights = {token: np.exp((logits[token] - logits[order[0]]) / temperature) for token in kept}
    total, before, nucleus = sum(weights.values()), 0.0, {}
    for token in kept:
        if before / total < top_p:
            nucleus[token] = weights[token]
        before += weights[token]
    probs = np.zeros(len(logits))
    for token, weight in nucleus.items():
        probs[token] = weight / sum(nucleus.values())
    return probs


@given(
    logits=st.lists(st.integers(-4, 4).map(float) | st.just(-np.inf), min_size=1, max_size=9),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.integers(0, 10),
    top_p=st.sampled_from([0.113, 0.517, 0.911, 1.0]),
)
def test_target_probs_equal_the_naive_ones(
    logits: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    logits[0] = 1.0  # at least one token is allowed
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    rows = torch.tensor([logits, logits[::-1]], dtype=torch.float64)
    probs = target_probs(rows, params)
    np.testing.assert_allclose(probs[0], naive_probs(logits, temperature, top_k, top_p), atol=1e-12)
    np.testing.assert_allclose(probs[1], naive_probs(logits[::-1], temperature, top_k, top_p), atol=1e-12)


def test_huge_logits_do_not_overflow() -> None:
    assert target_probs(torch.tensor([[1e38, -1e38, 0.0]]), PLAIN).tolist() == [[1.0, 0.0, 0.0]]
    half = torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16)
    assert target_probs(half, PLAIN).dtype == torch.float32


def test_a_greedy_draft_has_all_mass_on_the_best_token() -> None:
    token, law = sample_draft(torch.tensor([0.0, 3.0, 1.0]), SamplingParams(), generator())
    assert (token, law.tolist()) == (1, [0.0, 1.0, 0.0])


# Errors.


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_any_legal_token_is_an_error_only_if_it_counts(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    logits = one_hot(1, 2).log()
    logits[1] = -torch.inf
    assert Sampler().sample(logits, [3], None, params, generator()) == [1]
    with pytest.raises(EngineError, match="no token to"):
        Sampler().sample(logits, [1], None, params, generator())
    logits[1] = torch.nan
    with pytest.raises(EngineError, match="nan"):
        Sampler().sample(logits, [1], None, params, generator())
    with pytest.raises(EngineError, match="no token to draw"):
        sample_draft(torch.full((4,), -torch.inf), params, generator())


def test_rows_and_drafts_must_match() -> None:
    for params in (SamplingParams(), PLAIN):
        with pytest.raises(EngineError, match="2 drafts need 3 rows, got 2"):
            Sampler().sample(some_logits(2), [1, 2], None, params, generator())
        with pytest.raises(EngineError, match=r"lie in \[-1, 12\), got \[1, 12\]"):
            Sampler().sample(some_logits(3), [1, 12], None, params, generator())
    with pytest.raises(EngineError, match="2 drafts need as many rows of draft probabilities, got 1"):
        Sampler().sample(some_logits(3), [1, 2], torch.ones(1, 12), PLAIN, generator())


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
    ],
)
def test_impossible_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SamplingParams(**wrong)
