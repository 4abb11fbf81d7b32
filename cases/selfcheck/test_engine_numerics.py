"""The whole engine in float32 against the float64 oracle, with both kinds of kernels, over every shape of a step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

from harness import Lab, Plan, Scenario, Trace
from harness.check.distance import conv_error, logits_error, recurrent_error
from harness.check.observe import observe
from harness.check.reference import Reference, ReferenceBook, accepted_counts
from harness.engine.kernels import CORRECT, Decision
from harness.engine.kernels.select import Kind
from harness.engine.loader import Loader
from harness.engine.policy import POLICY, Policy
from harness.oracle.model import Oracle
from harness.targets.embedded import EmbeddedTarget

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
MOST = 1e-5  # relative RMS in float32
DEVICE = "cpu" if isinstance(tl.cdiv, InterpretedFunction) else "cuda"
"""Where Triton runs in this process: in its interpreter, or on a GPU."""
EVENTS = (
    "prompt in pieces",
    "prompt beside verify rows",
    "one-token prompt row",
    "unequal rows",
    "different previous counts",
    "grammar trims to zero",
    "verify step without drafts",
    "no drafts after several accepted",
    "row shorter than accepted before",
    "drafts after a step without",
    "all drafts accepted",
    "rollback",
    "padded rows",
    "padded tokens",
)


@pytest.fixture(scope="module")
def scenario(peaked: Path) -> Scenario:
    """Two guided requests and a free one; the last to run accepts several drafts, and then nobody has any."""
    return Lab(peaked, FIXTURES).forced(
        "every shape of a step",
        k=3,
        token_budget=12,
        capture_sizes=(8, 12),
        plans={
            "r0": Plan(guided=True, prompt=18, turns=((3, 4), (0, 1), (3, 2))),
            "r1": Plan(
                guided=True, prompt=1, turns=((1, 2), (2, 3), (0, 1), (3, 4), (1, 1), (2, 3), (0, 1), (2, 1))
            ),
            "r2": Plan(prompt=13, arrival=3, turns=((3, 4), (1, 1))),
        },
    )


@pytest.fixture(scope="module")
def loaders(peaked: Path) -> dict[str, Loader]:
    return {device: Loader(peaked, device=device) for device in {"cpu", DEVICE}}


@pytest.fixture(scope="module")
def oracle(peaked: Path) -> Oracle:
    return Oracle.load(peaked)


def target(loaders: dict[str, Loader], kernels: Kind, policy: Policy = POLICY) -> EmbeddedTarget:
    device = DEVICE if kernels == "triton" else "cpu"
    return EmbeddedTarget(loader=loaders[device], policy=policy, kernels=kernels, device=device)


def largest_errors(oracle: Oracle, scenario: Scenario, trace: Trace) -> dict[str, float]:
    """Relative RMS against the oracle: the worst layer, head and position of the whole run."""
    assert trace.crash is None, trace.crash
    reference = Reference(ReferenceBook(oracle), scenario, trace)
    worst = {"conv": 0.0, "recurrent": 0.0, "logits": 0.0}
    for row in (row for step in trace.steps for row in step.rows):
        assert row.state is not None
        replay, counts = reference.replay(row.request), accepted_counts(row)
        expected = replay.states[row.state.tokens_included]
        seen = {
            "conv": float(conv_error(row.state.conv, expected.conv).max()),
            "recurrent": float(recurrent_error(row.state.recurrent, expected.recurrent).max()),
        }
        if row.logits is not None and counts:
            logits = replay.logits[[count - 1 for count in counts]]
            seen["logits"] = float(logits_error(row.logits[: len(counts)], logits).max())
        worst |= {name: max(worst[name], error) for name, error in seen.items()}
    return worst


@pytest.fixture(scope="module")
def runs(loaders: dict[str, Loader], scenario: Scenario) -> dict[str, Trace]:
    kinds: tuple[Kind, ...] = ("naive", "triton")
    return {kind: target(loaders, kind).run(scenario) for kind in kinds}


@pytest.fixture(params=["naive", "triton"])
def run(request: pytest.FixtureRequest, runs: dict[str, Trace]) -> Trace:
    return runs[request.param]


def test_the_scenario_has_every_shape(run: Trace, scenario: Scenario) -> None:
    seen = observe(scenario, run)
    assert [event for event in EVENTS if not seen[event]] == []


def test_states_and_logits_stay_within_float32(run: Trace, scenario: Scenario, oracle: Oracle) -> None:
    errors = largest_errors(oracle, scenario, run)
    print(run.notes["kernels"], errors)
    assert max(errors.values()) <= MOST, errors


def test_both_kinds_of_kernels_agree_row_by_row(runs: dict[str, Trace]) -> None:
    naive, triton = runs.values()
    assert naive.notes["kernels"] != triton.notes["kernels"]
    assert len(naive.steps) == len(triton.steps)
    for left, right in zip(naive.steps, triton.steps, strict=True):
        for one, other in zip(left.rows, right.rows, strict=True):
            assert (one.request, one.kept, one.committed) == (other.request, other.kept, other.committed)
            assert one.state is not None
            assert other.state is not None
            assert conv_error(one.state.conv, other.state.conv).max() <= MOST
            assert recurrent_error(one.state.recurrent, other.state.recurrent).max() <= MOST


def test_a_state_read_one_token_late_is_a_thousand_times_the_tolerance(
    loaders: dict[str, Loader], scenario: Scenario, oracle: Oracle
) -> None:
    late = Decision(naive=lambda a: (a - 2).clamp(min=0), triton=CORRECT.read_column.triton)
    policy = dataclasses.replace(POLICY, kernels=dataclasses.replace(CORRECT, read_column=late))
    errors = largest_errors(oracle, scenario, target(loaders, "naive", policy).run(scenario))
    assert errors["recurrent"] > 1000 * MOST


def test_states_stored_in_bfloat16_are_close_and_visibly_rounded(
    peaked: Path, scenario: Scenario, oracle: Oracle
) -> None:
    rounded = EmbeddedTarget(
        loader=Loader(peaked), policy=POLICY, kernels="naive", state_dtype=torch.bfloat16
    ).run(scenario)
    errors = largest_errors(oracle, scenario, rounded)
    assert 1e-3 < errors["recurrent"] < 0.06, errors
    assert np.isfinite(list(errors.values())).all()
