"""A run that gets nowhere ends, and memory that nobody gives back is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import Event, Lab, Plan, Scenario
from harness.check.counters import check_counters
from harness.engine.plan import Planned, ScheduledRow
from harness.engine.pool import Pool
from harness.engine.scheduler import Scheduler
from harness.targets.embedded import EmbeddedTarget, under_each_variant
from harness.verdict import Verdict

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.fixture(scope="module")
def target(narrow: Path) -> EmbeddedTarget:
    return under_each_variant(narrow)("fixed")


@pytest.fixture(scope="module")
def narrow(models: Path) -> Path:
    from harness.models.tiny import ensure

    return ensure("narrow", 0, models)


@pytest.fixture
def scenario(narrow: Path) -> Scenario:
    plans = {"r0": Plan(prompt=3, turns=((2, 2), (2, 1)))}
    return Lab(narrow, FIXTURES).forced("two steps", k=2, plans=plans)


def test_a_prompt_that_is_fed_for_ever_is_a_stall(
    target: EmbeddedTarget, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = Scheduler.fill

    def forgets(self: Scheduler, planned: list[Planned]) -> list[ScheduledRow]:
        rows = fill(self, planned)
        for row in rows:
            row.request.num_planned = 0
        return rows

    monkeypatch.setattr(Scheduler, "fill", forgets)
    trace = target.run(replace(scenario, token_budget=2))
    assert trace.crash is not None
    assert "stalled" in trace.crash.message


def test_a_long_prompt_that_is_fed_token_by_token_and_again_is_none(
    target: EmbeddedTarget, narrow: Path
) -> None:
    lab = Lab(narrow, FIXTURES)
    scenario = lab.forced(
        "again",
        k=2,
        token_budget=1,
        plans={"r0": Plan(prompt=120, turns=((2, 2), (2, 1)))},
        events=(Event(step=118, what="preempt", request="r0"),),
    )
    trace = target.run(scenario)
    assert trace.crash is None
    assert check_counters(scenario, trace).verdict is Verdict.PASS


def test_memory_that_is_not_given_back_is_counted(
    target: EmbeddedTarget, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "free", lambda self, places, owner: None)
    trace = target.run(scenario)
    assert trace.counters["slots_leaked"] == 3
    evidence = check_counters(scenario, trace)
    assert evidence.verdict is Verdict.FAIL
    assert {d.cause for d in evidence.divergences} == {"counter wrong"}
