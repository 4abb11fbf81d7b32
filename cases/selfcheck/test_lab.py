"""What the lab writes is legal by construction: grammars take every committed token, plans happen as planned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness.check.grammar import GrammarBook
from harness.errors import CaseError, ModelError, ScenarioError
from harness.lab import Lab, Plan
from harness.oracle.grammar import Vocabulary
from harness.scenario import Request, Scenario, Turn
from harness.targets.embedded import EmbeddedTarget, under_each_variant
from harness.trace import RowTrace, Trace

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.fixture(scope="module")
def target(peaked: Path) -> EmbeddedTarget:
    return under_each_variant(peaked, kernels="naive")("fixed")


@pytest.fixture(scope="module")
def grammars(peaked: Path) -> GrammarBook:
    return GrammarBook(peaked)


@pytest.fixture
def lab(peaked: Path) -> Lab:
    return Lab(peaked, FIXTURES)


def script_of(scenario: Scenario, request: str) -> tuple[Turn, ...]:
    assert scenario.script is not None
    return scenario.script[request]


def rows_of(trace: Trace, request: str) -> list[RowTrace]:
    return [row for step in trace.steps for row in step.rows if row.request == request]


@st.composite
def plans(draw: st.DrawFn, k: int) -> Plan:
    turns = draw(
        st.lists(
            st.integers(0, k).flatmap(lambda kept: st.tuples(st.just(kept), st.integers(1, kept + 1))),
            max_size=6,
        )
    )
    guided = draw(st.booleans())
    return Plan(
        turns=tuple(turns),
        prompt=draw(st.integers(1, 9)),
        arrival=draw(st.integers(0, 3)),
        guided=guided,
        ends=guided and k > 0 and draw(st.booleans()),
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, int, dict[str, Plan]]:
    k = draw(st.integers(0, 4))
    count = draw(st.integers(1, 3))
    return draw(st.integers(0, 99)), k, {f"r{i}": draw(plans(k)) for i in range(count)}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches())
@example(batch=(0, 2, {"r0": Plan(turns=((2, 1), (2, 2)), guided=True, ends=True)}))
def test_any_plan_happens_as_planned(
    batch: tuple[int, int, dict[str, Plan]], peaked: Path, target: EmbeddedTarget, grammars: GrammarBook
) -> None:
    seed, k, planned = batch
    lab = Lab(peaked, FIXTURES, seed)
    scenario = lab.forced("planned", k=k, plans=planned)
    trace = target.run(scenario)
    assert trace.crash is None
    for name, plan in planned.items():
        request, script = scenario.request(name), script_of(scenario, name)
        rows = [row for row in rows_of(trace, name) if row.committed]
        assert (len(request.prompt), request.arrival) == (plan.prompt, plan.arrival)
        assert (request.grammar is not None) is plan.guided
        assert [(len(row.kept), row.accepted) for row in rows[1 : len(plan.turns) + 1]] == list(plan.turns)
        for row, turn in zip(rows[1:], script[1:], strict=True):
            assert row.proposed == turn.drafts
            assert row.kept == turn.drafts[: len(row.kept)]
        assert len(rows) == 1 + len(plan.turns) + plan.ends
        answer = [token for row in rows for token in row.committed]
        if request.grammar:
            assert grammars(request.grammar).legal_prefix(answer) == len(answer)
            assert all(len(turn.drafts) == k for turn in script[1:])
        if plan.ends:
            assert rows[-1].finish_reason == "stop"
            assert answer[-1] == lab.end_token
            assert len(rows[-1].kept) == 1
        else:
            assert answer == [token for turn in script for token in turn.committed]
            assert rows[-1].finish_reason == "script"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches())
@example(batch=(0, 2, {"r0": Plan(turns=((2, 1), (2, 2)), guided=True, ends=True)}))
def test_drafts_of_a_plan_are_legal_as_far_as_they_are_kept_and_no_further(
    batch: tuple[int, int, dict[str, Plan]], peaked: Path, grammars: GrammarBook
) -> None:
    """Judged by the oracle's grammar alone, without any engine."""
    seed, k, planned = batch
    scenario = Lab(peaked, FIXTURES, seed).forced("planned", k=k, plans=planned)
    for name, plan in planned.items():
        grammar = scenario.request(name).grammar
        if grammar is None:
            continue
        answer: list[int] = []
        script = script_of(scenario, name)
        for turn, kept in zip(script, [0, *(n for n, _ in plan.turns), *([1] * plan.ends)], strict=True):
            position = grammars(grammar).replay(answer)
            assert position.legal_prefix(turn.drafts) == kept
            answer += turn.drafts[:1] if plan.ends and turn is script[-1] else turn.committed


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches())
def test_a_refused_draft_is_not_the_token_that_replaces_it(
    batch: tuple[int, int, dict[str, Plan]], peaked: Path
) -> None:
    """Or else a rollback would change nothing, and prove nothing."""
    seed, k, planned = batch
    scenario = Lab(peaked, FIXTURES, seed).forced("planned", k=k, plans=planned)
    for name, plan in planned.items():
        for turn, (kept, accepted) in zip(script_of(scenario, name)[1:], plan.turns, strict=False):
            if accepted <= kept:
                assert turn.drafts[accepted - 1] != turn.token


