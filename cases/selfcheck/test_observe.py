"""Events: each is seen where it happened and nowhere else, and the shipped cases demand what their plans give."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cases import load_cases
from harness.check.observe import EVENTS, PAIRED, demanded, missing, observe, pairs
from harness.lab import Lab
from harness.scenario import Request, Scenario
from harness.targets.embedded import under_each_variant
from harness.trace import RowTrace, StepTrace, Trace

ROOT = Path(__file__).resolve().parents[2]
STOP, ENOUGH = 60, 61
SCENARIO = Scenario(
    name="observed",
    requests=(
        *(Request(id=name, prompt=(1,) * 9, max_tokens=9) for name in "abc"),
        Request(id="short", prompt=(1,) * 3, max_tokens=9),
        Request(id="stops", prompt=(1,) * 9, max_tokens=9, stop=("end",), stop_token_ids=(STOP,)),
        Request(id="thinks", prompt=(1,) * 9, max_tokens=9, reasoning_end=ENOUGH),
    ),
)


def prompt(request: str, tokens: int, **other: Any) -> RowTrace:
    """A row of prompt tokens."""
    return RowTrace(
        request=request,
        prompt_tokens=tokens,
        **{"kept": (), "committed": (7,), "previous_accepted": 1, "num_computed": tokens, **other},
    )


def verify(
    request: str, drafts: int, accepted: int, *, proposed: int | None = None, before: int = 1, **other: Any
) -> RowTrace:
    """A verify row: drafts kept, tokens committed, drafts proposed, a of the step before."""
    return RowTrace(
        request=request,
        prompt_tokens=0,
        num_computed=9,
        previous_accepted=before,
        proposed=(3,) * (drafts if proposed is None else proposed),
        **{"kept": (3,) * drafts, "committed": (3,) * accepted, **other},
    )


def events(*steps: tuple[RowTrace, ...], **padding: int) -> Counter[str]:
    """What is observed, without zeros; the padding is the first step's."""
    traces = [StepTrace(index=i, rows=rows, **(padding if i == 0 else {})) for i, rows in enumerate(steps)]
    trace = Trace(scenario="observed", target="t", steps=tuple(traces), completions={}, linear_layers=())
    return +observe(SCENARIO, trace)


def around(**fields: Any) -> Counter[str]:
    """What is observed of a step with nothing in it but what is said of the step itself."""
    step = StepTrace(index=0, **{"rows": (prompt("a", 9),), **fields})
    trace = Trace(scenario="observed", target="t", steps=(step,), completions={}, linear_layers=())
    return +observe(SCENARIO, trace)


