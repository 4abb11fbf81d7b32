"""A failure made small: still the same mistake, and a program of one file shows it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness import Event, Request, Scenario, Turn
from harness.explore.export import write_json, write_program
from harness.explore.generate import scenario
from harness.explore.shrink import Found, reduce, shrink
from harness.explore.smaller import smaller
from harness.explore.workbench import Setting, Workbench
from harness.models.tiny import ensure

BIG = Scenario(
    name="big",
    k=4,
    regime="placeholder",
    capture_sizes=(4, 8),
    block_size=4,
    requests=(
        Request(id="a", prompt=(5, 6, 7, 8, 9), max_tokens=20, arrival=2),
        Request(id="b", prompt=(5, 6, 7), max_tokens=20, ignore_eos=True),
        Request(id="c", prompt=(5, 6, 7, 8), max_tokens=20),
    ),
    script={
        name: (Turn(token=3), Turn(drafts=(4, 5, 6), accepted=3, token=7), Turn(drafts=(8,), token=9))
        for name in "abc"
    },
    events=(Event(step=5, what="preempt", request="b"), Event(step=3, what="draft length", k=2)),
)


def test_every_smaller_scenario_is_legal_and_another() -> None:
    candidates = list(smaller(BIG))
    assert len(candidates) > 60
    for candidate in candidates:
        assert candidate != BIG
        assert Scenario.from_json(candidate.to_json()) == candidate
        assert len(candidate.requests) <= 3
        assert len(candidate.to_json()) <= len(BIG.to_json())


def test_reduction_keeps_what_matters_and_nothing_else() -> None:
    def still(candidate: Scenario) -> bool:
        preempted = {event.request for event in candidate.events if event.what == "preempt"}
        return any(
            turn.accepted == 2
            for name, turns in (candidate.script or {}).items()
            if name in preempted
            for turn in turns
        )

    done = reduce(BIG, lambda candidate: still(candidate) or _several(candidate))
    assert [request.id for request in done.requests] == ["b"]
    assert done.requests[0].prompt in {(5,), (7,)}
    assert [event.what for event in done.events] == ["preempt"]
    assert done.events[0].step == 0
    assert done.regime == "trim"
    assert not done.capture_sizes
    assert done.k == 1
    assert len((done.script or {})["b"]) == 2


def _several(candidate: Scenario) -> bool:
    """Lets the accepted count of 3 fall to 2."""
    preempted = {event.request for event in candidate.events if event.what == "preempt"}
    script = candidate.script or {}
    return any(turn.accepted > 1 for name in preempted for turn in script.get(name, ()))


def test_reduction_stops_after_so_many_tries() -> None:
    tried = []
    assert reduce(BIG, lambda candidate: bool(tried.append(candidate)), most=7) == BIG
    assert len(tried) == 7


@pytest.fixture(scope="module")
def setting(models: Path) -> Setting:
    return Setting(model=str(ensure("narrow", 0, models)), kernels="naive")


def test_a_found_failure_shrinks_to_the_same_mistake_and_its_program_shows_it(
    setting: Setting, tmp_path: Path
) -> None:
    fault = "capture-of-whole-rows"
    bench = Workbench(setting)
    drawn = (scenario(bench.words, 0, i) for i in range(100))
    given, record = next((s, r) for s in drawn if (r := bench.examine(s, fault)).killed)
    small = shrink(Found(setting=setting, variant=fault, scenario=given, record=record))
    assert small.record.mistake == record.mistake
    assert len(small.scenario.requests) == 1
    assert small.record.steps <= record.steps
    assert not bench.examine(small.scenario, "fixed").verdict.exit_code

    named = replace(small, scenario=replace(small.scenario, name="kept"))
    assert Scenario.read(write_json(named.scenario, tmp_path / "kept.json")) == named.scenario
    program = write_program(named, tmp_path / "found.py")
    assert "kernels='naive', device='cpu', graphs=True, layout='slots'" in program.read_text()
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert f"kept on {fault}: FAIL" in done.stdout
    assert f"diagnosis: {record.mistake[1]}" in done.stdout
