"""Triton against its naive twin.

On a GPU where there is one, else under the interpreter: in this process, or in a child of ``test_kernel_processes.py``.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl  # noqa: F401  Triton's interpreter asks every module with jit functions for it

from harness.engine.kernels import CORRECT, Decision, NaiveKernels, select
from harness.engine.kernels.samples import QWEN3_NEXT, Row, Shape, batch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
GPU = torch.cuda.is_available() and not INTERPRETED
if not (GPU or INTERPRETED):
    pytest.skip(
        "no GPU: these run in the child process of test_kernel_interpreter.py", allow_module_level=True
    )

DEVICE = "cuda" if GPU else "cpu"
TRITON, TWIN = select("triton", DEVICE).kernels, NaiveKernels()
SMALL = Shape(H=1, HV=2)  # the interpreter pays per operation
DRAFTS = range(1, 9)
STATES = (torch.float32, torch.bfloat16) if GPU else (torch.float32,)  # the interpreter cannot do bfloat16
PROMPTS = (1, 2, 3, 63, 64, 65, 130)


def every_pair(k, seed=0):
    """All (length, accepted) pairs for k drafts, among zero-length and padded rows, in random order."""
    rows = [Row(length=n, accepted=a) for n in range(1, k + 2) for a in range(1, k + 2)]
    rows += [Row(length=0, accepted=k + 1)] * 2 + [
        Row(length=n, accepted=99, padding=True) for n in (1, k + 1)
    ]
    random.Random(seed).shuffle(rows)
    return rows


def prompts(lengths=PROMPTS):
    rows = [Row(length=n, known=bool(i % 2)) for i, n in enumerate((*lengths, *lengths[:1]))]
    return [*rows, Row(length=0), Row(length=5, padding=True)]


def assert_close(actual, expected, limit=5e-6):
    """Relative RMS of every token or slot by itself."""
    a, b = (t.double().flatten(1) for t in (actual, expected))
    error = (a - b).norm(dim=1) / b.norm(dim=1).clamp_min(1e-30)
    assert error.numel() == 0 or error.max() < limit, (
        f"relative RMS {error.max():.2e} at {int(error.argmax())}"
    )


def assert_same_pool(actual, expected, before, dtype):
    """Slots that the twin left alone (guards and the null slot are among them) are bit-exact, the others close."""
    alone = (expected == before).flatten(1).all(1)
    assert torch.equal(actual[alone], before[alone])
    assert_close(actual, expected, 5e-6 if dtype == torch.float32 else 2e-3)


def compare(kernel, shape, rows, dtype=torch.float32, **options):
    """Run one kernel both ways on equal batches; return what Triton gave, for further questions."""
    keywords = {"conv_update": "update", "gdn_verify": "verify"}.get(kernel, "prefill")
    inputs, pool = ("conv", "lines") if kernel.startswith("conv") else ("gdn", "states")
    results = []
    for kernels in (TRITON, TWIN):
        sample = batch(shape, rows, seed=7, device=DEVICE, state_dtype=dtype)
        before = getattr(sample, pool).clone()
        out = getattr(kernels, kernel)(*getattr(sample, inputs)(), **getattr(sample, keywords)(), **options)
        results.append((out, getattr(sample, pool)))
    (out, states), (expected, expected_states) = results
    assert_close(out, expected)
    assert_same_pool(states, expected_states, before, dtype)
    if pool == "lines":
        assert torch.equal(states, expected_states)
    return out, states


@pytest.mark.parametrize("k", DRAFTS)
def test_verify_agrees_for_every_length_and_accepted_count(k):
    for dtype in STATES:
        compare("gdn_verify", replace(SMALL, k=k), every_pair(k), dtype)


@pytest.mark.parametrize("k", DRAFTS)
@pytest.mark.parametrize("W", [2, 3, 4, 5] if GPU else [4])
def test_conv_update_agrees_for_every_length_and_accepted_count(k, W):
    compare("conv_update", replace(SMALL, k=k, W=W), every_pair(k))


@pytest.mark.parametrize("W", [2, 3, 4, 5])
def test_both_convolutions_agree_at_every_width(W):
    compare("conv_update", Shape(H=1, HV=1, W=W), every_pair(1, seed=W))
    compare("conv_prefill", Shape(H=1, HV=1, W=W), prompts())


def test_sizes_that_are_no_powers_of_two_agree():
    odd = Shape(H=1, HV=3, K=24, V=20)
    compare("gdn_verify", odd, every_pair(2))
    compare("conv_update", odd, every_pair(2))
    compare("conv_prefill", odd, prompts((1, 5, 20)))
    compare("gdn_prefill", odd, prompts((1, 5, 20)))


def test_prompts_around_the_chunk_edges_agree():
    for dtype in STATES:
        compare("gdn_prefill", SMALL, prompts(), dtype)
    compare("gdn_prefill", SMALL, prompts((15, 16, 17, 33)))


@pytest.mark.parametrize("size", [16, 64])
def test_a_chunk_of_any_size_gives_the_same_prompt(size):
    from harness.engine.kernels import chunk

    sample, twin = (batch(SMALL, prompts((1, 17, 70)), device=DEVICE) for _ in range(2))
    out = torch.zeros_like(sample.qkv()[2])
    q, k, v, g, beta, state = sample.gdn()
    for launch in chunk.prefill_launches(q, k, v, g, beta, out, state, **sample.prefill(), chunk=size):
        launch.run()
    assert_close(out, TWIN.gdn_prefill(*twin.gdn(), **twin.prefill()))
    assert_close(sample.states, twin.states)


def test_keys_that_repeat_and_decays_that_jump_cost_the_chunked_form_no_accuracy():
    """Nearly one key throughout, full write strength, and -1000 among log decays of nearly nothing."""
    samples = [batch(SMALL, [Row(length=64), Row(length=40)], device=DEVICE) for _ in range(2)]
    for sample in samples:
        sample.x[:] = sample.x[:1] + 1e-2 * sample.x
        sample.beta[:] = 1
        sample.g[:] = -1e-3
        sample.g[3:6] = -1000
    out, expected = (
        kernels.gdn_prefill(*sample.gdn(), **sample.prefill())
        for kernels, sample in zip((TRITON, TWIN), samples, strict=True)
    )
    assert_close(out, expected)
    assert_close(samples[0].states, samples[1].states)


def test_no_rows_and_no_bias_are_fine():
    compare("gdn_verify", SMALL, [Row(length=0), Row(length=0)])
    compare("conv_update", SMALL, [Row(length=0)])
    compare("gdn_prefill", SMALL, [Row(length=0)])
    compare("conv_prefill", SMALL, [Row(length=0)])
    one, two = (batch(SMALL, every_pair(3), device=DEVICE) for _ in range(2))
    outs = (kernels.conv_update(*sample.conv()[:3], None, **sample.update()) for kernels, sample in
            ((TRITON, one), (TWIN, two)))  # fmt: skip
    assert_close(*outs)


@pytest.mark.parametrize("kernel", ["conv_update", "conv_prefill", "gdn_verify", "gdn_prefill"])
def test_tokens_after_the_last_row_give_zeros_and_index_tables_may_be_transposed(kernel):
    outs, pools = [], []
    for kernels in (TRITON, TWIN):
        sample = batch(SMALL, [Row(length=n, accepted=a) for n, a in ((2, 3), (4, 4), (3, 1))], device=DEVICE)
        keywords = {"conv_update": sample.update, "gdn_verify": sample.verify}.get(kernel, sample.prefill)()
        keywords = {
            name: index[:-1] for name, index in keywords.items()
        }  # the last row becomes a tail of tokens
        keywords["state_indices"] = sample.state_indices[:-1].t().contiguous().t()
        if kernel != "gdn_verify":
            keywords["state_indices"] = keywords["state_indices"][:, 0]
        inputs = sample.conv() if kernel.startswith("conv") else sample.gdn()
        outs.append(getattr(kernels, kernel)(*inputs, **keywords))
        pools += [sample.states, sample.lines]
    assert outs[0][:6].any()
    assert not outs[0][6:].any()
    assert_close(*outs)
    assert_close(pools[0], pools[2])
    assert torch.equal(pools[1], pools[3])


def test_the_null_slot_within_a_live_row_is_zero_to_read_and_never_written():
    outs, pools = [], []
    for kernels in (TRITON, TWIN):
        sample = batch(SMALL, [Row(length=3, accepted=2), Row(length=4, accepted=1)], device=DEVICE)
        before = sample.states.clone()
        sample.state_indices[:, 1] = 0
        outs.append(kernels.gdn_verify(*sample.gdn(), **sample.verify()))
        pools.append(sample.states)
    assert_close(*outs)
    assert_same_pool(*pools, before, torch.float32)
    assert torch.equal(pools[0][1], before[1])


def test_gating_and_norm_agree():
    a = 8 * torch.randn(50, 6, device=DEVICE)
    x, w = torch.randn(50, 9, 20, device=DEVICE), torch.randn(20, device=DEVICE)
    A_log, dt_bias = a[0, :3].contiguous() / 8, a[1, :3].contiguous()
    pairs = zip(
        *(kernels.gating(a[:, :3], a[:, 3:], A_log, dt_bias) for kernels in (TRITON, TWIN)), strict=True
    )
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=3e-6, atol=1e-30)  # also where softplus is tiny
    assert_close(*(kernels.gated_norm(x[:, :4], x[:, 5:], w, 1e-6) for kernels in (TRITON, TWIN)))


# Decisions.


@triton.jit
def _first(value):
    return value * 0


@triton.jit
def _second(a):
    return a * 0 + 1


@triton.jit
def _right_aligned(length, width, columns):
    return columns - length


@triton.jit
def _minus_one(slot):
    return slot == -1


FAULTS = {
    "read_column": ("gdn_verify", Decision(naive=lambda a: a * 0, triton=_first)),
    "write_column": ("gdn_verify", Decision(naive=lambda j: j * 0, triton=_first)),
    "history_start": ("conv_update", Decision(naive=lambda a: a * 0, triton=_first)),
    "kept_start": ("conv_update", Decision(naive=lambda a: a * 0 + 1, triton=_second)),
    "input_column": ("conv_update", Decision(naive=lambda n, W, C: C - n, triton=_right_aligned)),
    "is_padding": ("gdn_verify", Decision(naive=lambda slot: slot == -1, triton=_minus_one)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_replaced_decision_changes_triton_as_it_changes_the_twin(name):
    kernel, decision = FAULTS[name]
    rows = [Row(length=3, accepted=2), Row(length=1, accepted=4), Row(length=2, accepted=1, padding=True)]
    right = compare(kernel, SMALL, rows)
    wrong = compare(kernel, SMALL, rows, decisions=replace(CORRECT, **{name: decision}))
    assert not all(torch.equal(a, b) for a, b in zip(right, wrong, strict=True))


@pytest.mark.parametrize("max_length", [None, 4])
def test_the_constexpr_length_fault_is_right_and_only_slow(max_length):
    from harness.engine.kernels.constexpr_length import ConstexprLengthKernels

    one, two = (batch(SMALL, every_pair(3), device=DEVICE) for _ in range(2))
    out = ConstexprLengthKernels(max_length).conv_update(*one.conv(), **one.update())
    assert_close(out, TWIN.conv_update(*two.conv(), **two.update()))
    assert torch.equal(one.lines, two.lines)


# What only a GPU can show.


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="the interpreter computes bfloat16 wrongly, and is slow at full size")
@pytest.mark.parametrize("state_dtype", STATES)
def test_full_size_layers_with_bfloat16_activations_agree(state_dtype):
    rows = every_pair(3) + every_pair(3, seed=1)
    kinds = {"device": DEVICE, "dtype": torch.bfloat16, "state_dtype": state_dtype}
    for kernel, keywords, inputs, pool in (
        ("conv_update", "update", "conv", "lines"),
        ("gdn_verify", "verify", "gdn", "states"),
        ("conv_prefill", "prefill", "conv", "lines"),
        ("gdn_prefill", "prefill", "gdn", "states"),
    ):
        used = rows if keywords != "prefill" else prompts()
        one, two = (batch(QWEN3_NEXT, used, **kinds) for _ in range(2))
        before = getattr(one, pool).clone()
        out, expected = (
            getattr(kernels, kernel)(*getattr(sample, inputs)(), **getattr(sample, keywords)())
            for kernels, sample in ((TRITON, one), (TWIN, two))
        )
        if (
            kernel == "gdn_prefill"
        ):  # bfloat16 prompts go the fast way, which the next test holds against float64
            assert_close(out, expected, 2e-2)
            assert_close(getattr(one, pool), getattr(two, pool), 1e-2)
            continue
        assert_close(out, expected, 4e-3)
        assert_same_pool(getattr(one, pool), getattr(two, pool), before, state_dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="the interpreter computes bfloat16 wrongly, and is slow at full size")
@pytest.mark.parametrize("lengths", [PROMPTS, (2048, 1, 700)])
def test_fast_prompts_err_as_bfloat16_operands_do_and_accurate_ones_as_float32(lengths):
    """Against float64, all tokens together: a wrong term or a lost token shows at 1e-1."""
    for dtype, limit in ((torch.bfloat16, 5e-3), (torch.float32, 2e-6)):
        sample = batch(QWEN3_NEXT, prompts(lengths), device=DEVICE, dtype=torch.bfloat16)
        q, k, v = (x.to(dtype) for x in sample.qkv())
        whole = sample.states.double()
        expected = TWIN.gdn_prefill(
            *(x.double() for x in (q, k, v)), sample.g, sample.beta, whole[1:-1], **sample.prefill()
        )
        out = TRITON.gdn_prefill(q, k, v, sample.g, sample.beta, sample.state, **sample.prefill())
        for actual, right in ((out, expected), (sample.states, whole)):
            assert (actual.double() - right).norm() / right.norm() < limit


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="the interpreter compiles nothing")
def test_mixed_batches_compile_the_update_once_and_the_fault_once_per_length():
    from harness.engine.kernels.compile import Compilations
    from harness.engine.kernels.constexpr_length import ConstexprLengthKernels

    shape = replace(SMALL, k=6, K=32)  # sizes that no other test compiles
    lengths = [(7, 7), (1, 2), (3, 1), (4, 4), (0, 5), (6, 2)]
    with Compilations() as compilations:
        for kernels in (TRITON, ConstexprLengthKernels(7), ConstexprLengthKernels()):
            for pair in lengths:
                sample = batch(shape, [Row(length=n) for n in pair], device=DEVICE)
                kernels.conv_update(*sample.conv(), **sample.update())
    assert compilations.of("conv_update_kernel") == 1
    assert (
        compilations.of("conv_update_constexpr_length_kernel") == 6
    )  # 7, 2, 3, 4, 5, 6; the fixed 7 is the first
