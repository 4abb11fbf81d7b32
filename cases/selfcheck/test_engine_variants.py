"""A variant differs from the correct engine where its story says so, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness import Lab, Plan, Scenario, Trace
from harness.check.distance import conv_error, recurrent_error
from harness.check.observe import observe
from harness.targets.embedded import EmbeddedTarget, under_each_variant

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
NOISE = 1e-5
"""Relative RMS: a batch of another size rounds otherwise."""
Under = Callable[[str], EmbeddedTarget]


@pytest.fixture(scope="module")
def under(peaked: Path) -> Under:
    return under_each_variant(peaked)


@pytest.fixture
def lab(peaked: Path) -> Lab:
    return Lab(peaked, FIXTURES)


def same(one: Trace, other: Trace) -> bool:
    """Bit for bit: the same rows, tokens, logits and states in every step."""
    if one.crash or other.crash or len(one.steps) != len(other.steps):
        return False
    for left, right in zip(one.steps, other.steps, strict=True):
        if [row.request for row in left.rows] != [row.request for row in right.rows]:
            return False
        for a, b in zip(left.rows, right.rows, strict=True):
            assert a.state is not None
            assert b.state is not None
            arrays = (
                (a.logits, b.logits),
                (a.state.conv, b.state.conv),
                (a.state.recurrent, b.state.recurrent),
            )
            if (a.kept, a.committed, a.num_computed) != (b.kept, b.committed, b.num_computed):
                return False
            if not all(x is y is None or np.array_equal(x, y) for x, y in arrays):
                return False
    return True


def with_drafts(lab: Lab) -> Scenario:
    """Every verify row keeps a draft at least, rows are unequal, drafts are rejected."""
    plans = {f"r{i}": Plan(guided=i % 2 == 0, turns=lab.chain(10, k=3, fewest=1)) for i in range(4)}
    return lab.forced("with drafts", k=3, plans=plans)


def after_one(lab: Lab) -> Scenario:
    """Equal rows, without drafts only where the step before committed one token: column 0 is right then."""
    turns = ((1, 1), (0, 1), (2, 1), (0, 1), (0, 1), (3, 2))
    return lab.forced("after one", k=3, plans={"r0": Plan(turns=turns), "r1": Plan(guided=True, turns=turns)})


def after_several(lab: Lab) -> Scenario:
    """One row without drafts right after several were accepted, beside a row that has some."""
    plans = {"r0": Plan(turns=((3, 3), (0, 1), (2, 1))), "r1": Plan(turns=((3, 1), (2, 2), (1, 1)))}
    return lab.forced("after several", k=3, plans=plans)


def all_without(lab: Lab) -> Scenario:
    """After several were accepted, a step in which no row has a draft, then drafts again."""
    plans = {f"r{i}": Plan(turns=((3, 3), (0, 1), (2, 2), (1, 1))) for i in range(2)}
    return lab.forced("all without", k=3, plans=plans)


def equal_rows(lab: Lab) -> Scenario:
    """Every verify row is k + 1 long: a rectangle, and the prompts end together."""
    plans = {f"r{i}": Plan(turns=((3, 1 + i), (3, 4 - i), (3, 2))) for i in range(3)}
    return lab.forced("equal rows", k=3, plans=plans)


def short_rows(lab: Lab) -> Scenario:
    """Ten rows of two tokens, padded to 24."""
    plans = {f"r{i}": Plan(guided=True, turns=((1, 1 + i % 2), (1, 1))) for i in range(10)}
    return lab.forced("short rows", k=2, plans=plans, capture_sizes=(24,), max_num_seqs=24)


SCENARIOS = {
    f.__name__: f for f in (with_drafts, after_one, after_several, all_without, equal_rows, short_rows)
}
SAME_AS_FIXED = {
    "as-merged": {"with_drafts", "after_one", "equal_rows", "short_rows"},
    "stale-accepted-count": {"with_drafts", "after_several", "after_one", "equal_rows", "short_rows"},
    "before-fix": {"equal_rows", "after_one"},
    "buffers-by-requests": set(SCENARIOS) - {"short_rows"},
    "buffers-by-tokens": set(SCENARIOS),
    "constexpr-length": set(SCENARIOS),
    "fixed": set(SCENARIOS),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("variant", SAME_AS_FIXED)
def test_a_variant_differs_exactly_where_its_story_says(
    under: Under, lab: Lab, variant: str, scenario: str
) -> None:
    work = SCENARIOS[scenario](lab)
    fixed, other = under("fixed").run(work), under(variant).run(work)
    assert fixed.crash is None, fixed.crash
    assert same(other, fixed) == (scenario in SAME_AS_FIXED[variant])


def test_the_scenarios_are_what_they_say(under: Under, lab: Lab) -> None:
    def seen(scenario: Scenario, event: str) -> int:
        return observe(scenario, under("fixed").run(scenario))[event]

    assert seen(with_drafts(lab), "no drafts after several accepted") == 0
    assert seen(with_drafts(lab), "unequal rows") > 3
    assert seen(with_drafts(lab), "rollback") > 3
    assert seen(after_several(lab), "no drafts after several accepted") == 1
    assert seen(after_several(lab), "verify step without drafts") == 0
    assert seen(all_without(lab), "verify step without drafts") == 1
    assert seen(equal_rows(lab), "unequal rows") == 0
    assert seen(short_rows(lab), "padded rows") == 2


def test_the_merged_fix_is_right_for_free_text_and_its_own_drafter(under: Under, lab: Lab) -> None:
    """Untrimmed MTP drafts in every step, so nothing is ever lost; a grammar's trims change that."""
    mixed = tuple(lab.mixed_requests(8, max_tokens=30))
    free = tuple(request for request in mixed if request.grammar is None)
    scenario = Scenario(name="free", requests=free, k=3)
    fixed = under("fixed").run(scenario)
    assert same(under("as-merged").run(scenario), fixed)
    assert observe(scenario, fixed)["rollback"] > 5
    guided = replace(scenario, requests=mixed)
    assert not same(under("as-merged").run(guided), under("fixed").run(guided))


@pytest.mark.parametrize("variant", ["buffers-by-tokens", "fixed"])
def test_padding_changes_nothing_but_the_number_of_empty_rows(under: Under, lab: Lab, variant: str) -> None:
    scenario = short_rows(lab)
    padded = under(variant).run(scenario)
    assert max(step.padded_rows for step in padded.steps) == 24 - 10
    plain = under("fixed").run(replace(scenario, capture_sizes=()))
    assert [step.padded_tokens for step in plain.steps] == [0] * len(padded.steps)
    for left, right in zip(padded.steps, plain.steps, strict=True):
        for a, b in zip(left.rows, right.rows, strict=True):
            assert a.state is not None
            assert b.state is not None
            assert (a.request, a.kept, a.committed) == (b.request, b.kept, b.committed)
            assert conv_error(a.state.conv, b.state.conv).max() < NOISE
            assert recurrent_error(a.state.recurrent, b.state.recurrent).max() < NOISE
