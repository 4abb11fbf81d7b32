"""The fused decode step against the separate kernels of the naive twin.

On a GPU where there is one, else under the interpreter, as ``test_kernel_triton.py``.
"""

from __future__ import annotations

import pytest
import torch
from test_kernel_triton import DEVICE, GPU, SMALL, STATES, TRITON, TWIN, assert_close, assert_same_pool

from harness.engine.kernels.samples import QWEN3_NEXT, Row, Shape, batch


def layer(sample, seed=3):
    """What a decode takes beside a batch's tokens and pools: gates, output gate, decay and norm weights."""
    shape, random = sample.shape, torch.Generator().manual_seed(seed)
    B = len(sample.rows)

    def normal(*size):
        return torch.randn(size, generator=random).to(DEVICE)

    gates = normal(B, 2 * shape.HV).to(sample.x.dtype)
    return {
        "x": sample.x,
        "a": gates[:, : shape.HV],
        "b": gates[:, shape.HV :],
        "z": normal(B, shape.HV, shape.V).to(sample.x.dtype),
        "conv_state": sample.conv_state,
        "conv_weight": sample.weight,
        "conv_bias": sample.bias,
        "A_log": normal(shape.HV),
        "dt_bias": normal(shape.HV),
        "state": sample.state,
        "norm_weight": normal(shape.V),
        "eps": 1e-6,
        "state_indices": sample.state_indices[:, 0],
    }


def compare(shape, rows, limit=5e-6, **kinds):
    samples = [batch(shape, rows, seed=5, device=DEVICE, **kinds) for _ in range(2)]
    before = samples[0].states.clone()
    out, expected = (
        kernels.decode(**layer(sample)) for kernels, sample in zip((TRITON, TWIN), samples, strict=True)
    )
    assert_close(out, expected, limit)
    assert_same_pool(samples[0].states, samples[1].states, before, kinds.get("state_dtype", torch.float32))
    assert torch.equal(samples[0].lines, samples[1].lines)


@pytest.mark.parametrize("B", [1, 3, 16])
def test_the_fused_decode_agrees_with_the_separate_kernels(B):
    rows = [Row(length=1, padding=b % 5 == 2) for b in range(B)]
    for state_dtype in STATES:
        compare(Shape(H=2, HV=4, K=16, V=16), rows, state_dtype=state_dtype)


def test_the_fused_decode_agrees_at_other_sizes():
    compare(Shape(H=1, HV=3, K=24, V=20), [Row(length=1)] * 3)
    compare(Shape(H=2, HV=2, W=2), [Row(length=1)] * 2)
    compare(Shape(H=1, HV=4, W=5, k=0), [Row(length=1)] * 2)


def test_a_decode_leaves_the_line_and_the_counters_ready_for_the_next():
    samples = [batch(SMALL, [Row(length=1)] * 4, device=DEVICE) for _ in range(2)]
    for _ in range(3):
        outs = [
            kernels.decode(**layer(sample)) for kernels, sample in zip((TRITON, TWIN), samples, strict=True)
        ]
        assert_close(*outs)
        assert torch.equal(samples[0].lines, samples[1].lines)


@pytest.mark.gpu
@pytest.mark.skipif(
    not GPU, reason="the interpreter computes bfloat16 wrongly, and runs one program at a time"
)
@pytest.mark.parametrize("state_dtype", STATES)
def test_programs_that_share_a_line_never_read_what_another_moved_on(state_dtype):
    """bfloat16 rounds between the separate kernels and not within the fused one: the twin gets float64 instead."""
    for seed in range(20):
        kinds = {"seed": seed, "device": DEVICE, "dtype": torch.bfloat16, "state_dtype": state_dtype}
        sample = batch(QWEN3_NEXT, [Row(length=1)] * 16, **kinds)
        mine = layer(sample)
        whole = {
            name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
            for name, x in mine.items()
        }
        out, expected = TRITON.decode(**mine), TWIN.decode(**whole)
        assert_close(out, expected, 4e-3)
        assert_close(sample.state, whole["state"], 5e-6 if state_dtype == torch.float32 else 4e-3)
        assert torch.equal(sample.conv_state.double(), whole["conv_state"])
