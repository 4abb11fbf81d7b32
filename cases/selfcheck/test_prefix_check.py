"""Prefix hits and counters: what earlier steps left is what an admission finds, and what the engine counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.check.counters import check_counters
from harness.check.prefix import check_prefix
from harness.scenario import Request, Scenario
from harness.trace import Coordinate, RowTrace, StepTrace, Trace
from harness.verdict import Verdict

TEXT = tuple(range(1, 21))
SCENARIO = Scenario(
    name="cached",
    k=3,
    block_size=4,
    prefix_caching=True,
    drafter="ngram",
    requests=(
        Request(id="a", prompt=TEXT[:10], max_tokens=20),
        Request(id="b", prompt=(*TEXT[:10], 30), max_tokens=20),
        Request(id="c", prompt=TEXT[:13], max_tokens=20),
    ),
)


def prompt(request: str, fed: int, num_computed: int, *committed: int, **other: Any) -> RowTrace:
    """A prompt row."""
    more = {"previous_accepted": 1, "kept": (), "blocks": BLOCKS[request], **other}
    return RowTrace(
        request=request, prompt_tokens=fed, num_computed=num_computed, committed=committed, **more
    )


def verify(request: str, num_computed: int, *committed: int, **other: Any) -> RowTrace:
    """A verify row of three drafts."""
    more = {"previous_accepted": 1, "kept": (11, 12, -1), "blocks": BLOCKS[request], **other}
    return RowTrace(request=request, prompt_tokens=0, num_computed=num_computed, committed=committed, **more)


BLOCKS = {"a": (1, 2, 3, 4), "b": (1, 2, 5, 6), "c": (1, 2, 3, 8)}


def trace_of(*steps: tuple[RowTrace, ...], **fields: Any) -> Trace:
    """A trace of a cache that keeps 10 states."""
    return Trace(
        scenario="cached",
        target="t",
        steps=tuple(StepTrace(index=i, rows=rows) for i, rows in enumerate(steps)),
        completions={},
        linear_layers=(),
        **{"notes": {"snapshots": "10"}, **fields},
    )


def causes(trace: Trace, scenario: Scenario = SCENARIO) -> list[tuple[int, str, str | None]]:
    """(step, request, cause) of every wrong hit."""
    return [(d.at.step, d.at.request, d.cause) for d in check_prefix(scenario, trace).divergences]


# a's prompt is fed to its boundary at 8 and to its end; its verify row then goes from 10 to 13, past the boundary at 12
FED = ((prompt("a", 8, 8),), (prompt("a", 2, 10, 11),), (verify("a", 13, 12, 13, 14),))


def hit(request: str, cached: int) -> RowTrace:
    """An admission that feeds the rest of its prompt."""
    length = len(SCENARIO.request(request).prompt)
    return prompt(request, length - cached, length, 40, cached=cached)


@pytest.mark.parametrize(
    ("request_id", "cached", "cause"),
    [
        ("b", 8, None),
        ("b", 4, "prefix not found"),
        ("b", 0, "prefix not found"),
        ("b", 10, "prefix hit not aligned"),
        ("b", 7, "prefix hit not aligned"),
        ("c", 12, None),
        ("c", 8, "prefix not found"),
    ],
)
def test_a_hit_is_what_earlier_steps_left(request_id: str, cached: int, cause: str | None) -> None:
    found = causes(trace_of(*FED, (hit(request_id, cached),)))
    assert found == ([(3, request_id, cause)] if cause else [])


def test_a_wrong_hit_names_its_place_and_what_was_expected() -> None:
    evidence = check_prefix(SCENARIO, trace_of(*FED, (hit("b", 0),)))
    assert (evidence.verdict, evidence.compared) == (Verdict.FAIL, 2)
    (found,) = evidence.divergences
    assert found.kind == "ledger"
    assert found.at == Coordinate(step=3, request="b", tensor="cached")
    assert "0 of 11 tokens came from the prefix cache, earlier steps left 8" in found.message


def test_where_the_head_drafts_the_last_block_is_not_taken() -> None:
    """Behind it the head's keys are of another text. Of a's prompt a state is due at 4, though it was cut at 8."""
    mtp = replace(SCENARIO, drafter="mtp")
    assert causes(trace_of(*FED, (hit("c", 8),)), mtp) == []
    assert causes(trace_of(*FED, (hit("c", 12),)), mtp) == [(3, "c", "prefix hit too long")]
    assert causes(trace_of(*FED, (hit("b", 4),)), mtp) == []
    assert causes(trace_of(*FED, (hit("b", 0),)), mtp) == [(3, "b", "prefix not found")]
    assert causes(trace_of(*FED, (hit("b", 8),)), mtp) == [(3, "b", "prefix hit too long")]
    assert causes(trace_of(*FED, (hit("c", 12),)), replace(mtp, k=0)) == []


def test_a_prompt_leaves_a_state_where_a_lookup_can_use_it() -> None:
    """However it is cut: in one piece it would leave none that is of use to the next request."""
    at_once = (prompt("c", 13, 13, 20),)
    assert causes(trace_of(at_once, (hit("b", 8),)), replace(SCENARIO, drafter="mtp")) == [
        (1, "b", "prefix hit too long")
    ]
    longer = replace(
        SCENARIO,
        drafter="mtp",
        requests=(*SCENARIO.requests[:2], Request(id="c", prompt=TEXT[:14], max_tokens=9)),
    )
    again = Request(id="b", prompt=(*TEXT[:13], 30), max_tokens=9)
    longer = replace(longer, requests=(SCENARIO.requests[0], again, longer.requests[2]))
    first = (prompt("c", 14, 14, 20),)
    for cached, cause in [(8, None), (0, "prefix not found")]:
        row = prompt("b", 14 - cached, 14, 40, cached=cached)
        assert causes(trace_of(first, (row,)), longer) == ([(1, "b", cause)] if cause else [])


def test_the_whole_prompt_is_never_taken() -> None:
    whole = replace(
        SCENARIO, requests=(*SCENARIO.requests[:2], Request(id="c", prompt=TEXT[:8], max_tokens=9))
    )
    short = prompt("c", 1, 8, 40, cached=7)
    assert causes(trace_of(*FED, (replace(short, prompt_tokens=8, cached=0),)), whole) == []
    assert causes(trace_of(*FED, (replace(short, prompt_tokens=0, cached=8),)), whole) == [
        (3, "c", "prefix hit too long")
    ]


def test_a_step_finds_nothing_that_is_fed_in_it() -> None:
    together = (prompt("a", 8, 8), hit("b", 0))
    assert causes(trace_of(together)) == []
    assert causes(trace_of((together[0], hit("b", 8)))) == [(0, "b", "prefix hit too long")]


def test_rejected_drafts_leave_nothing() -> None:
    rejected = (*FED[:2], (verify("a", 11, 12),))
    assert causes(trace_of(*rejected, (hit("c", 12),))) == [(3, "c", "prefix hit too long")]
    assert causes(trace_of(*rejected, (hit("c", 8),))) == []


def test_a_block_that_holds_other_tokens_now_is_gone() -> None:
    """b is admitted without a prefix, and is given a's first block."""
    gone = (*FED, (prompt("b", 8, 8, blocks=(1, 6)),))
    other = replace(
        SCENARIO,
        requests=(
            SCENARIO.requests[0],
            replace(SCENARIO.requests[1], prompt=TEXT[4:15]),
            SCENARIO.requests[2],
        ),
    )
    assert causes(trace_of(*gone, (hit("c", 0),)), other) == []
    assert causes(trace_of(*gone, (hit("c", 12),)), other) == [(4, "c", "prefix hit too long")]