MANY = {"two or more accepted": 1}
FALLS = {"rollback": 1, "draft length falls": 1}
HOLE = {"rollback": 1, "placeholder draft": 1}
TAIL = {"one-token prompt row": 1, "prompt tail of one token": 1}


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
        ([(verify("a", 2, 3),)], {"all drafts accepted": 1, **MANY}),
        ([(verify("a", 2, 2),)], {"rollback": 1, **MANY}),
        ([(verify("a", 2, 1), verify("b", 2, 1))], {"rollback": 2}),
        ([(verify("a", 0, 1),)], {"verify step without drafts": 1}),
        (
            [(verify("a", 0, 1), verify("b", 1, 2))],
            {"unequal rows": 1, "different accepted counts": 1, "all drafts accepted": 1, **MANY},
        ),
        (
            [(verify("a", 1, 2), verify("b", 2, 2))],
            {"unequal rows": 1, "all drafts accepted": 1, "rollback": 1, "two or more accepted": 2},
        ),
        (
            [(verify("a", 1, 2, before=2), verify("b", 1, 2, before=1))],
            {"different previous counts": 1, "all drafts accepted": 2, "two or more accepted": 2},
        ),
        (
            [(verify("b", 1, 2), prompt("a", 4))],
            {"prompt beside verify rows": 1, "all drafts accepted": 1, **MANY},
        ),
        (
            [(prompt("a", 4), verify("b", 1, 2))],
            {
                "prompt beside verify rows": 1,
                "prompt before a verify row": 1,
                "all drafts accepted": 1,
                **MANY,
            },
        ),
        (
            [(verify("a", 0, 1, before=2),)],
            {
                "no drafts after several accepted": 1,
                "row shorter than accepted before": 1,
                "verify step without drafts": 1,
            },
        ),
        ([(verify("a", 1, 2, before=2),)], {"all drafts accepted": 1, **MANY}),
        (
            [(verify("a", 1, 2, before=3),)],
            {"row shorter than accepted before": 1, "all drafts accepted": 1, **MANY},
        ),
        (
            [(verify("a", 1, 2, proposed=3),)],
            {"trim": 1, "schedule trim": 1, "all drafts accepted": 1, **MANY},
        ),
        (
            [(verify("a", 1, 2, proposed=3, grammar_kept=1),)],
            {"trim": 1, "grammar trim": 1, "all drafts accepted": 1, **MANY},
        ),
        (
            [(verify("a", 1, 2, proposed=3, grammar_kept=2),)],
            {"trim": 1, "grammar trim": 1, "schedule trim": 1, "all drafts accepted": 1, **MANY},
        ),
        ([(verify("a", 3, 4, grammar_kept=3),)], {"all drafts accepted": 1, **MANY}),
        (
            [(verify("a", 0, 1, proposed=3, grammar_kept=0),)],
            {
                "trim": 1,
                "trim to zero": 1,
                "grammar trim": 1,
                "grammar trims to zero": 1,
                "verify step without drafts": 1,
            },
        ),
        ([(verify("a", 0, 1, grammar_kept=0),)], {"verify step without drafts": 1}),
        (
            [(verify("a", 0, 1),), (verify("a", 1, 2),)],
            {
                "verify step without drafts": 1,
                "drafts after a step without": 1,
                "draft length rises": 1,
                "all drafts accepted": 1,
                **MANY,
            },
        ),
        (
            [(verify("a", 0, 1),), (verify("b", 1, 2),)],
            {"verify step without drafts": 1, "all drafts accepted": 1, **MANY},
        ),
        (
            [(prompt("a", 4),), (verify("a", 1, 2),)],
            {"all drafts accepted": 1, **MANY},
        ),
        ([(prompt("a", 4, slots=(1,)),), (prompt("b", 4, slots=(1,)),)], {"slot reuse": 1}),
        ([(prompt("a", 4, slots=(1,)),), (prompt("b", 4, slots=(2,)),)], {}),
        ([(prompt("a", 4, finish_reason="stop"), prompt("b", 4))], {"several prompts": 1}),
        ([(prompt("a", 4),), (prompt("b", 4),)], {}),
        ([(verify("a", 2, 3),), (verify("a", 1, 1),)], {"all drafts accepted": 1, **MANY, **FALLS}),
        ([(verify("a", 2, 3),), (verify("b", 1, 1),)], {"all drafts accepted": 1, **MANY, "rollback": 1}),
        ([(verify("a", 3, 1, kept=(3, -1, -1)),)], {"trim": 1, "schedule trim": 1, **HOLE}),
        ([(verify("a", 3, 1, kept=(3, -1, -1), grammar_kept=1),)], {"trim": 1, "grammar trim": 1, **HOLE}),
        (
            [(verify("a", 1, 1, kept=(-1,)),)],
            {"trim": 1, "trim to zero": 1, "schedule trim": 1, **HOLE},
        ),
        ([(verify("a", 1, 1, kept=(-1,), proposed=0),)], HOLE),
        ([(verify("a", 3, 0, discarded=True), verify("b", 1, 1))], {"rollback": 1, "discarded row": 1}),
        ([(verify("a", 3, 0, discarded=True), prompt("b", 9))], {"discarded row": 1}),
        ([(prompt("short", 3),), (prompt("short", 4, resumed=True),)], {"short prompt": 1, "resume": 1}),
        ([(prompt("a", 8, committed=()),), (prompt("a", 9, resumed=True),)], {"resume": 1}),
        (
            [(prompt("a", 8, committed=()),), (prompt("a", 1, num_computed=9),)],
            {"prompt in pieces": 1, "one-token prompt row": 1, "prompt tail of one token": 1},
        ),
        ([(prompt("a", 1, num_computed=2, committed=()),)], {"one-token prompt row": 1}),
        ([(prompt("a", 1, num_computed=9, cached=8),)], {"prefix hit": 1, **TAIL}),
        ([(verify("stops", 2, 1, committed=(STOP,), finish_reason="stop"),)], {"rollback": 1}),
        (
            [(verify("stops", 2, 1, kept=(STOP, 3), committed=(STOP,), finish_reason="stop"),)],
            {"rollback": 1, "end token in window": 1},
        ),
        (
            [(verify("stops", 1, 2, committed=(3, STOP), finish_reason="stop"),)],
            {"all drafts accepted": 1, **MANY},
        ),
        (
            [(verify("stops", 1, 2, committed=(3, 4), finish_reason="stop"),)],
            {"all drafts accepted": 1, **MANY, "stop text": 1},
        ),
        ([(verify("stops", 1, 1, finish_reason="length"),)], {"rollback": 1}),
        (
            [(verify("thinks", 2, 2, kept=(ENOUGH, 3), committed=(ENOUGH, 4)),)],
            {"rollback": 1, **MANY, "reasoning ends in window": 1},
        ),
        ([(verify("thinks", 1, 1, committed=(ENOUGH,)),)], {"rollback": 1}),
        (
            [
                (prompt("thinks", 9, committed=(ENOUGH,)),),
                (verify("thinks", 1, 2, kept=(ENOUGH,), committed=(ENOUGH, 4)),),
            ],
            {"all drafts accepted": 1, **MANY},
        ),
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
    assert events(*rows, replayed=True) == {"graph replay": 1}
    assert events(*rows, padded_rows=3, replayed=True) == {
        "padded rows": 1,
        "graph replay": 1,
        "replay padded rows": 1,
    }


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"k": 3}, {}),
        ({"k": 2}, {"k change": 1}),
        ({"k": 0}, {"k change": 1, "k is zero": 1}),
        ({"preempted": ("b", "c")}, {"preemption": 1}),
        ({"aborted": ("b",)}, {"abort": 1}),
        ({"moved": ("b",)}, {"row move": 1}),
        ({"rows": (), "padded_tokens": 4}, {"dummy step": 1, "padded tokens": 1}),
    ],
)
def test_what_happens_around_the_rows_is_counted_by_step(
    fields: dict[str, Any], expected: dict[str, int]
) -> None:
    assert around(**fields) == expected


