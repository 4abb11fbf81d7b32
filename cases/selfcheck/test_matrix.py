"""The kill matrix: its arithmetic, and a sample of it, every fault on the scenario that is kept of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.engine.faults import Fault, faults
from harness.explore.coverage import Coverage
from harness.explore.matrix import Declared, Matrix, Row
from harness.explore.table import page
from harness.explore.workbench import Record, Setting, Workbench
from harness.models.tiny import ensure
from harness.scenario import Scenario
from harness.trace import Coordinate
from harness.verdict import Divergence, Verdict

SHELF = Path(__file__).resolve().parents[2] / "fixtures" / "scenarios"
ONLY_IN_REPLAY = {"replays-other-inputs"}
KEPT = {path.stem: Scenario.read(path) for path in sorted(SHELF.glob("*.json"))}
FAULTS = faults()
NOT_AS_DECLARED = {
    "drafter-reads-one-token": "drafts differ",  # the keys that it leaves are only seen in what is drafted from them
}
"""Fault -> the cause that is found instead of the declared one."""
IN_REPLAY = {
    "four-tokens-at-most": "not finite",  # what was never logged is replayed, and exp of such a gate is infinite
    "preempted-goes-on": None,  # the state in the slot is older than the line beside it
}
"""Fault -> the cause that is found in layout replay instead."""
QUIET_IN_REPLAY = {
    "drafter-in-the-wrong-group",  # the slot and the block of the only request have the same number
}
"""Faults whose kept scenario does not show them in layout replay; drawn ones do."""
LARGE = {
    "rows-by-full-length",  # rows are lost only where there are more of them than full ones would fit
}
"""Kept scenarios of more than three requests or six steps."""


def killed(name: str, steps: int, *, cause: str = "lags", at: int = 2, acted: int = 2) -> Record:
    where = Coordinate(step=at, request="r0", layer=0, tensor="conv")
    return Record(
        scenario=name,
        variant="v",
        verdict=Verdict.FAIL,
        steps=steps,
        tokens=9,
        digest=f"{name} {cause}",
        acted=acted,
        first=Divergence(kind="state", at=where, message="differs", cause=cause),
        checks={"state": at},
    )


def quiet(name: str, *, acted: int | None = None, verdict: Verdict = Verdict.PASS) -> Record:
    return Record(scenario=name, variant="v", verdict=verdict, steps=3, tokens=9, digest=name, acted=acted)


LAGS = Declared(name="one", row="A1", cause="lags", kind="state", tensor="conv", layer=0)


def test_a_row_is_told_by_its_own_kept_scenario_or_by_its_fastest_kill() -> None:
    row = Row(declared=LAGS, records=[killed("slow", 9, cause="zero"), killed("fast", 4), quiet("quiet")])
    assert row.fastest is not None
    assert row.fastest.scenario == "fast"
    assert row.acted == 2
    assert row.diagnosed
    assert row.located
    assert row.at_once
    assert row.checks() == {"state": 2}
    kept = replace(row, records=[*row.records, killed("one", 6, cause="zero")])
    assert kept.shown is not None
    assert kept.shown.scenario == "one"
    assert kept.fastest == row.fastest
    assert not kept.diagnosed


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"cause": "zero"}, "diagnosed"),
        ({"kind": "logits"}, "located"),
        ({"tensor": "recurrent"}, "located"),
        ({"layer": 1}, "located"),
    ],
)
def test_what_was_declared_otherwise_does_not_count(change: dict[str, object], wrong: str) -> None:
    row = Row(declared=replace(LAGS, **change), records=[killed("fast", 4)])
    assert {name for name in ("diagnosed", "located") if not getattr(row, name)} == {wrong}


def test_a_late_finding_is_not_at_once() -> None:
    assert not Row(declared=LAGS, records=[killed("late", 4, at=3, acted=2)]).at_once


def test_twins_count_once_and_survivors_and_false_alarms_are_red() -> None:
    one = Row(declared=LAGS, records=[killed("a", 4), quiet("b")])
    twin = Row(declared=replace(LAGS, name="twin"), records=[killed("a", 4), quiet("b")])
    other = Row(declared=replace(LAGS, name="other"), records=[killed("a", 4, cause="zero"), quiet("b")])
    idle = Row(declared=replace(LAGS, name="idle"), records=[quiet("a"), quiet("b")])
    variant = Row(declared=Declared(name="as-merged", counted=False), records=[killed("a", 4)])
    rows = [one, twin, other, idle, variant]
    matrix = Matrix(rows=rows, clean=[quiet("a")], generated=1)
    summary = matrix.summary()
    assert summary["twins"] == {"twin": "one"}
    assert summary["faults"] == 3
    assert summary["killed"] == 2
    assert summary["survivors"] == ["idle"]
    assert summary["diagnosed"] == 1
    assert summary["kills"] == 2
    assert summary["kills_diagnosed"] == 1
    assert summary["coordinates"] == 2
    assert summary["exit"] == 1
    green = replace(matrix, rows=[one, other], clean=[quiet("a")])
    assert green.summary()["exit"] == 0
    alarmed = replace(green, clean=[quiet("a", verdict=Verdict.FAIL)])
    assert alarmed.summary()["false_alarms"] == 1
    assert alarmed.summary()["exit"] == 1
    undecided = replace(green, clean=[quiet("a", verdict=Verdict.INCONCLUSIVE)])
    assert undecided.summary()["undecided"] == 1
    text = page(matrix, Coverage.of([]), "make matrix")
    assert "| A1 | one | 1 of 1 | state | 2 |" in text
    assert "acted in 0 of 2" in text
    assert "zero (declared: lags)" in text


def test_two_faults_that_did_nothing_are_no_twins() -> None:
    rows = [Row(declared=replace(LAGS, name=name), records=[quiet("a")]) for name in "xy"]
    assert not Matrix(rows=rows, clean=[], generated=0).twins


@pytest.fixture(scope="session")
def folder(models: Path) -> str:
    return str(ensure("narrow", 0, models))


@pytest.fixture(scope="session")
def bench(folder: str) -> Workbench:
    return Workbench(Setting(model=folder, kernels="naive"))


@pytest.fixture(scope="session")
def replaying(folder: str) -> Workbench:
    return Workbench(Setting(model=folder, kernels="naive", layout="replay"))


def test_a_scenario_of_every_fault_is_kept() -> None:
    assert set(FAULTS) <= set(KEPT)


@pytest.mark.parametrize("name", [name for name in KEPT if name not in ONLY_IN_REPLAY])
def test_what_is_kept_passes_on_the_correct_engine_and_finds_its_fault(name: str, bench: Workbench) -> None:
    kept = replace(KEPT[name], name=name)
    correct = bench.examine(kept, "fixed")
    assert not correct.verdict.exit_code, correct.first
    if name not in FAULTS:
        return  # a false alarm of the past
    fault: Fault = FAULTS[name]
    found = bench.examine(kept, name)
    row = Row(
        declared=Declared(
            name=name,
            row=fault.row,
            cause=fault.cause,
            kind=fault.kind,
            tensor=fault.tensor,
            layer=fault.layer,
        ),
        records=[found],
    )
    assert found.killed
    assert found.first is not None
    assert found.first.cause == NOT_AS_DECLARED.get(name, fault.cause)
    assert row.located
    assert name in LARGE or (len(kept.requests) <= 3 and found.steps <= 6)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_does_so_in_layout_replay(name: str, replaying: Workbench) -> None:
    kept = replace(KEPT[name], name=name)
    correct = replaying.examine(kept, "fixed")
    assert not correct.verdict.exit_code, correct.first
    if name not in FAULTS or FAULTS[name].layout == "slots":
        return
    found = replaying.examine(kept, name)
    assert found.killed != (name in QUIET_IN_REPLAY)
    if found.first is not None:
        assert found.first.cause == (IN_REPLAY | NOT_AS_DECLARED).get(name, FAULTS[name].cause)


def test_a_fault_of_one_layout_cannot_act_in_the_other(bench: Workbench) -> None:
    (name,) = (fault.name for fault in FAULTS.values() if fault.layout == "replay")
    assert {name} == ONLY_IN_REPLAY
    assert not bench.examine(KEPT[name], name).killed