def test_a_block_in_another_place_is_gone_too() -> None:
    """b has a's first tokens, and is given a's first block for those behind them: its own first block is filed."""
    again = Request(id="c", prompt=TEXT[:5], max_tokens=9)
    b = replace(SCENARIO.requests[1], prompt=TEXT[:4])
    scenario = replace(SCENARIO, requests=(SCENARIO.requests[0], b, again))
    fed = ((prompt("a", 4, 4),), (prompt("b", 4, 4, 9, blocks=(7, 1)),), (verify("b", 5, 10, blocks=(7, 1)),))
    row = prompt("c", 1, 5, 40, cached=4, blocks=(7, 9))
    assert causes(trace_of(*fed, (row,)), scenario) == []


def test_where_states_may_have_been_evicted_less_is_right_too() -> None:
    for notes in ({"snapshots": "1"}, {}):
        assert causes(trace_of(*FED, (hit("c", 0),), notes=notes)) == []
        assert causes(trace_of(*FED, (hit("c", 12),), notes=notes)) == []
        assert causes(trace_of(*FED, (hit("c", 13),), notes=notes)) == [(3, "c", "prefix hit not aligned")]


def test_where_memory_went_to_a_request_that_was_preempted_less_is_right_too() -> None:
    trace = trace_of(*FED, (hit("c", 0),))
    lost = replace(trace, steps=(*trace.steps[:3], replace(trace.steps[3], preempted=("a",))))
    assert causes(lost, replace(SCENARIO, kv_blocks=9)) == []
    assert causes(lost) == [(3, "c", "prefix not found")]


