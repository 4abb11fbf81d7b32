"""The schedule: right ones pass in both regimes, and every row that is too long, too short or missing is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.check.schedule import check_schedule
from harness.scenario import Event, Request, Scenario
from harness.trace import Coordinate, RowTrace, StepTrace, Trace
from harness.verdict import Divergence, Verdict

DRAFTS = (11, 12, 13)
SCENARIO = Scenario(
    name="scheduled",
    k=3,
    token_budget=10,
    max_num_seqs=2,
    max_model_len=64,
    requests=tuple(Request(id=name, prompt=(1,) * 6, max_tokens=20) for name in "abc"),
)


def prompt(request: str, fed: int, num_computed: int, **other: Any) -> RowTrace:
    """A prompt row; it yields a token where all 6 are in cache."""
    committed = (10,) if num_computed == 6 else ()
    more = {"committed": committed, "kept": (), "previous_accepted": 1, **other}
    return RowTrace(request=request, prompt_tokens=fed, num_computed=num_computed, **more)


def verify(request: str, num_computed: int, kept: tuple[int, ...] = DRAFTS, **other: Any) -> RowTrace:
    """A verify row that commits one token; its drafts were proposed."""
    more = {"committed": (10,), "proposed": DRAFTS, "previous_accepted": 1, **other}
    return RowTrace(request=request, prompt_tokens=0, kept=kept, num_computed=num_computed, **more)


def trace_of(*steps: tuple[RowTrace, ...], around: dict[int, dict[str, Any]] | None = None) -> Trace:
    """A trace; ``around`` gives further fields of steps."""
    fields = around or {}
    return Trace(
        scenario="scheduled",
        target="t",
        steps=tuple(StepTrace(index=i, rows=rows, **fields.get(i, {})) for i, rows in enumerate(steps)),
        completions={},
        linear_layers=(),
    )


RIGHT = (
    (prompt("a", 6, 6), prompt("b", 4, 4)),
    (verify("a", 7), prompt("b", 2, 6)),
    (verify("a", 8), verify("b", 7)),
    (verify("a", 9, finish_reason="stop"), verify("b", 8)),
    (verify("b", 9), prompt("c", 6, 6)),
    (verify("b", 10, finish_reason="length"), verify("c", 7)),
    (verify("c", 8, kept=(11, 12), proposed=(11, 12)),),
    (verify("c", 9, kept=(11,), grammar_kept=1),),
)


def causes(trace: Trace, scenario: Scenario = SCENARIO) -> list[tuple[int, str, str | None]]:
    """(step, request, cause) of all that is wrong."""
    found = check_schedule(scenario, trace).divergences
    assert all(d.kind == "ledger" and d.diagnosis and d.cause and d.cause in d.diagnosis for d in found)
    return [(d.at.step, d.at.request, d.cause) for d in found]


def with_step(index: int, *rows: RowTrace) -> Trace:
    """The right trace up to a step that is other."""
    return trace_of(*RIGHT[:index], rows)


def test_a_right_schedule_passes() -> None:
    evidence = check_schedule(SCENARIO, trace_of(*RIGHT))
    assert evidence.divergences == ()
    assert (evidence.verdict, evidence.compared) == (Verdict.PASS, 14)


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (with_step(0, prompt("a", 6, 6), prompt("b", 6, 6)), (0, "", "over the token budget")),
        (with_step(4, verify("b", 9), verify("a", 10)), (4, "a", "row of a finished request")),
        (with_step(2, verify("a", 8), verify("b", 7), verify("b", 8)), (2, "b", "two rows of one request")),
        (with_step(2, verify("a", 8, kept=(11, 12)), verify("b", 7)), (2, "a", "row too short")),
        (with_step(2, verify("a", 8, kept=()), verify("b", 7)), (2, "a", "row too short")),
        (with_step(1, verify("a", 7), prompt("b", 1, 5)), (1, "b", "row too short")),
        (with_step(1, verify("a", 7), prompt("b", 3, 6)), (1, "b", "row too long")),
        (with_step(2, verify("a", 8, kept=(*DRAFTS, 14)), verify("b", 7)), (2, "a", "row too long")),
        (with_step(7, verify("c", 9, kept=(11, 12), grammar_kept=1)), (7, "c", "row too long")),
        (with_step(7, verify("c", 9, kept=(11,), grammar_kept=2)), (7, "c", "row too short")),
        (
            with_step(2, verify("a", 8, kept=(11, 12, 14)), verify("b", 7)),
            (2, "a", "drafts are not the proposed ones"),
        ),
        (
            with_step(2, verify("a", 8, kept=(11, 12, -1)), verify("b", 7)),
            (2, "a", "drafts are not the proposed ones"),
        ),
        (with_step(1, verify("a", 7), prompt("b", 2, 6, kept=(11,))), (1, "b", "drafts beside a prompt")),
        (with_step(2, verify("a", 8)), (2, "b", "request not scheduled")),
        (with_step(4, verify("b", 9)), (4, "c", "request not scheduled")),
        (with_step(0, prompt("b", 6, 6), prompt("c", 4, 4)), (0, "a", "request passed over")),
    ],
)
def test_what_is_against_the_rules_is_named(trace: Trace, expected: tuple[int, str, str]) -> None:
    assert expected in causes(trace)


def test_a_later_request_may_not_use_the_budget_of_an_earlier_one() -> None:
    scenario = replace(SCENARIO, token_budget=4)
    fed = [
        (prompt("a", 4, 4),),
        (prompt("a", 2, 6), prompt("b", 2, 2)),
    ]
    assert causes(trace_of(*fed, (verify("a", 7),)), scenario) == []
    assert causes(trace_of(*fed, (prompt("b", 4, 6),)), scenario) == [(2, "a", "request passed over")]


def test_too_many_rows_are_named() -> None:
    rows = tuple(prompt(name, 2, 2) for name in "abc")
    assert causes(trace_of(rows), SCENARIO)[0] == (0, "", "too many rows")


def test_the_length_of_the_model_cuts_rows() -> None:
    """Behind 6 + n + 1 tokens of at most 9, one more must fit."""
    scenario = replace(SCENARIO, max_model_len=9, requests=SCENARIO.requests[:1])
    started = (prompt("a", 6, 6),)
    assert causes(trace_of(started, (verify("a", 7, kept=(11,)),)), scenario) == []
    assert causes(trace_of(started, (verify("a", 7, kept=()),)), scenario) == [(1, "a", "row too short")]
    assert causes(trace_of(started, (verify("a", 7, kept=(11, 12)),)), scenario) == [(1, "a", "row too long")]


@pytest.mark.parametrize(
    ("k", "kept", "cause"), [(1, 1, None), (1, 0, "row too short"), (1, 2, "row too long")]
)
def test_k_of_the_step_counts(k: int, kept: int, cause: str | None) -> None:
    scenario = replace(SCENARIO, requests=SCENARIO.requests[:1])
    trace = trace_of((prompt("a", 6, 6),), (verify("a", 7, kept=DRAFTS[:kept]),), around={1: {"k": k}})
    assert causes(trace, scenario) == ([(1, "a", cause)] if cause else [])


def test_a_preempted_request_is_the_first_to_be_admitted_again() -> None:
    steps = (*RIGHT[:3], (verify("a", 9, finish_reason="stop"),))
    lost = {3: {"preempted": ("b",)}}
    again = prompt("b", 8, 8, resumed=True, committed=(10,))
    assert causes(trace_of(*steps, (again,), around=lost)) == [(4, "c", "request not scheduled")]
    assert causes(trace_of(*steps, (replace(again), prompt("c", 2, 2)), around=lost)) == []
    passed = trace_of(*steps, (prompt("c", 6, 6),), around=lost)
    assert (4, "b", "request not scheduled") in causes(passed)
    tight = replace(SCENARIO, token_budget=10, max_num_seqs=1)
    single = [(prompt("a", 6, 6),), (verify("a", 7),), (prompt("b", 6, 6),)]
    assert causes(trace_of(*single, around={2: {"preempted": ("a",)}}), tight) == []
    assert causes(
        trace_of(*single[:2], (), (prompt("b", 6, 6),), around={2: {"preempted": ("a",)}}), tight
    ) == [(3, "a", "request passed over")]


def test_prompts_end_at_block_boundaries_where_prefixes_are_cached() -> None:
    scenario = replace(
        SCENARIO, prefix_caching=True, block_size=4, token_budget=7, requests=SCENARIO.requests[:1]
    )
    assert causes(trace_of((prompt("a", 4, 4),), (prompt("a", 2, 6),)), scenario) == []
    assert causes(trace_of((prompt("a", 3, 3),)), scenario) == [(0, "a", "row too short")]
    assert causes(trace_of((prompt("a", 4, 4),), (prompt("a", 1, 5),)), scenario) == [
        (1, "a", "row too short")
    ]


def test_an_aborted_request_waits_no_more() -> None:
    scenario = replace(SCENARIO, events=(Event(step=0, what="abort", request="b"),), max_num_seqs=3)
    steps = ((prompt("a", 6, 6), prompt("c", 4, 4)),)
    assert causes(trace_of(*steps), scenario) == []
    assert causes(trace_of(*steps), replace(scenario, events=())) == [(0, "b", "request passed over")]


def test_a_request_that_has_not_come_is_not_missed() -> None:
    """A dummy step makes the trace longer, not the clock later."""
    late = replace(SCENARIO.requests[1], arrival=2)
    scenario = replace(SCENARIO, requests=(SCENARIO.requests[0], late))
    steps = ((prompt("a", 6, 6),), (), (verify("a", 7),), (verify("a", 8),))
    assert causes(trace_of(*steps[:3]), scenario) == []
    assert causes(trace_of(*steps), scenario) == [(3, "b", "request not scheduled")]


AHEAD = replace(SCENARIO, regime="placeholder", requests=SCENARIO.requests[:1])
STARTED = ((prompt("a", 6, 6),), (verify("a", 7, kept=(-1, -1, -1), proposed=()),))


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (verify("a", 8, kept=DRAFTS), None),
        (verify("a", 8, kept=(11, 12, -1), proposed=(11, 12)), None),
        (verify("a", 8, kept=(11, -1, -1), grammar_kept=1), None),
        (verify("a", 8, kept=(11, 12), proposed=(11, 12)), "row too short"),
        (verify("a", 8, kept=(11, 12, 13), grammar_kept=1), "drafts are not the proposed ones"),
        (verify("a", 8, kept=(12, -1, -1), grammar_kept=1), "drafts are not the proposed ones"),
        (verify("a", 8, kept=(-1, -1, -1)), "drafts are not the proposed ones"),
        (verify("a", 8, kept=(11, 12, 13, -1)), "row too long"),
    ],
)
def test_rows_of_the_placeholder_regime_are_full(row: RowTrace, cause: str | None) -> None:
    assert causes(trace_of(*STARTED, (row,)), AHEAD) == ([(2, "a", cause)] if cause else [])


def test_a_row_that_was_planned_ahead_may_be_discarded() -> None:
    done = (*STARTED, (verify("a", 8, finish_reason="stop"),))
    late = verify("a", 8, committed=(), discarded=True)
    assert causes(trace_of(*done, (late,)), AHEAD) == []
    assert causes(trace_of(*done, (replace(late, discarded=False),)), AHEAD) == [
        (3, "a", "row of a finished request")
    ]


def test_a_discarded_row_passes_nobody_over() -> None:
    """Its request came first; the budget is spent on it although it is over."""
    ahead = replace(AHEAD, token_budget=4, requests=SCENARIO.requests[:2])
    done = (
        (prompt("a", 4, 4),),
        (prompt("a", 2, 6, finish_reason="length"), prompt("b", 2, 2)),
        (verify("a", 6, committed=(), discarded=True),),
    )
    assert causes(trace_of(*done), ahead) == []


def test_lengths_are_planned_as_if_all_drafts_were_accepted() -> None:
    """The row before ends at 10 of 12 tokens at best, so 0 or 1 drafts may have been planned, or none."""
    near = replace(AHEAD, max_model_len=13)
    for kept, cause in [((-1,), None), ((-1, -1), None), ((), "row too short"), ((-1,) * 5, "row too long")]:
        row = verify("a", 8, kept=kept, proposed=())
        assert causes(trace_of(*STARTED, (row,)), near) == ([(2, "a", cause)] if cause else [])


def test_the_evidence_is_inconclusive_without_rows() -> None:
    assert check_schedule(SCENARIO, trace_of()).verdict is Verdict.INCONCLUSIVE


def test_a_divergence_names_its_place() -> None:
    found: Divergence = check_schedule(SCENARIO, with_step(2, verify("a", 8))).divergences[0]
    assert found.at == Coordinate(step=2, request="b", tensor="rows")
