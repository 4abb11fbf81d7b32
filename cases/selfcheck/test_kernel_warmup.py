"""After the listed warm-up nothing is compiled any more, whatever the batch.

Without a GPU launches are bound by Triton's own rules and not done; on a GPU they are done, and Triton itself counts.
"""

from __future__ import annotations

import os
from random import Random

import pytest
import torch
import triton

from harness.engine.kernels.samples import Shape

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted: test_kernel_processes.py runs these in a child", allow_module_level=True)

from harness.engine.config import EngineConfig
from harness.engine.engine import Engine
from harness.engine.guided import Grammars
from harness.engine.kernels import compile as aot
from harness.engine.kernels.base import Kernels
from harness.engine.kernels.constexpr_length import ConstexprLengthKernels
from harness.engine.kernels.naive import NaiveKernels
from harness.engine.kernels.traffic import Traffic, layer
from harness.engine.kernels.triton_kernels import TritonKernels
from harness.engine.kernels.warmup import THRESHOLDS, entries, warm_up
from harness.engine.loader import Loader
from harness.engine.policy import POLICY
from harness.engine.request import EngineRequest
from harness.models.tiny import ensure

GPU = torch.cuda.is_available()
SERVED = Shape(H=1, HV=2, K=32, V=64)
KINDS = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
]


class Bound:
    """Launches that are not done: which compiled variants they would need."""

    def __init__(self):
        self.keys = set()

    def __call__(self, launch):
        if all(launch.grid):
            self.keys.add(aot.variant(launch).key)

    def kernels(self):
        return {key.split()[0] for key in self.keys}


class Watched:
    """The naive twins, and what Triton would have launched in their place."""

    def __init__(self, bound):
        self.bound = TritonKernels(run=bound)

    def __getattr__(self, name):
        def both(*given, **named):
            getattr(self.bound, name)(*given, **named)
            return getattr(NaiveKernels(), name)(*given, **named)

        return both


def needed(served, steps, kernels=TritonKernels, seed=1):
    """Variants of that many random steps."""
    bound = Bound()
    traffic = Traffic(layer=served, random=Random(seed), slots=24)
    for _ in range(steps):
        traffic.step(kernels(run=bound))
    return bound.keys


def warmed(served, listed=None):
    bound = Bound()
    warm_up(TritonKernels(run=bound), served, listed=listed)
    return bound.keys


@pytest.mark.parametrize(("dtype", "state_dtype"), KINDS)
@pytest.mark.parametrize("shape", [SERVED, Shape(H=1, HV=3, K=24, V=20, k=5)], ids=["usual", "odd"])
def test_the_warm_up_lists_all_that_random_steps_need(shape, dtype, state_dtype):
    served = layer(shape, dtype=dtype, state_dtype=state_dtype, slots=24)
    assert needed(served, 25) == warmed(served), "variants that are missing, or that nobody needs"


def test_the_warm_up_knows_every_kernel_of_the_contract():
    contract = {name for name, value in vars(Kernels).items() if callable(value) and not name.startswith("_")}
    assert set(THRESHOLDS) == contract


def test_every_batch_size_is_served_by_what_the_list_compiles():
    served = layer(SERVED, dtype=torch.bfloat16, state_dtype=torch.float32, slots=1)
    listed = entries(served)
    sizes = [type(entry)(entry.kernel, rows, entry.width) for entry in listed for rows in range(1, 101)]
    assert warmed(served, sizes) == warmed(served, listed)


@pytest.mark.parametrize("kernel", [name for name, sizes in THRESHOLDS.items() if sizes])
def test_a_list_that_knows_one_side_of_a_threshold_is_caught(kernel):
    served = layer(SERVED, dtype=torch.bfloat16, state_dtype=torch.float32, slots=24)
    short = [entry for entry in entries(served) if entry.kernel != kernel or entry.rows == 1]
    assert needed(served, 25) - warmed(served, short)


def test_a_length_as_constexpr_is_caught():
    served = layer(SERVED, dtype=torch.bfloat16, state_dtype=torch.float32, slots=24)
    late = {key for key in needed(served, 25, ConstexprLengthKernels) if "constexpr_length" in key}
    assert len(late) > 1
    assert not late & warmed(served)


class NoDevice:
    """Triton's driver where there is no GPU: it is only asked what to compile for."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)


@pytest.mark.skipif(GPU, reason="Triton has a device to compile for")
def test_tritons_own_hook_counts_each_variant_once_and_is_given_back(monkeypatch):
    served = layer(Shape(), dtype=torch.float32, state_dtype=torch.float32, slots=24)
    before = triton.knobs.runtime.jit_post_compile_hook
    monkeypatch.setattr(triton.runtime.driver, "_active", NoDevice())

    def compiled(launch):
        if launch.name == "gating_kernel":
            launch.kernel.warmup(**launch.arguments, **launch.options, grid=launch.grid)

    traffic = Traffic(layer=served, random=Random(0), slots=24)
    with aot.Compilations() as first:
        warm_up(TritonKernels(run=compiled), served)
    with aot.Compilations() as more:
        for _ in range(5):
            traffic.step(TritonKernels(run=compiled))
    assert first.names == ["gating_kernel"]
    assert more.names == []
    assert triton.knobs.runtime.jit_post_compile_hook is before


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="nothing is launched here")
@pytest.mark.parametrize(("dtype", "state_dtype"), KINDS)
def test_random_batches_compile_nothing_after_the_warm_up(dtype, state_dtype):
    served = layer(SERVED, dtype=dtype, state_dtype=state_dtype, device="cuda", slots=24)
    with aot.Compilations() as first:
        warm_up(TritonKernels(), served)
    traffic = Traffic(layer=served, random=Random(2), slots=24)
    with aot.Compilations() as later:
        for _ in range(100):
            traffic.step(TritonKernels())
    assert len(first.names) == len(warmed(served)), "Triton counts otherwise than its rules say"
    assert later.names == []
    with aot.Compilations() as fault:
        for _ in range(5):
            traffic.step(ConstexprLengthKernels())
    assert fault.names


@pytest.mark.parametrize("layout", ["slots", "replay"])
def test_an_engine_that_was_warmed_needs_nothing_more(layout, models):
    """The layers' own tensors: their strides, their tables, their views."""
    loader, bound = Loader(ensure("narrow", 0, models)), Bound()
    config = EngineConfig(k=3, layout=layout, drafter="ngram", max_num_seqs=20, token_budget=40)
    model = loader.model(config, POLICY, Watched(bound))
    for mixer in model.linear_layers.values():
        mixer.warm_up()
    warm = set(bound.keys)
    engine = Engine(model, None, Grammars(loader.vocabulary), config, POLICY)
    for i in range(20):
        engine.add(EngineRequest(id=f"r{i}", prompt=tuple(range(5, 7 + i)) * 2, max_tokens=6))
    while engine.step() is not None:
        pass
    assert warm
    assert bound.keys == warm
