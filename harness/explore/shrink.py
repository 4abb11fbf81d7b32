"""The smallest scenario that still makes the same mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.cases import REFERENCE_VARIANT
from harness.errors import ScenarioError
from harness.explore.smaller import smaller
from harness.explore.workbench import Record, Setting, Workbench, workbench
from harness.scenario import Scenario

MOST_TRIES = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A scenario in which a variant is wrong, and how."""

    setting: Setting
    variant: str
    scenario: Scenario
    record: Record


def shrink(found: Found) -> Found:
    """In a worker: the same mistake in a smaller scenario, in which the correct engine still passes."""
    bench = workbench(found.setting)
    records = {}

    def still(candidate: Scenario) -> bool:
        record = _examined(bench, candidate, found.variant)
        if record is None or record.mistake != found.record.mistake:
            return False
        if found.variant != REFERENCE_VARIANT:
            correct = _examined(bench, candidate, REFERENCE_VARIANT)
            if correct is None or correct.verdict.exit_code:
                return False
        records[candidate.to_json()] = record
        return True

    scenario = reduce(found.scenario, still)
    return replace(found, scenario=scenario, record=records.get(scenario.to_json(), found.record))


def reduce(scenario: Scenario, still: Callable[[Scenario], bool], most: int = MOST_TRIES) -> Scenario:
    """Greedy: the first smaller scenario that still has the property is taken, until none has it."""
    tried: set[str] = set()

    def next_smaller() -> Scenario | None:
        for candidate in smaller(scenario):
            text = candidate.to_json()
            if text not in tried and len(tried) < most:
                tried.add(text)
                if still(candidate):
                    return candidate
        return None

    while candidate := next_smaller():
        scenario = candidate
    return scenario


def _examined(bench: Workbench, scenario: Scenario, variant: str) -> Record | None:
    """``None`` where the engine cannot be asked for this at all."""
    try:
        return bench.examine(scenario, variant)
    except ScenarioError:
        return None
