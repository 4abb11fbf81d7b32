"""The acceptance laws keep their promise: whatever the drafter, what is committed is distributed as the target says."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from harness.oracle.accept import accept_greedy, committed_law, first_token_law, transform_logits

V = 4


def laws(rows: int, seed: int, zeros: float = 0.2) -> np.ndarray:
    """Random distributions [rows, V], some entries zero."""
    rng = np.random.default_rng(seed)
    weight = rng.exponential(size=(rows, V)) * (rng.uniform(size=(rows, V)) >= zeros)
    weight[:, 0] += 1e-3
    return weight / weight.sum(axis=-1, keepdims=True)


def close(seen: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(seen, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("seed", range(20))
def test_what_may_happen_sums_to_one(seed: int) -> None:
    p, q = laws(4, seed), laws(3, seed + 100)
    for drafts in product(range(-1, V), repeat=3):
        assert close(committed_law(p, None, drafts).sum(), 1)
        if all(d < 0 or q[i, d] > 0 for i, d in enumerate(drafts)):
            assert close(committed_law(p, q, drafts).sum(), 1)


@pytest.mark.parametrize("seed", range(20))
def test_the_first_committed_token_is_the_targets_whatever_a_certain_drafter_says(seed: int) -> None:
    p = laws(3, seed)
    for drafts in product(range(V), repeat=2):
        assert close(first_token_law(committed_law(p, None, drafts), drafts), p[0])


@pytest.mark.parametrize("seed", range(20))
def test_committed_sequences_have_the_targets_joint_law(seed: int) -> None:
    """Sums over every pair of drafts that a random drafter may draw, with target rows that depend on the prefix."""
    first, second, third = laws(1, seed), laws(V, seed + 1), laws(V * V, seed + 2).reshape(V, V, V)
    q_first, q_second = laws(1, seed + 3, zeros=0), laws(V, seed + 4, zeros=0)
    one, two, three = np.zeros(V), np.zeros((V, V)), np.zeros((V, V, V))
    for x, y in product(range(V), repeat=2):
        drawn = q_first[0, x] * q_second[x, y]
        p, q = np.stack([first[0], second[x], third[x, y]]), np.stack([q_first[0], q_second[x]])
        law = drawn * committed_law(p, q, [x, y])
        one += first_token_law(law, [x, y])
        two[x] += first_token_law(law[1:], [y])
        three[x, y] += law[2]
    kept_one = np.minimum(first[0], q_first[0])
    kept_two = kept_one[:, None] * np.minimum(second, q_second)
    assert close(one, first[0])
    assert close(two, kept_one[:, None] * second)
    assert close(three, kept_two[:, :, None] * third)


def test_a_placeholder_is_never_accepted_and_costs_nothing() -> None:
    p = laws(3, 0)
    law = committed_law(p, None, [-1, 2])
    assert close(law[0], p[0])
    assert not law[1:].any()


def test_a_drafter_that_copies_the_target_is_always_accepted() -> None:
    p = laws(3, 1, zeros=0)
    law = committed_law(p, p[:2], [1, 3])
    assert close(law[2], p[2])
    assert not law[:2].any()


@pytest.mark.parametrize("seed", range(20))
def test_greedy_is_the_limit_of_temperature_zero(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(4, V))
    p = transform_logits(logits, temperature=0)
    assert close(p, transform_logits(logits, temperature=1e-4))
    for drafts in product(range(-1, V), repeat=3):
        tokens = accept_greedy(logits.argmax(axis=-1).tolist(), drafts)
        law = committed_law(p, None, drafts)
        assert law[len(tokens) - 1, tokens[-1]] == 1
        assert tokens[:-1] == list(drafts[: len(tokens) - 1])


def test_greedy_commits_one_token_more_than_it_accepts() -> None:
    assert accept_greedy([4, 5, 6], [4, 5]) == [4, 5, 6]
    assert accept_greedy([4, 5, 6], [4, 9]) == [4, 5]
    assert accept_greedy([4, 5, 6], [9, 5]) == [4]
    assert accept_greedy([4, 5, 6], [4, -1]) == [4, 5]
    assert accept_greedy([4], []) == [4]


def test_laws_refuse_what_cannot_have_happened() -> None:
    p, q = laws(2, 0), np.array([[0.5, 0.5, 0.0, 0.0]])
    with pytest.raises(ValueError, match="probability 0"):
        committed_law(p, q, [2])
    with pytest.raises(ValueError, match="do not fit"):
        committed_law(p, q, [0, 1])
    with pytest.raises(ValueError, match="2 target rows"):
        accept_greedy([1, 2, 3], [1])


def test_transforms_keep_what_the_request_allows() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    halves = transform_logits(logits, temperature=0.5)
    assert close(halves, np.array([16, 9, 4, 1]) / 30)
    assert close(transform_logits(logits, temperature=1, top_k=2), np.array([4, 3, 0, 0]) / 7)
    assert close(transform_logits(logits, temperature=1, top_p=0.69), np.array([4, 3, 0, 0]) / 7)
    assert close(transform_logits(logits, temperature=1, top_p=0.71), np.array([4, 3, 2, 0]) / 9)
    assert close(transform_logits(logits, temperature=1, top_p=1e-9), np.array([1, 0, 0, 0]))
    assert close(transform_logits(logits, temperature=1, top_k=3, top_p=0.7), np.array([4, 3, 0, 0]) / 7)
    assert close(transform_logits(logits, temperature=1, top_k=0, top_p=1), np.array([4, 3, 2, 1]) / 10)


def test_the_mask_comes_before_every_other_transform() -> None:
    logits, allowed = np.log([[0.4, 0.3, 0.2, 0.1]] * 2), np.array([[False, True, True, True], [True] * 4])
    kept = transform_logits(logits, temperature=1, top_k=2, allowed=allowed)
    assert close(kept, np.array([[0, 0.6, 0.4, 0], [4 / 7, 3 / 7, 0, 0]]))
    assert transform_logits(logits, temperature=0, allowed=allowed).argmax(axis=-1).tolist() == [1, 0]


def test_ties_are_kept_by_top_k_and_broken_by_id_elsewhere() -> None:
    logits = np.zeros(4)
    assert close(transform_logits(logits, temperature=1, top_k=2), np.full(4, 0.25))
    assert close(transform_logits(logits, temperature=1, top_p=0.5), np.array([0.5, 0.5, 0, 0]))
    assert close(transform_logits(logits, temperature=0), np.array([1, 0, 0, 0]))
