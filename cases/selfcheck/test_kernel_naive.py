"""The naive twin against loops over single rows and tokens, in float64, that share nothing with it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from harness.engine.kernels import CORRECT, Decision, NaiveKernels
from harness.engine.kernels.samples import Batch, Row, Shape, batch
from harness.errors import EngineError

TWIN = NaiveKernels()
PROMPTS = (1, 2, 3, 63, 64, 65, 130)


# The algorithm, one row at a time.


def convolve_row(x, history, weight, bias):
    """silu(conv) of inputs x [n, D] after history [W-1, D]."""
    inputs = np.concatenate([history, x])
    out = []
    for j in range(len(x)):
        y = bias.copy()
        for i in range(weight.shape[1]):
            y = y + inputs[j + i] * weight[:, i]
        out.append(y / (1 + np.exp(-y)))
    return np.array(out)


def fold_row(h, q, k, v, g, beta):
    """Gated delta rule from h [HV, V, K]; outputs [n, HV, V] and the state after every token [n, HV, V, K]."""
    h, outputs, states = h.copy(), [], []
    for j in range(len(v)):
        o = np.empty_like(v[j])
        for head in range(v.shape[1]):
            key = head * k.shape[1] // v.shape[1]
            kj = k[j, key] / np.sqrt((k[j, key] ** 2).sum() + 1e-6)
            qj = q[j, key] / np.sqrt((q[j, key] ** 2).sum() + 1e-6) / np.sqrt(k.shape[2])
            S = h[head] * np.exp(g[j, head])
            S = S + np.outer(beta[j, head] * (v[j, head] - S @ kj), kj)
            h[head], o[head] = S, S @ qj
        outputs.append(o)
        states.append(h.copy())
    return np.array(outputs), np.array(states)


def number(tensor):
    return tensor.to(torch.float64).numpy().copy()


def relative(actual, expected):
    return np.linalg.norm(number(actual) - expected) / max(np.linalg.norm(expected), 1e-30)


class Rows:
    """Walks a batch row by row: ``for b, slots, tokens, row in Rows(sample)`` yields the live ones only."""

    def __init__(self, sample: Batch):
        self.sample = sample

    def __iter__(self):
        at = 0
        for b, row in enumerate(self.sample.rows):
            tokens = slice(at, at + row.length)
            at += row.length
            if row.length and not row.padding:
                yield b, self.sample.state_indices[b].tolist(), tokens, row


def every_pair(k, seed):
    """All (length, accepted) pairs for k drafts, among zero-length and padded rows, in random order."""
    rows = [Row(length=n, accepted=a) for n in range(1, k + 2) for a in range(1, k + 2)]
    rows += [Row(length=0, accepted=k + 1)] * 3 + [
        Row(length=n, accepted=99, padding=True) for n in (1, k + 1)
    ]
    random.Random(seed).shuffle(rows)
    return rows


def prompts(seed):
    rows = [Row(length=n, known=known) for n in PROMPTS for known in (False, True)]
    rows += [Row(length=0), Row(length=5, padding=True)]
    random.Random(seed).shuffle(rows)
    return rows


def check_update(sample, out, before, decide=lambda row: row.accepted):
    """Outputs within 1e-6 of the loop; lines bit-exact, in the whole pool."""
    x, weight, bias = number(sample.x), number(sample.weight), number(sample.bias)
    W = weight.shape[1]
    expected = before.clone()
    live = torch.zeros(len(out), dtype=torch.bool)
    for _, slots, tokens, row in Rows(sample):
        a, line, live[tokens] = decide(row), before[1 + slots[0]], True
        y = convolve_row(x[tokens], number(line[a - 1 : a + W - 2]), weight, bias)
        assert relative(out[tokens], y) < 1e-6
        moved = torch.cat([line[a : a + W - 2], sample.x[tokens]])
        expected[1 + slots[0], : len(moved)] = moved
    assert torch.equal(sample.lines, expected)
    assert not out[~live].any()


def check_verify(sample, out, before, decide=lambda row: row.accepted, *, limit=1e-6, rounding=0.0):
    q, k, v = (number(t) for t in sample.qkv())
    g, beta = number(sample.g), number(sample.beta)
    written = torch.zeros(len(before), dtype=torch.bool)
    live = torch.zeros(len(out), dtype=torch.bool)
    for _, slots, t, row in Rows(sample):
        live[t] = True
        o, states = fold_row(number(before[1 + slots[decide(row) - 1]]), q[t], k[t], v[t], g[t], beta[t])
        assert relative(out[t], o) < limit
        for j, state in enumerate(states):
            written[1 + slots[j]] = True
            assert relative(sample.states[1 + slots[j]], state) < limit + rounding
    assert torch.equal(sample.states[~written], before[~written])
    assert not out[~live].any()


@pytest.mark.parametrize("k", range(1, 9))
def test_every_length_and_accepted_count_updates_the_convolution_as_the_loop_does(k):
    for W in (2, 3, 4, 5):
        sample = batch(Shape(W=W, k=k), every_pair(k, seed=W), seed=k)
        before = sample.lines.clone()
        check_update(sample, TWIN.conv_update(*sample.conv(), **sample.update()), before)


@pytest.mark.parametrize("k", range(1, 9))
def test_every_length_and_accepted_count_leaves_the_states_that_the_loop_leaves(k):
    sample = batch(Shape(k=k), every_pair(k, seed=k), seed=k)
    before = sample.states.clone()
    check_verify(sample, TWIN.gdn_verify(*sample.gdn(), **sample.verify()), before)


def test_a_float64_pool_is_folded_in_float64():
    sample = batch(Shape(), every_pair(3, seed=0), dtype=torch.float64, state_dtype=torch.float64)
    before = sample.states.clone()
    check_verify(sample, TWIN.gdn_verify(*sample.gdn(), **sample.verify()), before, limit=1e-12)


def test_a_bfloat16_pool_is_rounded_only_when_stored():
    sample = batch(Shape(), every_pair(3, seed=0), state_dtype=torch.bfloat16)
    before = sample.states.clone()
    check_verify(sample, TWIN.gdn_verify(*sample.gdn(), **sample.verify()), before, rounding=2.0**-8)


@pytest.mark.parametrize("W", [2, 3, 4, 5])
def test_prompts_are_convolved_as_the_loop_does(W):
    sample = batch(Shape(W=W), prompts(seed=W), seed=W)
    before = sample.lines.clone()
    out = TWIN.conv_prefill(*sample.conv(), **sample.prefill())
    x, weight, bias = number(sample.x), number(sample.weight), number(sample.bias)
    expected, live = before.clone(), torch.zeros(len(out), dtype=torch.bool)
    for _, slots, t, row in Rows(sample):
        history, live[t] = before[1 + slots[0], : W - 1] * row.known, True
        assert relative(out[t], convolve_row(x[t], number(history), weight, bias)) < 1e-6
        expected[1 + slots[0], : W - 1] = torch.cat([history, sample.x[t]])[row.length :]
    assert torch.equal(sample.lines, expected)
    assert not out[~live].any()


def test_prompts_are_folded_as_the_loop_does():
    sample = batch(Shape(), prompts(seed=1), seed=1)
    before = sample.states.clone()
    out = TWIN.gdn_prefill(*sample.gdn(), **sample.prefill())
    q, k, v, g, beta = (number(t) for t in (*sample.qkv(), sample.g, sample.beta))
    written, live = torch.zeros(len(before), dtype=torch.bool), torch.zeros(len(out), dtype=torch.bool)
    for _, slots, t, row in Rows(sample):
        written[1 + slots[0]], live[t] = True, True
        o, states = fold_row(number(before[1 + slots[0]]) * row.known, q[t], k[t], v[t], g[t], beta[t])
        assert relative(out[t], o) < 2e-6
        assert relative(sample.states[1 + slots[0]], states[-1]) < 2e-6
    assert torch.equal(sample.states[~written], before[~written])
    assert not out[~live].any()


def test_a_prompt_cut_anywhere_gives_the_state_of_the_whole_prompt():
    whole, parts = (batch(Shape(), [Row(length=12, known=False)], seed=3) for _ in range(2))
    expected = TWIN.gdn_prefill(*whole.gdn(), **whole.prefill())
    outputs = []
    for start, end in ((0, 1), (1, 6), (6, 12)):
        arguments = [t[start:end] for t in parts.gdn()[:5]]
        keywords = parts.prefill() | {
            "query_start_loc": torch.tensor([0, end - start], dtype=torch.int32),
            "has_initial_state": torch.tensor([start > 0]),
        }
        outputs.append(TWIN.gdn_prefill(*arguments, parts.state, **keywords))
    assert relative(torch.cat(outputs), number(expected)) < 1e-6
    assert relative(parts.state, number(whole.state)) < 1e-6


def test_gating_and_norm_are_the_formulas_of_the_paper():
    a, b, A_log, dt_bias = (8 * torch.randn(size, generator=torch.Generator().manual_seed(0)) for size in
                            ((40, 4), (40, 4), (4,), (4,)))  # fmt: skip
    g, beta = TWIN.gating(a, b, A_log, dt_bias)
    assert relative(g, -np.exp(number(A_log)) * np.logaddexp(0, number(a + dt_bias))) < 1e-6
    assert relative(beta, 1 / (1 + np.exp(-number(b)))) < 1e-6
    x, z, w = torch.randn(6, 4, 16), torch.randn(6, 4, 16), torch.randn(16)
    X, Z = number(x), number(z)
    y = X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-6) * number(w) * Z / (1 + np.exp(-Z))
    assert relative(TWIN.gated_norm(x, z, w, 1e-6), y) < 1e-6


# Decisions, and indices that no kernel may follow.


def decide(**functions):
    return replace(CORRECT, **{name: Decision(naive=f, triton=None) for name, f in functions.items()})


def test_the_decision_about_the_column_to_read_is_honoured():
    sample = batch(Shape(), every_pair(3, seed=0))
    before = sample.states.clone()
    fault = decide(read_column=lambda a: a * 0)
    check_verify(
        sample, TWIN.gdn_verify(*sample.gdn(), **sample.verify(), decisions=fault), before, lambda row: 1
    )


def test_the_decision_about_the_column_to_write_is_honoured():
    sample, right = (batch(Shape(), [Row(length=4, accepted=2)]) for _ in range(2))
    TWIN.gdn_verify(*right.gdn(), **right.verify())
    before = sample.states.clone()
    TWIN.gdn_verify(*sample.gdn(), **sample.verify(), decisions=decide(write_column=lambda j: j * 0))
    first, *others = (1 + sample.state_indices[0]).tolist()
    assert torch.equal(sample.states[first], right.states[others[-1]])
    assert torch.equal(sample.states[others], before[others])


def test_the_decisions_about_the_convolution_line_are_honoured():
    rows = every_pair(3, seed=0)
    sample = batch(Shape(), rows)
    before = sample.lines.clone()
    fault = decide(history_start=lambda a: a * 0, kept_start=lambda a: a * 0 + 1)
    check_update(
        sample, TWIN.conv_update(*sample.conv(), **sample.update(), decisions=fault), before, lambda row: 1
    )

    sample = batch(Shape(), [Row(length=2, accepted=3)])
    line = sample.lines[1 + sample.state_indices[0, 0]].clone()  # six columns
    fault = decide(input_column=lambda length, width, columns: columns - length)
    TWIN.conv_update(*sample.conv(), **sample.update(), decisions=fault)
    expected = torch.cat([line[[3, 4, 5, 5]], sample.x])  # the fourth survivor would lie beyond the line
    assert torch.equal(sample.lines[1 + sample.state_indices[0, 0]], expected)


def test_the_decision_about_padding_is_honoured():
    sample = batch(Shape(), [Row(length=2, padding=True), Row(length=3)])
    states, lines = sample.states.clone(), sample.lines.clone()
    fault = decide(is_padding=lambda slot: slot == -1)
    assert TWIN.gdn_verify(*sample.gdn(), **sample.verify(), decisions=fault)[:2].any()
    assert TWIN.conv_update(*sample.conv(), **sample.update(), decisions=fault)[:2].any()
    assert not torch.equal(sample.state[0], states[1])
    assert not torch.equal(sample.conv_state[0], lines[1])


def test_a_live_row_that_starts_from_the_null_slot_starts_from_zero_and_never_writes_it():
    sample, zero = (batch(Shape(), [Row(length=3, accepted=2)]) for _ in range(2))
    before = sample.states.clone()
    zero.state[zero.state_indices[0, 1]] = 0
    sample.state_indices[0, 1] = 0
    out = TWIN.gdn_verify(*sample.gdn(), **sample.verify())
    assert torch.equal(out, TWIN.gdn_verify(*zero.gdn(), **zero.verify()))
    assert torch.equal(sample.state[0], before[1])


@pytest.mark.parametrize("slot", [-1, 10_000])
@pytest.mark.parametrize("kernel", ["conv_update", "conv_prefill", "gdn_verify", "gdn_prefill"])
def test_a_slot_outside_the_pool_is_an_engine_error(kernel, slot):
    sample = batch(Shape(), [Row(length=2)])
    sample.state_indices[0] = slot
    inputs = sample.conv() if kernel.startswith("conv") else sample.gdn()
    keywords = {"conv_update": sample.update, "gdn_verify": sample.verify}.get(kernel, sample.prefill)()
    with pytest.raises(EngineError, match="lies outside"):
        getattr(TWIN, kernel)(*inputs, **keywords)


@pytest.mark.parametrize("row", [Row(length=2, accepted=5), Row(length=2, accepted=0), Row(length=5)])
def test_a_column_outside_the_row_is_an_engine_error(row):
    sample = batch(Shape(), [row])
    with pytest.raises(EngineError, match="column"):
        TWIN.gdn_verify(*sample.gdn(), **sample.verify())
    with pytest.raises(EngineError, match="column"):
        TWIN.conv_update(*sample.conv(), **sample.update())


def test_rows_that_overrun_the_packed_tokens_are_an_engine_error():
    sample = batch(Shape(), [Row(length=2), Row(length=2)])
    keywords = sample.verify() | {"query_start_loc": torch.tensor([0, 2, 5], dtype=torch.int32)}
    with pytest.raises(EngineError, match="packed tokens"):
        TWIN.gdn_verify(*sample.gdn(), **keywords)