def test_tokens_of_free_requests_are_ordinary(lab: Lab, peaked: Path) -> None:
    """A special token would end the request, or be worth nothing to a tokenizer."""
    vocabulary = Vocabulary.read(peaked)
    scenario = lab.forced("free", k=3, plans={"r0": Plan(prompt=200, turns=((3, 2),) * 50)})
    used = {
        *scenario.requests[0].prompt,
        *(token for turn in script_of(scenario, "r0") for token in (*turn.drafts, turn.token)),
    }
    assert len(used) > 100
    assert all(vocabulary.encoded[token] for token in used)
    assert not used & set(vocabulary.stop_ids)


@pytest.mark.parametrize(("turns", "k"), [(((3, 1),), 2), (((1, 3),), 3), (((1, 0),), 3)])
def test_a_plan_that_could_not_happen_is_refused(
    lab: Lab, turns: tuple[tuple[int, int], ...], k: int
) -> None:
    with pytest.raises(ScenarioError, match="scenario 'no': script of 'r0', turn 1"):
        lab.forced("no", k=k, plans={"r0": Plan(turns=turns)})


def test_the_same_seed_writes_the_same_scenario_and_another_seed_other_tokens(peaked: Path) -> None:
    def written(seed: int) -> str:
        lab = Lab(peaked, FIXTURES, seed)
        turns = lab.chain(6, k=3)
        return lab.forced(
            "s", k=3, plans={"r0": Plan(turns=turns), "r1": Plan(guided=True, turns=turns)}
        ).to_json()

    assert written(5) == written(5)
    assert len({written(seed) for seed in range(8)}) == 8


def test_a_chain_has_the_lengths_that_were_asked_for(lab: Lab) -> None:
    chain = lab.chain(300, k=3, fewest=1)
    assert {kept for kept, _ in chain} == {1, 2, 3}
    assert all(1 <= accepted <= kept + 1 for kept, accepted in chain)
    assert {accepted - kept for kept, accepted in chain} >= {-2, -1, 0, 1}
    assert 0 in {kept for kept, _ in lab.chain(100, k=3)}


def test_further_settings_reach_the_scenario(lab: Lab) -> None:
    scenario = lab.forced(
        "s", k=1, plans={"r0": Plan(turns=())}, capture_sizes=(8,), must_observe={"rollback": 2}
    )
    assert (scenario.capture_sizes, scenario.must_observe) == ((8,), {"rollback": 2})
    request = Request(id="r", prompt=lab.encode("one"), max_tokens=3)
    natural = lab.natural("n", requests=iter([request]), drafter="ngram", k=2)
    assert (natural.forced, natural.drafter, natural.requests) == (False, "ngram", (request,))


def test_mixed_requests_take_turns(lab: Lab, grammars: GrammarBook) -> None:
    requests = lab.mixed_requests(7, max_tokens=9, every=2)
    assert [request.arrival for request in requests] == [0, 2, 4, 6, 8, 10, 12]
    assert [request.grammar is not None for request in requests] == [True, False] * 3 + [True]
    assert [request.ignore_eos for request in requests] == [False, True] * 3 + [False]
    assert len({request.grammar for request in requests}) > 2
    assert all(request.sampling.temperature == 0 for request in requests)
    for request in requests:
        if request.grammar:
            assert grammars(request.grammar).replay([]).allowed().any()


def test_a_fixture_that_is_not_there_lists_what_is(lab: Lab) -> None:
    there = sorted(path.stem for path in (FIXTURES / "grammars").glob("*.json"))
    assert json.loads(lab.schema(there[0]).text)
    with pytest.raises(CaseError, match=r"saw no fixture .*nothing\.json, expected one of: ") as caught:
        lab.schema("nothing")
    assert all(name in str(caught.value) for name in there)
    with pytest.raises(CaseError, match=r"nothing\.txt"):
        lab.prompts("nothing")


@pytest.mark.parametrize(
    ("damage", "ask"),
    [
        ("missing", lambda lab: lab.encode("x")),
        ("no tokenizer", lambda lab: lab.prompt(3)),
        ("bad tokenizer", lambda lab: lab.encode("x")),
        ("missing", lambda lab: lab.conv_dim),
        ("no config", lambda lab: lab.conv_dim),
        ("another family", lambda lab: lab.conv_dim),
        ("bad config", lambda lab: lab.conv_dim),
        ("no end", lambda lab: lab.end_token),
    ],
)
def test_a_model_folder_that_lacks_something_is_one_clear_error(
    peaked: Path, tmp_path: Path, damage: str, ask: Any
) -> None:
    folder = tmp_path / "model"
    if damage != "missing":
        shutil.copytree(peaked, folder)
    if damage == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    if damage == "bad tokenizer":
        (folder / "tokenizer.json").write_text("{")
    if damage == "no config":
        (folder / "config.json").unlink()
    if damage == "bad config":
        (folder / "config.json").write_text("{")
    if damage in ("another family", "no end"):
        (folder / "config.json").write_text('{"model_type": "llama"}')
        (folder / "generation_config.json").unlink()
    with pytest.raises(ModelError) as caught:
        ask(Lab(folder, FIXTURES))
    assert str(folder) in str(caught.value)
    assert "next: " in str(caught.value)


def test_the_end_token_comes_from_either_file(peaked: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(peaked, folder)
    expected = Lab(peaked, FIXTURES).end_token
    (folder / "generation_config.json").unlink()
    assert Lab(folder, FIXTURES).end_token == expected
    (folder / "generation_config.json").write_text('{"eos_token_id": 77}')
    assert Lab(folder, FIXTURES).end_token == 77
