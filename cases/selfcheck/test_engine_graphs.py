"""Captured steps: nothing in them waits for a tensor, and a replay is the step itself.

On a CPU a replay runs the same code on the same kept tensors; on a GPU it is a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from harness import Event, Lab, Plan, Scenario, Trace, Verdict
from harness.check.gauge import Gauges
from harness.check.observe import observe
from harness.engine.config import EngineConfig, Layout
from harness.engine.engine import Engine
from harness.engine.graphs import Graphs, mapped, tensors
from harness.engine.guided import Grammars
from harness.engine.kernels.naive import NaiveKernels
from harness.engine.linear_layer import LinearLayer
from harness.engine.loader import Loader
from harness.engine.memory import Memory
from harness.engine.model import HybridModel
from harness.engine.moe import FEW
from harness.engine.policy import POLICY
from harness.engine.request import EngineRequest
from harness.engine.variants import variant
from harness.run import Judge
from harness.scenario import Regime
from harness.targets.embedded import EmbeddedTarget

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
SIZE = FEW // 8 + 1
"""Tokens that meet more experts than are computed for all of them."""
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")],
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaying(EmbeddedTarget):
    """Replays on any device."""

    @property
    def without_graphs(self) -> str | None:
        return None if self.graphs else "asked for"


Under = Callable[..., EmbeddedTarget]
Traces = Callable[..., Trace]


@pytest.fixture(scope="module")
def under(peaked: Path) -> Under:
    """The engine on a device, under a variant, with graphs or without."""
    loaders: dict[str, Loader] = {}

    def target(
        device: str, name: str = "fixed", *, graphs: bool = True, layout: Layout = "slots"
    ) -> EmbeddedTarget:
        loader = loaders.setdefault(device, Loader(peaked, device=device))
        return Replaying(loader=loader, policy=variant(name), device=device, graphs=graphs, layout=layout)

    return target


@pytest.fixture(scope="module")
def scenario(peaked: Path) -> Scenario:
    """Sizes that are no whole rows, padded and exactly full; rows that end, a decode without drafts, a dummy step."""
    return Lab(peaked, FIXTURES).forced(
        "captured steps",
        k=3,
        capture_sizes=(1, 4, 9),
        max_num_seqs=4,
        max_model_len=96,
        plans={
            "r0": Plan(guided=True, turns=((3, 4), (0, 1), (3, 2), (3, 1), (0, 1), (2, 3))),
            "r1": Plan(prompt=20, turns=((3, 1), (3, 2), (1, 2))),
        },
        events=(Event(step=2, what="dummy"),),
        must_observe={
            "padded rows": 3,
            "padded tokens": 3,
            "verify step without drafts": 1,
            "dummy step": 1,
        },
    )


@pytest.fixture(scope="module")
def traces(under: Under, scenario: Scenario) -> Traces:
    @cache
    def trace(device: str, graphs: bool = True, layout: Layout = "slots") -> Trace:
        return under(device, graphs=graphs, layout=layout).run(scenario)

    return trace


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", get_args(Layout))
def test_a_replay_is_the_step_itself(traces: Traces, device: str, layout: Layout) -> None:
    """Counts, tokens and writes are equal; numbers differ by what a sum over more zeros may change."""
    replayed, eager = (traces(device, graphs, layout) for graphs in (True, False))
    assert replayed.crash is None
    assert replayed.completions == eager.completions
    assert not any(step.replayed for step in eager.steps)
    assert replayed.has_graphs
    assert not eager.has_graphs
    for one, other in zip(replayed.steps, eager.steps, strict=True):
        assert one.replayed == (not any(row.prompt_tokens for row in one.rows))
        assert (one.padded_rows, one.padded_tokens) == (other.padded_rows, other.padded_tokens)
        assert one.writes == other.writes
        for mine, plain in zip(one.rows, other.rows, strict=True):
            assert (mine.kept, mine.committed, mine.slots) == (plain.kept, plain.committed, plain.slots)
            for a, b in (
                (mine.logits, plain.logits),
                (mine.state.conv, plain.state.conv),
                (mine.state.recurrent, plain.state.recurrent),
            ):
                assert a is not None
                assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_seen_and_the_correct_engine_passes(
    traces: Traces, scenario: Scenario, judged: Any, device: str
) -> None:
    trace = traces(device)
    seen = observe(scenario, trace)
    assert seen["replay padded rows"] == seen["padded rows"] >= 3
    assert seen["graph replay"] > seen["padded tokens"] >= 3  # some are exactly full
    judgement = judged(device, trace)
    assert judgement.verdict is Verdict.PASS, judgement.evidence
    assert judgement.observed["graph replay"] == seen["graph replay"]
    padding = next(e.summary for e in judgement.evidence if e.check == "padding")
    assert f"{seen['graph replay']} graph replays, {seen['padded rows']} of them with padded rows" in padding


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("regime", ["trim", "placeholder"])
def test_natural_runs_give_the_same_tokens(under: Under, peaked: Path, device: str, regime: Regime) -> None:
    """Steps that overlap, prefixes that are taken over, a row that moves, memory taken away; the drafter is MTP."""
    requests = Lab(peaked, FIXTURES).mixed_requests(4, max_tokens=16, every=2)
    natural = Scenario(
        name="natural",
        requests=tuple(requests),
        k=2,
        regime=regime,
        prefix_caching=True,
        capture_sizes=(5, 12),
        max_num_seqs=4,
        events=(Event(step=4, what="preempt", request="r1"), Event(step=7, what="draft length", k=1)),
    )
    replayed, eager = (under(device, graphs=graphs).run(natural) for graphs in (True, False))
    assert replayed.crash is None
    assert replayed.completions == eager.completions
    assert sum(step.replayed for step in replayed.steps) > 5


@pytest.fixture(scope="module")
def judged(peaked: Path, under: Under, scenario: Scenario, traces: Traces) -> Any:
    judge = Judge(peaked)
    gauges: dict[str, Gauges] = {}

    def judgement(device: str, trace: Trace) -> Any:
        if device not in gauges:
            gauges[device] = judge.calibrate(under(device), scenario, traces(device))
        return judge.judge(scenario, trace, gauges[device])

    return judgement


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "kind", "cause"),
    [
        ("padded-rows-keep-slots", "memory", "write into a free slot"),
        ("dummy-step-keeps-slots", "memory", "write into another request's slot"),
        ("null-slot-is-a-slot", "memory", "null slot written"),
        ("capture-of-whole-rows", "crash", "assertion"),
        ("rectangular-view", "crash", "shape mismatch"),
    ],
)
def test_faults_of_padding_are_found_under_replay(
    under: Under, scenario: Scenario, judged: Any, device: str, name: str, kind: str, cause: str
) -> None:
    """Slots left by an earlier step, the null slot written, and what dies dies of itself, not of its capture."""
    trace = under(device, name).run(scenario)
    first = judged(device, trace).first
    assert (first.kind, first.cause) == (kind, cause)
    plain = under(device, name, graphs=False).run(scenario)
    assert trace.crash == plain.crash
    assert len(trace.steps) == len(plain.steps)


def running(loader: Loader, lab: Lab, kernels: Any, device: str, layout: Layout) -> Engine:
    """Two requests in steps so long that experts would look for their tokens."""
    config = EngineConfig(
        capture_sizes=(SIZE,),
        graphs=True,
        max_num_seqs=4,
        max_model_len=96,
        drafter="ngram",
        device=device,
        layout=layout,
    )
    parts = (config, POLICY, kernels)
    engine = Engine(loader.model(*parts), None, Grammars(loader.vocabulary), config, POLICY)
    for i, length in enumerate((5, 20)):
        engine.add(EngineRequest(id=f"r{i}", prompt=lab.prompt(length), max_tokens=8))
    return engine


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", get_args(Layout))
def test_capture_changes_no_state(under: Under, peaked: Path, device: str, layout: Layout) -> None:
    """Not even the null slot's; keys and values only where the captured step itself puts them."""
    target = under(device)
    engine = running(target.loader, Lab(peaked, FIXTURES), target.selection.kernels, device, layout)
    batch = next(step.batch for step in iter(engine.step, None) if step.batch.captured)
    memory = Memory(engine)
    with torch.inference_mode():
        Graphs(engine.model)._capture(batch)
    changed = memory.changed()
    assert not changed.conv
    assert not changed.recurrent
    assert {*changed.kv} <= {place // engine.config.block_size for place in batch.tokens.kv_places.tolist()}


@pytest.mark.parametrize("layout", get_args(Layout))
def test_a_write_into_any_pool_of_a_linear_layer_is_seen(under: Under, peaked: Path, layout: Layout) -> None:
    """Journals, too: a row's first one is written while its state stays as it is."""
    engine = running(under("cpu").loader, Lab(peaked, FIXTURES), NaiveKernels(), "cpu", layout)
    memory = Memory(engine)
    for layer in engine.model.linear_layers.values():
        pools = list(tensors(layer.cache))
        assert len(pools) == (2 if layout == "slots" else 5)
        for pool in pools:
            pool[2].view(-1)[-1] += 1
            changed = memory.changed()
            assert (*changed.conv, *changed.recurrent) == (2,)
            assert not changed.kv


class Shapes(NaiveKernels):
    """Results of the right shape, for tensors that have nothing else."""

    def conv_update(self, x: torch.Tensor, *rest: Any, **rows: Any) -> torch.Tensor:
        return torch.empty_like(x)

    def gdn_verify(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **rows: Any) -> Any:
        return torch.empty_like(v)

    gdn_replay = gdn_verify


@pytest.mark.parametrize("layout", get_args(Layout))
def test_a_captured_step_reads_no_tensor_and_no_shape_depends_on_one(
    under: Under, peaked: Path, layout: Layout
) -> None:
    """Tensors without values stand for a device that has not come so far: whatever asks for one fails."""
    engine = running(under("cpu").loader, Lab(peaked, FIXTURES), NaiveKernels(), "cpu", layout)
    batch = next(step.batch for step in iter(engine.step, None) if step.batch.captured)
    model, bare = without_values(engine.model), without_values(batch)
    assert model.forward(bare).hidden.shape == (SIZE, engine.model.config.hidden_size)
    with pytest.raises(NotImplementedError):  # as whoever does not know that he is captured
        model.forward(replace(bare, captured=None))


def without_values(part: Any) -> Any:
    """The same on the device ``meta``."""
    bare = mapped(part, lambda tensor: tensor.to("meta"))
    if isinstance(bare, LinearLayer):
        return replace(bare, kernels=Shapes())
    if isinstance(bare, HybridModel):
        blocks = (mapped(block, lambda tensor: tensor.to("meta")) for block in bare.blocks)
        return replace(
            bare, blocks=tuple(replace(block, mixer=without_values(block.mixer)) for block in blocks)
        )
    return bare