def test_a_step_that_is_planned_ahead_may_not_know_yet_what_the_one_before_it_leaves() -> None:
    ahead = replace(SCENARIO, regime="placeholder")
    for cached, cause in [(0, "prefix not found"), (8, None), (12, None)]:
        assert causes(trace_of(*FED, (hit("c", cached),)), ahead) == ([(3, "c", cause)] if cause else [])
    idle = (verify("a", 13, discarded=True),)
    assert causes(trace_of(*FED, idle, (hit("c", 8),)), ahead) == [(4, "c", "prefix not found")]


def test_only_an_admission_may_take_from_the_cache() -> None:
    assert causes(trace_of(FED[0], (prompt("a", 2, 10, 11, cached=4),))) == [(1, "a", "prefix hit too long")]
    off = replace(SCENARIO, prefix_caching=False)
    assert causes(trace_of(*FED, (hit("c", 0),)), off) == []
    assert causes(trace_of(*FED, (hit("c", 12),)), off) == [(3, "c", "prefix hit too long")]


# Counters.

COUNTED = (*FED, (verify("a", 14, 15), hit("c", 12)), (verify("a", 14, discarded=True),))
COUNTERS = {
    "num_drafts": 2,
    "num_draft_tokens": 4,
    "num_accepted_tokens": 2,
    "preemptions": 0,
    "prefix_queries": 23,
    "prefix_hits": 12,
}


def test_right_counters_pass_and_none_are_inconclusive() -> None:
    evidence = check_counters(SCENARIO, trace_of(*COUNTED, counters=COUNTERS))
    assert (evidence.verdict, evidence.compared) == (Verdict.PASS, 6)
    assert check_counters(SCENARIO, trace_of(*COUNTED)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize(("value", "cause"), [(-1, "counter negative"), (99, "counter wrong")])
def test_a_wrong_counter_is_named(name: str, value: int, cause: str) -> None:
    evidence = check_counters(SCENARIO, trace_of(*COUNTED, counters={**COUNTERS, name: value}))
    assert evidence.verdict is Verdict.FAIL
    (found,) = evidence.divergences
    assert (found.cause, found.at) == (cause, Coordinate(step=4, tensor=name))


def test_preemptions_are_counted_by_request() -> None:
    trace = trace_of(*COUNTED, counters={**COUNTERS, "preemptions": 2})
    lost = replace(trace, steps=(*trace.steps, StepTrace(index=5, rows=(), preempted=("a", "c"))))
    assert check_counters(SCENARIO, lost).verdict is Verdict.PASS
