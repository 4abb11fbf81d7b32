"""The gated delta rule against the forms in which other people write it."""

from __future__ import annotations

import numpy as np

from harness.oracle import gdn

K, V, HV = 5, 3, 2


def tokens(count: int) -> list[tuple[np.ndarray, ...]]:
    """q, k [HV, K], v [HV, V], g, beta [HV] per token; keys of length one, as the model makes them."""
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(count):
        q, k, v = rng.normal(size=(HV, K)), rng.normal(size=(HV, K)), rng.normal(size=(HV, V))
        k /= np.linalg.norm(k, axis=-1, keepdims=True)
        drawn.append((q, k, v, -rng.exponential(size=HV), rng.uniform(size=HV)))
    return drawn


def test_one_update_is_the_papers_product_form() -> None:
    state = np.random.default_rng(1).normal(size=(HV, V, K))
    for q, k, v, g, beta in tokens(6):
        after, out = gdn.delta_rule(state, q, k, v, g, beta)
        for h in range(HV):
            erase = np.exp(g[h]) * (np.eye(K) - beta[h] * np.outer(k[h], k[h]))
            expected = state[h] @ erase + beta[h] * np.outer(v[h], k[h])
            np.testing.assert_allclose(after[h], expected, rtol=0, atol=1e-14)
            np.testing.assert_allclose(out[h], expected @ q[h], rtol=0, atol=1e-14)
        state = after


def test_a_full_write_without_decay_is_recalled_by_its_key() -> None:
    state = np.random.default_rng(2).normal(size=(HV, V, K))
    _, k, v, _, _ = tokens(1)[0]
    _, out = gdn.delta_rule(state, k, k, v, np.zeros(HV), np.ones(HV))
    np.testing.assert_allclose(out, v, rtol=0, atol=1e-14)


def test_the_old_state_is_left_as_it_was() -> None:
    state = np.ones((HV, V, K))
    gdn.delta_rule(state, *tokens(1)[0])
    assert (state == 1).all()


def test_the_convolution_sees_its_own_token_last_and_no_later_one() -> None:
    window = np.arange(12.0).reshape(6, 2)  # three lines of history, three tokens, two channels
    taps = np.array([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 0.0, 0.5]])
    expected = np.array(
        [
            [0 + 2 * 2 + 3 * 4 + 4 * 6, -1 + 0.5 * 7],
            [2 + 2 * 4 + 3 * 6 + 4 * 8, -3 + 0.5 * 9],
            [4 + 2 * 6 + 3 * 8 + 4 * 10, -5 + 0.5 * 11],
        ]
    )
    np.testing.assert_allclose(gdn.convolve(window, taps), expected / (1 + np.exp(-expected)), rtol=1e-14)
