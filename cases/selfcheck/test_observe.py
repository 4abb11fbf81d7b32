"""Events: each is seen where it happened and nowhere else, and the shipped cases demand what their plans give."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cases import load_cases
from harness.check.observe import EVENTS, missing, observe
from harness.lab import Lab
from harness.scenario import Request, Scenario
from harness.targets.embedded import under_each_variant
from harness.trace import RowTrace, StepTrace, Trace

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = Scenario(
    name="observed", requests=tuple(Request(id=name, prompt=(1,), max_tokens=9) for name in "abc")
)


def prompt(request: str, tokens: int, **other: Any) -> RowTrace:
    """A row of prompt tokens."""
    return RowTrace(
        request=request,
        prompt_tokens=tokens,
        num_computed=tokens,
        previous_accepted=1,
        **{"kept": (), "committed": (7,), **other},
    )


def verify(
    request: str, kept: int, accepted: int, *, proposed: int | None = None, before: int = 1, **other: Any
) -> RowTrace:
    """A verify row: drafts kept, tokens committed, drafts proposed, a of the step before."""
    return RowTrace(
        request=request,
        prompt_tokens=0,
        kept=(3,) * kept,
        committed=(3,) * accepted,
        num_computed=9,
        previous_accepted=before,
        proposed=(3,) * (kept if proposed is None else proposed),
        **other,
    )


def events(*steps: tuple[RowTrace, ...], **padding: int) -> Counter[str]:
    """What is observed, without zeros; the padding is the first step's."""
    traces = [StepTrace(index=i, rows=rows, **(padding if i == 0 else {})) for i, rows in enumerate(steps)]
    trace = Trace(scenario="observed", target="t", steps=tuple(traces), completions={}, linear_layers=())
    return +observe(SCENARIO, trace)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], {}),
        ([(prompt("a", 4),)], {}),
        ([(prompt("a", 1),)], {"one-token prompt row": 1}),
        ([(prompt("a", 4), prompt("b", 4), prompt("c", 4))], {"several prompts": 1}),
        (
            [(prompt("a", 4, committed=()),), (prompt("a", 3),)],
            {"prompt in pieces": 1},
        ),
        ([(verify("a", 2, 3),)], {"all drafts accepted": 1}),
        ([(verify("a", 2, 2),)], {"rollback": 1}),
        ([(verify("a", 2, 1), verify("b", 2, 1))], {"rollback": 2}),
        ([(verify("a", 0, 1),)], {"verify step without drafts": 1}),
        (
            [(verify("a", 0, 1), verify("b", 1, 2))],
            {"unequal rows": 1, "different accepted counts": 1, "all drafts accepted": 1},
        ),
        (
            [(verify("a", 1, 2), verify("b", 2, 2))],
            {"unequal rows": 1, "all drafts accepted": 1, "rollback": 1},
        ),
        (
            [(verify("a", 1, 2, before=2), verify("b", 1, 2, before=1))],
            {"different previous counts": 1, "all drafts accepted": 2},
        ),
        (
            [(verify("b", 1, 2), prompt("a", 4))],
            {"prompt beside verify rows": 1, "all drafts accepted": 1},
        ),
        (
            [(prompt("a", 4), verify("b", 1, 2))],
            {"prompt beside verify rows": 1, "prompt before a verify row": 1, "all drafts accepted": 1},
        ),
        (
            [(verify("a", 0, 1, before=2),)],
            {
                "no drafts after several accepted": 1,
                "row shorter than accepted before": 1,
                "verify step without drafts": 1,
            },
        ),
        ([(verify("a", 1, 2, before=2),)], {"all drafts accepted": 1}),
        (
            [(verify("a", 1, 2, before=3),)],
            {"row shorter than accepted before": 1, "all drafts accepted": 1},
        ),
        (
            [(verify("a", 1, 2, proposed=3),)],
            {"trim": 1, "schedule trim": 1, "all drafts accepted": 1},
        ),
        (
            [(verify("a", 1, 2, proposed=3, grammar_kept=1),)],
            {"trim": 1, "grammar trim": 1, "all drafts accepted": 1},
        ),
        (
            [(verify("a", 1, 2, proposed=3, grammar_kept=2),)],
            {"trim": 1, "grammar trim": 1, "schedule trim": 1, "all drafts accepted": 1},
        ),
        ([(verify("a", 3, 4, grammar_kept=3),)], {"all drafts accepted": 1}),
        (
            [(verify("a", 0, 1, proposed=3, grammar_kept=0),)],
            {"trim": 1, "grammar trim": 1, "grammar trims to zero": 1, "verify step without drafts": 1},
        ),
        ([(verify("a", 0, 1, grammar_kept=0),)], {"verify step without drafts": 1}),
        (
            [(verify("a", 0, 1),), (verify("a", 1, 2),)],
            {"verify step without drafts": 1, "drafts after a step without": 1, "all drafts accepted": 1},
        ),
        (
            [(verify("a", 0, 1),), (verify("b", 1, 2),)],
            {"verify step without drafts": 1, "all drafts accepted": 1},
        ),
        (
            [(prompt("a", 4),), (verify("a", 1, 2),)],
            {"all drafts accepted": 1},
        ),
        ([(prompt("a", 4, slots=(1,)),), (prompt("b", 4, slots=(1,)),)], {"slot reuse": 1}),
        ([(prompt("a", 4, slots=(1,)),), (prompt("b", 4, slots=(2,)),)], {}),
        ([(prompt("a", 4, finish_reason="stop"), prompt("b", 4))], {"several prompts": 1}),
        ([(prompt("a", 4),), (prompt("b", 4),)], {}),
    ],
)
def test_an_event_is_counted_where_it_happened_and_nowhere_else(
    steps: list[tuple[RowTrace, ...]], expected: dict[str, int]
) -> None:
    assert events(*steps) == expected


