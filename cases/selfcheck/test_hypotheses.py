"""Every hypothesis names its own mistake: its state, put in the place of the right one, is diagnosed as what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.check.diagnose import diagnose
from harness.check.hypotheses import Hypothesis, Scene, hypotheses
from harness.check.reference import Reference, ReferenceBook
from harness.lab import Lab, Plan
from harness.oracle.model import Oracle
from harness.scenario import Scenario
from harness.targets.embedded import under_each_variant
from harness.trace import Coordinate, LayerState, RowTrace, Trace

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
LEAST_CAUSES = 15
RESIDUAL = 1e-5


class Stage:
    """A real run with a row to spoil."""

    def __init__(self, folder: Path) -> None:
        plans = {
            "gone": Plan(turns=((3, 2),)),
            "r0": Plan(guided=True, turns=((3, 4), (3, 2), (3, 1), (3, 2), (2, 3), (3, 3), (3, 2))),
            "r1": Plan(turns=((3, 2), (3, 4), (2, 3), (3, 1), (3, 3), (2, 1), (3, 3))),
        }
        self.scenario: Scenario = Lab(folder, FIXTURES, seed=2).forced("stage", k=3, plans=plans)
        self.trace: Trace = under_each_variant(folder, kernels="naive")("fixed").run(self.scenario)
        self.reference = Reference(ReferenceBook(Oracle.load(folder)), self.scenario, self.trace)

    def scene(self, index: int = -1) -> Scene:
        step = self.trace.steps[index]
        (row,) = [row for row in step.rows if row.request == "r0"]
        return Scene(trace=self.trace, reference=self.reference, step=step.index, row=row)

    def with_state(self, scene: Scene, state: LayerState, index: int) -> Trace:
        def spoil(row: RowTrace) -> RowTrace:
            return replace(row, state=state) if row is scene.row else row

        steps = list(self.trace.steps)
        steps[index] = replace(steps[index], rows=tuple(spoil(row) for row in steps[index].rows))
        return replace(self.trace, steps=tuple(steps))


@pytest.fixture(scope="module")
def stage(peaked: Path) -> Stage:
    return Stage(peaked)


def found(stage: Stage, tensor: str, scene: Scene, hypothesis: Hypothesis, index: int = -1) -> str | None:
    state = LayerState(
        conv=hypothesis.conv.astype(np.float32),
        recurrent=hypothesis.recurrent.astype(np.float32),
        tokens_included=scene.count,
    )
    at = Coordinate(step=scene.step, request="r0", layer=0, tensor=tensor)
    diagnosis = diagnose(stage.with_state(scene, state, index), stage.reference, at, RESIDUAL)
    assert diagnosis is not None
    return diagnosis.cause


def test_every_hypothesis_is_recognised_by_its_own_state(stage: Stage) -> None:
    scene = stage.scene()
    live = stage.reference.replay("r0").states[scene.count]
    told, missed = set(), []
    for hypothesis in hypotheses(scene):
        tensor = "recurrent"
        if np.allclose(hypothesis.recurrent, live.recurrent):
            tensor = "conv"
        cause = found(stage, tensor, scene, hypothesis)
        told.add(hypothesis.cause)
        if cause != hypothesis.cause:
            missed.append((hypothesis.words, cause))
    assert not missed
    assert len(told) >= LEAST_CAUSES, sorted(told)


def test_a_state_that_no_mistake_explains_is_not_given_a_name(stage: Stage) -> None:
    scene = stage.scene()
    live = stage.reference.replay("r0").states[scene.count]
    noisy = live.recurrent + np.random.default_rng(0).normal(size=live.recurrent.shape)
    odd = Hypothesis(cause="odd", words="", conv=live.conv, recurrent=noisy)
    assert found(stage, "recurrent", scene, odd) is None


def test_the_state_of_a_first_prompt_row_is_diagnosed_too(stage: Stage) -> None:
    scene = stage.scene(0)
    (dirty,) = [h for h in hypotheses(scene) if h.words.endswith("from the state of request r1")]
    assert found(stage, "recurrent", scene, dirty, index=0) == "started from another request"
