"""Every hypothesis names its own mistake: its state, put in the place of the right one, is diagnosed as what it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

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
LEAST_CAUSES = 32
OF_EACH = 3
"""Hypotheses of each class that are tried in a scene; there may be dozens."""
RESIDUAL = 1e-5


class Stage:
    """A real run with a row to spoil."""

    def __init__(self, folder: Path, plans: dict[str, Plan], request: str = "r0", **settings: Any) -> None:
        self.scenario: Scenario = Lab(folder, FIXTURES, seed=2).forced("stage", k=3, plans=plans, **settings)
        self.trace: Trace = under_each_variant(folder, kernels="naive")("fixed").run(self.scenario)
        self.oracle = Oracle.load(folder)
        self.request = request

    def change(self, index: int, **fields: Any) -> None:
        """Other fields in the request's row of a step."""
        rows = [
            replace(r, **fields) if r.request == self.request else r for r in self.trace.steps[index].rows
        ]
        steps = list(self.trace.steps)
        steps[index] = replace(steps[index], rows=tuple(rows))
        self.trace = replace(self.trace, steps=tuple(steps))

    def without(self, index: int) -> None:
        """The request has no row in a step."""
        rows = [row for row in self.trace.steps[index].rows if row.request != self.request]
        steps = list(self.trace.steps)
        steps[index] = replace(steps[index], rows=tuple(rows))
        self.trace = replace(self.trace, steps=tuple(steps))

    def scene(self, index: int = -1) -> Scene:
        step = self.trace.steps[index]
        (row,) = [row for row in step.rows if row.request == self.request]
        reference = Reference(ReferenceBook(self.oracle), self.scenario, self.trace)
        return Scene(trace=self.trace, reference=reference, step=step.index, row=row)


def verify_stage(folder: Path) -> Stage:
    plans = {
        "gone": Plan(turns=((3, 2),)),
        "r0": Plan(guided=True, turns=((3, 4), (3, 2), (3, 1), (3, 2), (2, 3), (3, 3), (3, 2))),
        "r1": Plan(turns=((3, 2), (3, 4), (2, 3), (3, 1), (3, 3), (2, 1), (3, 3))),
    }
    return Stage(folder, plans)


def prompt_stage(folder: Path) -> Stage:
    """Long pieces of a prompt beside verify rows."""
    plans = {
        "r1": Plan(turns=((3, 2), (3, 4), (2, 3))),
        "r0": Plan(prompt=36, arrival=1, turns=((3, 4), (3, 2))),
    }
    return Stage(folder, plans, token_budget=20)


def hit_stage(folder: Path) -> Stage:
    """What the first piece of a prompt fed is said to come from the prefix cache, where another request's rejected
    drafts may have reached the snapshot."""
    plans = {
        "r1": Plan(turns=((3, 2), (3, 4), (3, 4), (3, 1), (3, 2), (3, 2))),
        "r0": Plan(prompt=36, arrival=5, turns=((3, 4), (3, 2))),
    }
    stage = Stage(folder, plans, token_budget=20)
    (cached,) = [row.num_computed for row in stage.trace.steps[5].rows if row.request == "r0"]
    stage.without(5)
    stage.change(6, cached=cached)
    return stage


def lonely_stage(folder: Path) -> Stage:
    """A whole prompt alone in its batch: its orders are too many to be tried, its neighbours few."""
    return Stage(folder, {"r0": Plan(prompt=17, turns=((3, 2),))})


def resumed_stage(folder: Path) -> Stage:
    """All tokens of a request are fed again from the start."""
    stage = verify_stage(folder)
    row = stage.scene().row
    stage.change(-1, prompt_tokens=row.num_computed, resumed=True, kept=())
    return stage


@pytest.fixture(scope="module")
def stage(peaked: Path) -> Stage:
    return verify_stage(peaked)


def spoiled(scene: Scene, state: LayerState) -> Trace:
    def other(row: RowTrace) -> RowTrace:
        return replace(row, state=state) if row is scene.row else row

    steps = [replace(step, rows=tuple(other(row) for row in step.rows)) for step in scene.trace.steps]
    return replace(scene.trace, steps=tuple(steps))