def test_k_changes_between_steps_too() -> None:
    steps = tuple(StepTrace(index=i, rows=(prompt("a", 9),), k=k) for i, k in enumerate([3, 1, 1, 3]))
    trace = Trace(scenario="observed", target="t", steps=steps, completions={}, linear_layers=())
    assert observe(SCENARIO, trace)["k change"] == 2


def test_every_event_happens_in_the_examples_above() -> None:
    """An event that is added needs an example."""
    by_row = test_an_event_is_counted_where_it_happened_and_nowhere_else.pytestmark
    by_step = test_what_happens_around_the_rows_is_counted_by_step.pytestmark
    seen = {name for mark in (*by_row, *by_step) for _, expected in mark.args[1] for name in expected}
    assert seen | {"padded rows", "padded tokens", "graph replay", "replay padded rows"} == set(EVENTS)


def test_events_of_one_run_are_paired() -> None:
    assert set(PAIRED) <= set(EVENTS)
    once = Counter({"row move": 3, "preemption": 1, "prefix hit": 0, "rollback": 9})
    assert pairs(once) == {("preemption", "row move"): 1}
    assert pairs(Counter(PAIRED)).total() == len(PAIRED) * (len(PAIRED) - 1) // 2


def test_what_is_missing_is_said_with_both_numbers() -> None:
    scenario = Scenario(
        name="x",
        requests=SCENARIO.requests,
        must_observe={"rollback": 3, "trim": 1, "padded rows": 1, "no such event": 1},
    )
    assert list(missing(scenario.must_observe, Counter({"rollback": 2, "trim": 1}))) == [
        "rollback: seen 2, demanded 3",
        "padded rows: seen 0, demanded 1",
        "no such event: seen 0, demanded 1",
    ]
    assert not list(missing(SCENARIO.must_observe, Counter()))


def test_with_graphs_padding_must_be_replayed() -> None:
    """A scenario demands padding; a target that says it has graphs must have replayed it."""
    scenario = Scenario(
        name="x", requests=SCENARIO.requests, must_observe={"padded rows": 2, "padded tokens": 1}
    )
    steps = (StepTrace(index=0, rows=(), padded_rows=1, padded_tokens=2),) * 2

    def absent(steps: tuple[StepTrace, ...], **notes: str) -> list[str]:
        trace = Trace(scenario="x", target="t", steps=steps, completions={}, linear_layers=(), notes=notes)
        return list(missing(demanded(scenario, trace), observe(scenario, trace)))

    assert not absent(steps)
    assert not absent(steps, graphs="off: the device is cpu")
    assert absent(steps, graphs="on") == [
        "replay padded rows: seen 0, demanded 2",
        "graph replay: seen 0, demanded 1",
    ]
    assert not absent(tuple(replace(step, replayed=True) for step in steps), graphs="on")


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
            assert not list(missing(scenario.must_observe, observe(scenario, trace))), (seed, scenario.name)
    assert len(tried) >= sum(one.forced for one in case.build(Lab(peaked, ROOT / "fixtures")))
