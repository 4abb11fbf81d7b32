"""Programs of one launch share no byte that any of them writes, so the order in which a GPU runs them decides nothing.

Under Triton's interpreter, with the blocks of a GPU; on a GPU other tests compare results, and a sanitizer looks.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
import torch

from harness.engine.kernels.samples import Row, Shape, batch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("only the interpreter runs programs one at a time", allow_module_level=True)

from programs import planted, programs_of, results, writers

from harness.engine.kernels import launch as launching
from harness.engine.kernels import replay
from harness.engine.kernels.triton_kernels import TritonKernels

SHAPE = Shape(H=1, HV=2, K=16, V=64, k=1)  # each has two blocks of values for its kernel
HALF, QUARTER = replace(SHAPE, V=32, k=2), replace(SHAPE, V=16)
WIDE = Shape(H=1, HV=2, K=96, V=64, k=2)  # convolutions of more channels than one program takes
ROWS = [
    Row(length=2, accepted=1),
    Row(length=0),
    Row(length=1, accepted=2, known=False),
    Row(length=2, padding=True),
]


@pytest.fixture(autouse=True)
def blocks_of_a_gpu(monkeypatch):
    """The interpreter takes one block that covers everything: here launches are cut as they are for a GPU."""
    monkeypatch.setattr(launching, "interpreting", lambda: False)


def launches(kernel, shape=SHAPE, rows=ROWS, seed=3):
    """The launches behind one kernel of the contract, not done; batches of equal seeds are equal."""
    sample, collected = batch(shape, rows, seed=seed), []
    kernels, gates = TritonKernels(run=collected.append), batch(shape, rows, seed=seed + 1).g
    match kernel:
        case "conv_update":
            kernels.conv_update(*sample.conv(), **sample.update())
        case "conv_prefill":
            kernels.conv_prefill(*sample.conv(), **sample.prefill())
        case "gdn_verify":
            kernels.gdn_verify(*sample.gdn(), **sample.verify())
        case "gdn_replay":
            kernels.gdn_replay(*sample.gdn(), sample.journal, **sample.replay())
        case "gdn_prefill":
            kernels.gdn_prefill(*sample.gdn(), **sample.prefill())
        case "gating":
            kernels.gating(gates, gates, gates[0].contiguous(), gates[0].contiguous())
        case "gated_norm":
            v = sample.qkv()[2]
            kernels.gated_norm(v, v, sample.weight[: shape.V, 0].contiguous(), 1e-6)
        case "decode":
            v, g = sample.qkv()[2], gates[: len(rows)]
            weights = (sample.conv_state, sample.weight, None, g[0].contiguous(), g[0].contiguous())
            norm = sample.weight[: shape.V, 0].contiguous()
            slots = sample.state_indices[:, 0]
            kernels.decode(sample.x, g, g, v, *weights, sample.state, norm, 1e-6, state_indices=slots)
    return collected


SINGLE = [Row(length=1), Row(length=1, padding=True), Row(length=1)]
CASES = {
    "conv_update": (WIDE, ROWS),
    "conv_prefill": (WIDE, ROWS),
    "gdn_verify": (HALF, ROWS),
    "gdn_replay": (SHAPE, ROWS),
    "gdn_prefill": (HALF, [Row(length=17), Row(length=2, padding=True)]),
    "gating": (SHAPE, [Row(length=600)]),
    "gated_norm": (SHAPE, ROWS),
    "decode": (QUARTER, SINGLE),
}
SHARED = {"arrivals"}  # a counter of atomic additions


def shuffled(programs):
    """Backwards, and at random."""
    return [programs[::-1], random.Random(1).sample(programs, len(programs))]


def differing(launch):
    """What some order of the programs leaves otherwise than the usual one."""
    programs = programs_of(launch)
    usual, found = results(launch, programs), set()
    for order in shuffled(programs):
        now = results(launch, order)
        found |= {name for name in usual if not torch.equal(now[name], usual[name])}
    return found


def twice_written(launch):
    """Arguments of which two programs write the same byte."""
    found = writers(launch, SHARED)
    return {name for name, bytes_ in found.items() if any(len(who) > 1 for who in bytes_.values())}


@pytest.mark.parametrize("kernel", CASES)
def test_every_byte_has_one_writer_and_the_order_of_programs_decides_nothing(kernel):
    for launch in launches(kernel, *CASES[kernel]):
        assert len(programs_of(launch)) > 1
        assert not twice_written(launch)
        assert not differing(launch)
        launch.run()  # the next launch of a prefill reads what this one left


def test_each_block_of_a_live_states_values_has_one_owner():
    """(slot, value head, block of values): all of its bytes belong to one program, and no other slot to anybody."""
    (launch,) = launches("gdn_replay")
    state, block = launch.arguments["state"], launch.arguments["SPAN"]
    owners = writers(launch)["state"]
    HV, V, K = state.shape[1:]
    of_block = {}
    for byte, (program,) in owners.items():
        element = byte // 4 - state.storage_offset()
        slot, rest = divmod(element, HV * V * K)
        head, value = divmod(rest // K, V)
        of_block.setdefault((slot, head, value // block), set()).add(program)
    assert all(len(programs) == 1 for programs in of_block.values())
    slots = [int(batch(SHAPE, ROWS, seed=3).state_indices[b, 0]) for b in (0, 2)]
    assert set(of_block) == {
        (slot, head, part) for slot in slots for head in range(HV) for part in range(V // block)
    }


def test_a_journal_that_is_written_where_it_is_read_is_caught(tmp_path):
    """One half for both: a program overwrites keys and decays that another one still has to replay."""
    fault = planted(replay, tmp_path, ("(1 - turn) * R + i", "turn * R + i"))
    (right,) = launches("gdn_replay")
    wrong = launching.Launch(fault.gdn_replay_kernel, right.grid, right.arguments)
    assert {"state", "out"} <= differing(wrong)


def test_a_key_that_two_programs_log_is_caught(tmp_path):
    """Both write the same bytes, so no result shows it."""
    fault = planted(replay, tmp_path, (" & leads)", ")"))
    (right,) = launches("gdn_replay")
    wrong = launching.Launch(fault.gdn_replay_kernel, right.grid, right.arguments)
    assert twice_written(wrong) == {"last_k"}


def test_a_convolution_that_moves_its_line_on_before_others_read_it_is_caught(tmp_path):
    """The fused decode without its counter: every program moves the line of its key head on."""
    from harness.engine.kernels import decode

    fault = planted(decode, tmp_path, ("== SHARERS - 1", ">= 0"))
    (right,) = launches("decode", QUARTER, SINGLE[:1])
    wrong = launching.Launch(fault.decode_kernel, right.grid, right.arguments)
    assert "line" in twice_written(wrong)
    assert "state" in differing(wrong)
