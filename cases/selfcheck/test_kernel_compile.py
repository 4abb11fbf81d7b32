"""Every kernel compiles for the GPUs we name, without a GPU; and mixed batches need one compiled variant."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
from dataclasses import replace
from importlib import import_module

import pytest
import torch
import triton
import triton.language as tl  # noqa: F401  Triton's interpreter asks every module with jit functions for it
from programs import planted
from triton.backends.compiler import GPUTarget

from harness.engine import kernels as package
from harness.engine.kernels import CORRECT, Decision

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted: test_kernel_processes.py runs these in a child", allow_module_level=True)

from harness.engine.kernels import compile as aot
from harness.engine.kernels import few
from harness.engine.kernels.constexpr_length import constexpr_length
from harness.engine.kernels.conv import update_launch
from harness.engine.kernels.gdn import verify_launch
from harness.engine.kernels.replay import replay_launch
from harness.engine.kernels.samples import Row, Shape, batch

SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes a program may have
LENGTHS = [(4, 4, 4), (4, 1, 2), (1, 1, 1), (2, 0, 1), (3, 3, 1), (2, 2, 2), (1,), (4, 4, 4, 4, 4)]


def conv_launches():
    """Updates over mixed batches, with the index table and the tokens at whatever alignment the packing gives them."""
    for seed, lengths in enumerate(LENGTHS):
        sample = batch(Shape(k=3), [Row(length=n) for n in lengths], seed=seed)
        yield (
            max(lengths),
            update_launch(sample.x, torch.empty_like(sample.x), *sample.conv()[1:], **sample.update()),
        )


@pytest.mark.parametrize("architecture", aot.ARCHITECTURES)
def test_every_kernel_compiles_ahead_of_time(architecture):
    binaries = aot.specialisations(aot.registry(), architecture)
    assert all(len(binary.digest) == 64 for binary in binaries)
    for binary in binaries:
        assert binary.shared <= SHARED[architecture], f"{binary} does not fit into shared memory"


def test_the_registry_misses_no_kernel():
    modules = [import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    written = {
        name
        for module in modules
        for name, value in inspect.getmembers(module)
        if isinstance(value, triton.runtime.JITFunction) and name.endswith("_kernel")
    }
    assert len(written) >= 8
    assert {launch.name for launch in aot.registry()} == written


def test_mixed_batches_need_one_variant_of_the_update():
    assert len(aot.specialisations(launch for _, launch in conv_launches())) == 1


def test_mixed_batches_need_one_variant_of_the_recurrence():
    def launches():
        for seed, lengths in enumerate(LENGTHS):
            sample = batch(Shape(k=3), [Row(length=n) for n in lengths], seed=seed)
            inputs, out = sample.gdn(), torch.empty_like(sample.qkv()[2])
            yield verify_launch(*inputs[:5], out, inputs[5], **sample.verify())

    assert len(aot.specialisations(launches())) == 1


def test_mixed_batches_at_any_offset_need_one_variant_of_the_replay():
    def launches():
        for seed, lengths in enumerate(LENGTHS):
            sample = batch(Shape(k=3), [Row(length=n) for n in lengths], seed=seed)
            inputs, out = sample.gdn(), torch.empty_like(sample.qkv()[2])
            for first in range(min(2, len(lengths))):
                keywords = {name: index[first:] for name, index in sample.replay().items()}
                yield replay_launch(*inputs[:5], out, inputs[5], sample.journal, **keywords)

    assert len(aot.specialisations(launches())) == 1


def test_an_index_view_at_any_offset_and_stride_needs_no_new_variant():
    def launches():
        sample = batch(Shape(k=3), [Row(length=n) for n in (4, 2, 3, 1, 4, 4)])
        inputs, out = sample.conv(), torch.empty_like(sample.x)
        for first in range(4):
            keywords = {name: index[first:] for name, index in sample.update().items()}
            yield update_launch(inputs[0], out, *inputs[1:], **keywords)
            dense = keywords["state_indices"].contiguous()
            yield update_launch(inputs[0], out, *inputs[1:], **keywords | {"state_indices": dense})

    assert len(aot.specialisations(launches())) == 1


def test_a_fixed_constexpr_length_needs_one_variant_and_the_longest_row_one_per_length():
    fixed = aot.specialisations(constexpr_length(launch, 4) for _, launch in conv_launches())
    fault = aot.specialisations(constexpr_length(launch, longest) for longest, launch in conv_launches())
    assert len(fixed) == 1
    assert len(fault) == 4
    assert len({binary.digest for binary in fault}) == 4, "variants, but the same machine code"


@triton.jit
def _first(a):
    return a * 0


def test_another_decision_is_another_binary():
    sample = batch(Shape(), [Row(length=2)])
    inputs, out = sample.gdn(), torch.empty_like(sample.qkv()[2])
    fault = replace(CORRECT, read_column=Decision(naive=lambda a: a * 0, triton=_first))
    launches = [
        verify_launch(*inputs[:5], out, inputs[5], **sample.verify(), decisions=decisions)
        for decisions in (CORRECT, fault, CORRECT)
    ]
    assert len({binary.digest for binary in aot.specialisations(launches)}) == 2


def fusable_sums(launch):
    """Additions of one's own product and another thread's, which that thread adds to its own in turn.

    Each of the two may fuse its own product with the addition, and not the one that it is sent: copies of the sum
    differ. Shuffles that only move numbers to other threads are none of them.
    """
    variant, made, found = aot.variant(launch), {}, []
    compiled = triton.compile(variant.source, target=GPUTarget("cuda", 90, 32), options=variant.options)
    for line in compiled.asm["ptx"].splitlines():
        if words := re.match(r"\s*(?:@!?%p\d+ )?([a-z0-9_.]+)\s+(%\w+)(?:\|%p\d+)?,\s*(.*);", line):
            what, into, operands = words[1], words[2], re.findall(r"%\w+", words[3])
            known = [made.get(operand, (operand, [])) for operand in operands]
            made[into] = known[0] if what == "mov.b32" and known else (what, known)
            for other, source in known:
                product = source[0] if other.startswith("shfl.sync.bfly") and source else None
                if product and product[0] == "mul.f32" and what in ("add.f32", "fma.rn.f32"):
                    mine = known[:2] == product[1] if what == "fma.rn.f32" else product in known
                    found += [line.strip()] if mine else []
    return found


def test_threads_that_hold_copies_of_a_sum_added_it_in_one_way(tmp_path):
    """compute-sanitizer found copies that differ in their last bit, stored to one word of shared memory."""
    launches = [launch for launch in aot.registry() if "few" in launch.name or launch.name == "decode_kernel"]
    assert {launch.name for launch in launches} == {"gdn_verify_few_kernel", "decode_kernel"}
    assert not [line for launch in launches for line in fusable_sums(launch)]
    fused = planted(few, tmp_path, ("tl.fma(a, b, 0.0)", "a * b")).gdn_verify_few_kernel
    (first, *_) = (launch for launch in launches if "few" in launch.name)
    assert fusable_sums(replace(first, kernel=fused))