def test_padding_is_counted_by_step() -> None:
    rows = [(prompt("a", 4),), (prompt("b", 4),)]
    assert events(*rows, padded_rows=3) == {"padded rows": 1}
    assert events(*rows, padded_tokens=3) == {"padded tokens": 1}


def test_every_event_happens_in_the_examples_above() -> None:
    """An event that is added needs an example."""
    marks = test_an_event_is_counted_where_it_happened_and_nowhere_else.pytestmark
    seen = {name for _, expected in marks[0].args[1] for name in expected}
    assert seen | {"padded rows", "padded tokens"} == set(EVENTS)


def test_what_is_missing_is_said_with_both_numbers() -> None:
    scenario = Scenario(
        name="x",
        requests=SCENARIO.requests,
        must_observe={"rollback": 3, "trim": 1, "padded rows": 1, "no such event": 1},
    )
    assert list(missing(scenario, Counter({"rollback": 2, "trim": 1}))) == [
        "rollback: seen 2, demanded 3",
        "padded rows: seen 0, demanded 1",
        "no such event: seen 0, demanded 1",
    ]
    assert not list(missing(SCENARIO, Counter()))


CASES = load_cases(ROOT)


@pytest.mark.parametrize("case", CASES, ids=[case.ref for case in CASES])
def test_cases_demand_events_that_exist(case: Any, peaked: Path) -> None:
    demanded = {
        name for scenario in case.build(Lab(peaked, ROOT / "fixtures")) for name in scenario.must_observe
    }
    assert demanded
    assert demanded <= set(EVENTS)


@pytest.mark.parametrize("case", CASES, ids=[case.ref for case in CASES])
def test_forced_scenarios_give_what_they_demand_whatever_the_seed(case: Any, peaked: Path) -> None:
    """Events follow from a plan's counts, not from its tokens: seeds that plan alike need one run."""
    target = under_each_variant(peaked, kernels="naive")("fixed")
    tried = set()
    for seed in range(5):
        for scenario in case.build(Lab(peaked, ROOT / "fixtures", seed)):
            if scenario.script is None:
                continue
            shape = (
                scenario.name,
                *((len(turn.drafts), turn.accepted) for turns in scenario.script.values() for turn in turns),
            )
            if shape in tried:
                continue
            tried.add(shape)
            trace = target.run(
                replace(scenario, most_compilations=None)
            )  # what is compiled is another matter
            assert trace.crash is None
            assert not list(missing(scenario, observe(scenario, trace))), (seed, scenario.name)
    assert len(tried) >= 3