def found(scene: Scene, tensor: str, hypothesis: Hypothesis) -> str | None:
    state = LayerState(
        conv=hypothesis.conv.astype(np.float32),
        recurrent=hypothesis.recurrent.astype(np.float32),
        tokens_included=scene.count,
    )
    at = Coordinate(step=scene.step, request=scene.row.request, layer=0, tensor=tensor)
    diagnosis = diagnose(spoiled(scene, state), scene.reference, at, RESIDUAL)
    assert diagnosis is not None
    return diagnosis.cause


def tensor_of(scene: Scene, hypothesis: Hypothesis) -> str:
    """The tensor that a hypothesis is about: recurrent, unless it leaves that right."""
    return "conv" if np.allclose(hypothesis.recurrent[0], scene.live.recurrent[0]) else "recurrent"


SCENES = {
    "verify": (verify_stage, -1),
    "first prompt": (verify_stage, 0),
    "prompt piece": (prompt_stage, 2),
    "prefix hit": (hit_stage, 6),
    "lonely prompt": (lonely_stage, 0),
    "resumed": (resumed_stage, -1),
}


@pytest.mark.parametrize("name", SCENES)
def test_every_hypothesis_is_recognised_by_its_own_state_and_not_by_the_right_one(
    peaked: Path, name: str, told: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, index = SCENES[name]
    scene = make(peaked).scene(index)
    library = list(hypotheses(scene))
    monkeypatch.setattr(
        "harness.check.diagnose.hypotheses", lambda scene: library
    )  # made once, not each time
    tried: Counter[str] = Counter()
    missed = []
    for hypothesis in library:
        tried[hypothesis.cause] += 1
        if tried[hypothesis.cause] > OF_EACH:
            continue
        tensor = tensor_of(scene, hypothesis)
        right, wrong = (getattr(state, tensor)[0] for state in (scene.live, hypothesis))
        distance = np.sqrt(np.mean(np.square(right - wrong)) / np.mean(np.square(right)))
        cause = found(scene, tensor, hypothesis) if distance > RESIDUAL else "the right state"
        if cause != hypothesis.cause:
            missed.append((hypothesis.words, cause))
    assert not missed
    told |= set(tried)


@pytest.fixture(scope="module")
def told() -> set[str]:
    """Classes that were recognised so far."""
    return set()


def test_the_classes_are_many(told: set[str]) -> None:
    assert len(told) >= LEAST_CAUSES, sorted(told)


def test_a_state_that_no_mistake_explains_is_not_given_a_name(stage: Stage) -> None:
    scene = stage.scene()
    live = scene.live
    noisy = live.recurrent + np.random.default_rng(0).normal(size=live.recurrent.shape)
    odd = Hypothesis(cause="odd", words="", conv=live.conv, recurrent=noisy)
    assert found(scene, "recurrent", odd) is None


def test_the_state_of_a_first_prompt_row_is_diagnosed_too(stage: Stage) -> None:
    scene = stage.scene(0)
    (dirty,) = [h for h in hypotheses(scene) if h.words.endswith("from the state of request r1")]
    assert found(scene, "recurrent", dirty) == "started from another request"


@pytest.mark.parametrize("computed", [-5, 10**6])
def test_counts_beyond_all_reason_break_no_diagnosis(stage: Stage, computed: int) -> None:
    spoilt = verify_stage_like(stage)
    spoilt.change(-1, num_computed=computed)
    scene = spoilt.scene()
    lagging = next(h for h in hypotheses(scene) if h.cause == "lags")
    assert found(scene, "conv", lagging) == "lags"


def verify_stage_like(stage: Stage) -> Stage:
    """A stage of its own over the same run."""
    other = Stage.__new__(Stage)
    other.scenario, other.trace = stage.scenario, stage.trace
    other.oracle, other.request = stage.oracle, stage.request
    return other
