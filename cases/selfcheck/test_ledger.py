"""The ledger: discarded rows, resumed requests, prefix hits and reasoning are right; each wrong count has its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.check.ledger import check_ledger, entries, last_lines
from harness.scenario import Grammar, Request, Scenario
from harness.trace import Coordinate, RowTrace, StepTrace, Trace
from harness.verdict import Divergence, Verdict

ENOUGH = 50
MORE = "more accepted than drafted"
SCENARIO = Scenario(
    name="counted",
    k=3,
    requests=(
        Request(id="a", prompt=(1, 2, 3, 4, 5, 6), max_tokens=20),
        Request(
            id="b",
            prompt=(7, 8, 9),
            max_tokens=20,
            grammar=Grammar(kind="regex", text="x*"),
            reasoning_end=ENOUGH,
        ),
    ),
)


def row(request: str, fed: int, num_computed: int, committed: tuple[int, ...] = (), **other: Any) -> RowTrace:
    """A prompt row of ``fed`` tokens, or a verify row where it is 0."""
    more = {"previous_accepted": 1, "kept": () if fed else (11, 12, 13), **other}
    return RowTrace(
        request=request, prompt_tokens=fed, num_computed=num_computed, committed=committed, **more
    )


def trace_of(*steps: tuple[RowTrace, ...], preempted: dict[int, tuple[str, ...]] | None = None) -> Trace:
    """A trace; ``preempted`` by step."""
    lost = preempted or {}
    return Trace(
        scenario="counted",
        target="t",
        steps=tuple(StepTrace(index=i, rows=rows, preempted=lost.get(i, ())) for i, rows in enumerate(steps)),
        completions={},
        linear_layers=(),
    )


RIGHT = trace_of(
    (row("a", 4, 4), row("b", 3, 3, (20,), matcher_tokens=0)),
    (row("a", 2, 6, (10,)), row("b", 0, 5, (21, ENOUGH), matcher_tokens=0)),
    (row("a", 0, 9, (11, 12, 15)), row("b", 0, 8, (22, 23, 24), previous_accepted=2, matcher_tokens=3)),
    (
        row("a", 0, 9, previous_accepted=3, discarded=True),
        row("b", 0, 8, previous_accepted=3, matcher_tokens=3, discarded=True),
    ),
    (row("a", 2, 6, cached=4, resumed=True), row("b", 9, 9, (25,), matcher_tokens=4, resumed=True)),
    (row("a", 4, 10, (16,)), row("b", 0, 10, (26,), matcher_tokens=5)),
    (row("a", 0, 11, (17,)), row("b", 0, 11, (27,), matcher_tokens=6)),
    preempted={4: ("a", "b")},
)


def changed(step: int, request: str, **fields: Any) -> Trace:
    """The right trace with other fields in one row."""
    steps = list(RIGHT.steps)
    rows = [replace(r, **fields) if r.request == request else r for r in steps[step].rows]
    steps[step] = replace(steps[step], rows=tuple(rows))
    return replace(RIGHT, steps=tuple(steps))


def first(trace: Trace) -> Divergence:
    """The earliest divergence."""
    evidence = check_ledger(SCENARIO, trace, vocab_size=100)
    assert evidence.verdict is Verdict.FAIL
    return min(evidence.divergences, key=lambda divergence: divergence.at.step)


def test_the_right_trace_has_no_wrong_count() -> None:
    evidence = check_ledger(SCENARIO, RIGHT, vocab_size=100)
    assert evidence.divergences == ()
    assert (evidence.verdict, evidence.compared) == (Verdict.PASS, 14)


def test_the_ledger_says_where_each_row_starts() -> None:
    starts = {"a": [0, 4, 6, 9, 4, 6, 10], "b": [0, 3, 5, 8, 0, 9, 10]}
    for name, expected in starts.items():
        lines = [line for line in entries(SCENARIO, RIGHT) if line.request == name]
        assert [line.start for line in lines] == expected
        assert [line.step for line in lines if line.fresh] == [0, 4]


@pytest.mark.parametrize(
    ("step", "request_id", "fields", "what", "cause"),
    [
        (2, "a", {"num_computed": 8}, "num_computed_tokens", "computed count lags"),
        (2, "a", {"num_computed": 10}, "num_computed_tokens", "computed count leads"),
        (4, "a", {"num_computed": 2}, "num_computed_tokens", "computed count lags"),
        (2, "b", {"matcher_tokens": 2}, "matcher history", "matcher behind"),
        (1, "b", {"matcher_tokens": 3}, "matcher history", "matcher ahead"),
        (3, "b", {"matcher_tokens": 4}, "matcher history", "matcher ahead"),
        (2, "a", {"previous_accepted": 0}, "num_accepted_tokens", "accepted count out of range"),
        (2, "a", {"previous_accepted": 5}, "num_accepted_tokens", "accepted count out of range"),
        (0, "a", {"previous_accepted": 0}, "num_accepted_tokens", "accepted count out of range"),
        (3, "a", {"previous_accepted": 0}, "num_accepted_tokens", "accepted count out of range"),
        (2, "a", {"previous_accepted": 2}, "num_accepted_tokens", "accepted count of another row"),
        (2, "b", {"previous_accepted": 4}, "num_accepted_tokens", "all drafts counted as accepted"),
        (3, "b", {"previous_accepted": 2}, "num_accepted_tokens", "accepted count one step old"),
        (2, "b", {"previous_accepted": 3}, "num_accepted_tokens", "accepted count wrong"),
        (4, "a", {"previous_accepted": 3}, "num_accepted_tokens", "accepted count one step old"),
        (6, "a", {"committed": (11, 12, 13, 14, 15), "num_computed": 15}, "num_accepted_tokens", MORE),
        (6, "a", {"committed": (-1,)}, "committed", "token outside the vocabulary"),
        (6, "a", {"committed": (100,)}, "committed", "token outside the vocabulary"),
        (3, "a", {"committed": (14,)}, "committed", "discarded row committed"),
        (6, "a", {"committed": (), "num_computed": 10}, "committed", "nothing committed"),
        (0, "a", {"committed": (14,)}, "committed", "committed before the prompt's end"),
    ],
)
def test_a_wrong_count_is_found_where_it_is_and_named(
    step: int, request_id: str, fields: dict[str, Any], what: str, cause: str
) -> None:
    found = first(changed(step, request_id, **fields))
    assert (found.kind, found.cause) == ("ledger", cause)
    assert found.at == Coordinate(step=step, request=request_id, tensor=what)
    assert found.diagnosis is not None
    assert found.diagnosis.startswith(cause)


def test_one_mistake_explains_as_many_wrong_counts_as_it_can() -> None:
    """Both are one step old; the first alone might also have been the other row's."""
    stale = [
        (row("a", 6, 6, (10,)), row("b", 3, 3, (20,))),
        (row("a", 0, 9, (11, 12, 15)), row("b", 0, 4, (21,))),
        (row("a", 0, 10, (16,), previous_accepted=1), row("b", 0, 7, (11, 12, 23))),
        (row("a", 0, 11, (17,), previous_accepted=3), row("b", 0, 8, (24,), previous_accepted=3)),
    ]
    found = check_ledger(SCENARIO, trace_of(*stale)).divergences
    assert [(d.at.step, d.cause) for d in found] == [
        (2, "accepted count one step old"),
        (3, "accepted count one step old"),
    ]


def test_a_verify_row_within_the_prompt_is_named() -> None:
    wrong = trace_of((row("a", 4, 4),), (row("a", 0, 6, (10,)),))
    assert first(wrong).cause == "verify row before the prompt's end"


def test_a_request_that_lost_its_memory_may_not_go_on() -> None:
    wrong = trace_of(
        (row("a", 6, 6, (10,)),), (row("a", 0, 7, (11,)),), (row("a", 0, 8, (12,)),), preempted={2: ("a",)}
    )
    assert first(wrong).cause == "verify row before the prompt's end"


def test_lines_tell_what_became_of_a_row() -> None:
    lines = last_lines(SCENARIO, RIGHT, Coordinate(step=4, request="a"), count=2)
    assert lines[0].endswith("in cache 9, discarded")
    assert lines[1].endswith("in cache 6, 4 from the prefix cache, resumed")
