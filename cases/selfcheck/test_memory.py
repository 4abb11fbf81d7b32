"""Memory: a write is right or has a name, and so has a place in two hands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.check.memory import check_memory
from harness.scenario import Request, Scenario
from harness.trace import Coordinate, RowTrace, StepTrace, Trace, Writes
from harness.verdict import Divergence, Verdict

SCENARIO = Scenario(
    name="written",
    k=2,
    block_size=4,
    prefix_caching=True,
    requests=(
        Request(id="a", prompt=(1, 2, 3, 4, 5, 6), max_tokens=20),
        Request(id="b", prompt=(1, 2, 3, 4, 7), max_tokens=20),
    ),
)
A: dict[str, Any] = {"slots": (1, 2, 3), "blocks": (1, 2, 3)}
B: dict[str, Any] = {"slots": (4, 5, 6), "blocks": (1, 5, 6)}


def row(request: str, fed: int, num_computed: int, committed: tuple[int, ...] = (), **other: Any) -> RowTrace:
    """A prompt row of ``fed`` tokens, or a verify row of two where it is 0."""
    more = {"previous_accepted": 1, "kept": () if fed else (11,), **other}
    return RowTrace(
        request=request, prompt_tokens=fed, num_computed=num_computed, committed=committed, **more
    )


STEPS = (
    StepTrace(
        index=0,
        rows=(row("a", 4, 4, **A),),
        writes=Writes(conv=(1, 7), recurrent=(1, 7), kv=(0, 1, 2), snapshots=(7,)),
    ),
    StepTrace(
        index=1,
        rows=(row("a", 2, 6, (10,), **A), row("b", 1, 5, (20,), cached=4, **B)),
        writes=Writes(conv=(1, 4), recurrent=(1, 4), kv=(2, 5)),
    ),
    StepTrace(index=2, rows=(), padded_tokens=3, writes=Writes(kv=(0,))),
    StepTrace(
        index=3,
        rows=(row("a", 0, 7, (12,), **A),),
        writes=Writes(conv=(1,), recurrent=(1, 2), kv=(2, 3)),
    ),
    StepTrace(
        index=4,
        rows=(
            row("a", 0, 8, (13,), finish_reason="stop", **A),
            row("b", 0, 6, (21,), previous_accepted=1, **B),
        ),
        writes=Writes(conv=(1, 4), recurrent=(1, 2, 4, 5), kv=(2, 3, 5)),
    ),
    StepTrace(
        index=5,
        rows=(row("a", 0, 8, discarded=True, **A), row("b", 0, 7, (22,), **B)),
        writes=Writes(conv=(1, 4), recurrent=(1, 2, 4, 5), kv=(3, 5)),
    ),
    StepTrace(
        index=6,
        rows=(row("b", 0, 8, (23,), **B),),
        writes=Writes(conv=(4,), recurrent=(4, 5), kv=(5, 6)),
    ),
)
RIGHT = Trace(
    scenario="written",
    target="t",
    steps=STEPS,
    completions={},
    linear_layers=(),
    notes={"state slots": "9", "KV blocks": "12"},
)


def changed(step: int, **fields: Any) -> Trace:
    """The right trace with other fields in one step."""
    steps = [replace(s, **fields) if s.index == step else s for s in STEPS]
    return replace(RIGHT, steps=tuple(steps))


def written(step: int, tensor: str, place: int) -> Trace:
    """The right trace with one write more."""
    writes = STEPS[step].writes
    assert writes is not None
    return changed(step, writes=replace(writes, **{tensor: (*getattr(writes, tensor), place)}))


def only(trace: Trace) -> Divergence:
    """The one divergence."""
    evidence = check_memory(SCENARIO, trace)
    assert evidence.verdict is Verdict.FAIL
    (found,) = evidence.divergences
    assert found.kind == "memory"
    assert found.cause is not None
    assert found.diagnosis is not None
    assert found.diagnosis.startswith(found.cause)
    return found


def test_right_writes_pass_shared_blocks_and_snapshots_among_them() -> None:
    evidence = check_memory(SCENARIO, RIGHT)
    assert evidence.divergences == ()
    assert evidence.verdict is Verdict.PASS
    assert evidence.compared == 41


@pytest.mark.parametrize(
    ("step", "tensor", "place", "cause", "victim"),
    [
        (1, "recurrent", 0, "null slot written", ""),
        (2, "conv", 0, "null slot written", ""),
        (2, "recurrent", -1, "write before the pool", ""),
        (3, "kv", -4, "write before the pool", ""),
        (3, "recurrent", 9, "write behind the pool", ""),
        (3, "kv", 12, "write behind the pool", ""),
        (3, "recurrent", 8, "write into a free slot", ""),
        (3, "kv", 11, "write into a free slot", ""),
        (6, "conv", 1, "write into a free slot", ""),
        (6, "recurrent", 7, "write into a free slot", ""),
        (3, "recurrent", 5, "write into another request's slot", "b"),
        (3, "conv", 4, "write into another request's slot", "b"),
        (3, "kv", 5, "write into another request's slot", "b"),
        (3, "recurrent", 3, "write beyond the row", "a"),
        (1, "recurrent", 2, "write beyond the row", "a"),
        (1, "conv", 5, "write beyond the row", "b"),
        (6, "kv", 1, "write beyond the row", "b"),
        (1, "kv", 1, "shared block written", "a"),
        (4, "kv", 1, "shared block written", "a"),
    ],
)
def test_a_wrong_write_is_found_where_it_is_and_names_its_victim(
    step: int, tensor: str, place: int, cause: str, victim: str
) -> None:
    found = only(written(step, tensor, place))
    assert found.cause == cause
    assert found.at == Coordinate(step=step, request=victim, tensor=tensor)


def test_a_free_slot_is_told_by_what_it_held() -> None:
    assert "held request a last" in only(written(6, "conv", 1)).message
    assert "held a snapshot last" in only(written(6, "recurrent", 7)).message


def test_memory_that_was_taken_away_is_free() -> None:
    lost = changed(3, preempted=("b",))
    lost = replace(lost, steps=lost.steps[:4])
    assert check_memory(SCENARIO, lost).verdict is Verdict.PASS
    writes = replace(STEPS[3].writes or Writes(), recurrent=(1, 2, 4))
    spoiled = replace(lost, steps=(*lost.steps[:3], replace(lost.steps[3], writes=writes)))
    found = only(spoiled)
    assert found.cause == "write into a free slot"
    assert "held request b last" in found.message


def test_a_snapshot_may_only_go_where_nobody_is() -> None:
    trace = written(3, "snapshots", 5)
    assert check_memory(SCENARIO, trace).verdict is Verdict.PASS  # nothing was written there
    writes = replace(trace.steps[3].writes or Writes(), recurrent=(1, 2, 5))
    assert only(changed(3, writes=writes)).cause == "write into another request's slot"


@pytest.mark.parametrize(
    ("b", "cause"),
    [
        ({**B, "slots": (1, 5, 6)}, "two writers of one slot"),
        ({**B, "slots": (4, 5, 3)}, "slot of two requests"),
        ({**B, "slots": (4, 4, 6)}, "two writers of one slot"),
        ({**B, "slots": (0, 5, 6)}, "null slot owned"),
        ({**B, "blocks": (1, 5, 0)}, "null slot owned"),
        ({**B, "blocks": (1, 2, 6)}, "two writers of one slot"),
        ({**B, "blocks": (5, 1, 6)}, "slot of two requests"),
    ],
)
def test_a_place_in_two_hands_is_named(b: dict[str, Any], cause: str) -> None:
    rows = (STEPS[1].rows[0], replace(STEPS[1].rows[1], **b))
    found = check_memory(SCENARIO, replace(changed(1, rows=rows), steps=(*changed(1, rows=rows).steps[:2],)))
    assert found.divergences[0].cause == cause
    assert found.divergences[0].at.request == "b"


def test_blocks_are_shared_through_the_prefix_cache_alone() -> None:
    evidence = check_memory(replace(SCENARIO, prefix_caching=False), RIGHT)
    assert evidence.divergences[0].cause == "slot of two requests"
    other = replace(SCENARIO.request("b"), prompt=(1, 2, 3, 9, 7))
    unequal = replace(SCENARIO, requests=(SCENARIO.requests[0], other))
    assert check_memory(unequal, RIGHT).divergences[0].cause == "slot of two requests"


def test_a_target_that_does_not_say_what_it_wrote_is_not_taken_for_a_right_one() -> None:
    evidence = check_memory(SCENARIO, changed(3, writes=None))
    assert evidence.verdict is Verdict.INCONCLUSIVE
    assert "1 steps did not say" in evidence.summary


def test_without_its_size_a_pool_ends_nowhere() -> None:
    assert only(replace(written(3, "recurrent", 9), notes={})).cause == "write into a free slot"
