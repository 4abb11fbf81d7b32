"""Scenarios as JSON: any legal one comes back equal, and whatever is wrong is named with its place."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.codec import decode, encode
from harness.errors import HarnessError, ScenarioError
from harness.scenario import (
    VERSION,
    Documented,
    Event,
    FailureKind,
    Grammar,
    Request,
    Sampling,
    Scenario,
    Turn,
)
from harness.verdict import Divergence, Evidence, Verdict

ids = st.integers(0, 2**31)
words = st.text(max_size=12)
grammars = st.builds(
    Grammar, kind=st.sampled_from(["json_schema", "regex", "ebnf", "choice"]), text=st.text(max_size=40)
)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 10),
    top_k=st.integers(0, 100),
    top_p=st.floats(0.01, 1),
    seed=st.integers(0, 2**63 - 1),
)
documented = st.builds(
    Documented,
    failure=st.sampled_from(get_args(FailureKind)),
    otherwise=st.none() | st.sampled_from(get_args(FailureKind)),
    message=st.none() | words,
    tensor=st.none() | words,
    layer=st.none() | st.integers(0, 99),
    step=st.none() | st.integers(0, 99),
)


@st.composite
def turns(draw: st.DrawFn, k: int, drafts: bool) -> Turn:
    proposed = draw(st.lists(ids, max_size=k)) if drafts else []
    return Turn(token=draw(ids), drafts=tuple(proposed), accepted=draw(st.integers(1, len(proposed) + 1)))


@st.composite
def events(draw: st.DrawFn, names: list[str], k: int) -> Event:
    what = draw(st.sampled_from(["preempt", "abort", "dummy", "draft length"]))
    request = draw(st.sampled_from(names)) if what in ("preempt", "abort") else ""
    return Event(step=draw(st.integers(0, 9)), what=what, request=request, k=draw(st.integers(0, k)))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    k = draw(st.integers(0, 8))
    names = draw(st.lists(words.filter(bool), min_size=1, max_size=3, unique=True))
    requests = [
        Request(
            id=name,
            prompt=tuple(draw(st.lists(ids, min_size=1, max_size=5))),
            max_tokens=draw(st.integers(1, 99)),
            arrival=draw(st.integers(0, 9)),
            grammar=draw(st.none() | grammars),
            sampling=draw(samplings),
            ignore_eos=draw(st.booleans()),
            stop_token_ids=tuple(draw(st.lists(ids, max_size=2))),
            stop=tuple(draw(st.lists(words.filter(bool), max_size=2))),
            reasoning_end=draw(st.none() | ids),
        )
        for name in names
    ]
    script = {
        name: (draw(turns(k, drafts=False)), *draw(st.lists(turns(k, drafts=True), max_size=3)))
        for name in names
    }
    return Scenario(
        name=draw(words),
        title=draw(words),
        requests=tuple(requests),
        k=k,
        drafter=draw(st.sampled_from(["mtp", "ngram"])),
        sample_drafts=draw(st.booleans()),
        script=draw(st.none() | st.just(script)),
        token_budget=draw(st.integers(1, 999)),
        max_model_len=draw(st.integers(6, 999)),
        max_num_seqs=draw(st.integers(1, 99)),
        regime=draw(st.sampled_from(["trim", "placeholder"])),
        events=tuple(draw(st.lists(events(names, k), max_size=2))),
        prefix_caching=draw(st.booleans()),
        block_size=draw(st.integers(1, 64)),
        kv_blocks=draw(st.none() | st.integers(2, 99)),
        capture_sizes=tuple(draw(st.lists(st.integers(1, 99), max_size=3))),
        most_compilations=draw(st.none() | st.integers(0, 9)),
        must_observe=draw(st.dictionaries(words, st.integers(0, 9), max_size=3)),
        documented=draw(st.dictionaries(words, documented, max_size=2)),
        reverse_rows=draw(st.booleans()),
        passes=tuple(draw(st.lists(words, max_size=2))),
    )


@settings(max_examples=150, deadline=None)
@given(scenario=scenarios())
def test_any_scenario_comes_back_equal(scenario: Scenario) -> None:
    text = scenario.to_json()
    json.loads(text, parse_constant=pytest.fail)  # no NaN, no Infinity: JSON that every tool reads
    back = Scenario.from_json(text)
    assert back == scenario
    assert back.to_json() == text


@settings(max_examples=150, deadline=None)
@given(scenario=scenarios(), data=st.data())
def test_a_damaged_scenario_is_refused_or_reads_as_it_is_written(
    scenario: Scenario, data: st.DataObject
) -> None:
    """Never another exception than the one for bad input."""
    text = scenario.to_json()
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 30)))
    junk = data.draw(st.sampled_from(["", "null", "1e999", "-1", "[]", '"x"', "NaN", "{", "0.5"]))
    try:
        read = Scenario.from_json(text[:start] + junk + text[stop:])
    except ScenarioError:
        return
    assert Scenario.from_json(read.to_json()) == read


@settings(max_examples=100, deadline=None)
@given(
    data=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | words,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_other_json_is_refused(data: Any) -> None:
    for content in (data, {"version": VERSION, "scenario": data}):
        with pytest.raises(ScenarioError, match="saw"):
            Scenario.from_json(json.dumps(content))


def test_a_file_on_disk_comes_back_equal_and_a_field_that_is_default_is_not_written(tmp_path: Path) -> None:
    scenario = base()
    path = tmp_path / "one.json"
    path.write_text(scenario.to_json(), encoding="utf-8")
    assert Scenario.read(path) == scenario
    assert "capture_sizes" not in scenario.to_json()


# Wrong in one place.


def base(**other: Any) -> Scenario:
    """A forced scenario of two requests."""
    requests = (
        Request(id="r0", prompt=(5, 6, 7), max_tokens=8, grammar=Grammar(kind="regex", text="[0-9]+")),
        Request(id="r1", prompt=(8,), max_tokens=4, sampling=Sampling(temperature=0.5)),
    )
    script = {
        "r0": (Turn(token=9), Turn(drafts=(10, 11), accepted=3, token=12)),
        "r1": (Turn(token=1),),
    }
    return Scenario(**{"name": "two rows", "k": 2, "requests": requests, "script": script, **other})


def written() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(base().to_json())
    return data


def put(data: dict[str, Any], place: str, value: Any) -> str:
    """The JSON with another value at ``place`` (``requests.0.id``)."""
    inner: Any = data["scenario"]
    *path, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    for key in path:
        inner = inner[key]
    inner[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("colour", 1, "file.json: saw 'colour', expected one of the fields of Scenario: name, requests,"),
        (
            "requests.1.colour",
            1,
            "file.json.requests[1]: saw 'colour', expected one of the fields of Request",
        ),
        ("requests.0.grammar.flags", "i", "file.json.requests[0].grammar: saw 'flags'"),
        ("script.r0.1.draft", [], "file.json.script.r0[1]: saw 'draft', expected one of the fields of Turn"),
        ("k", "3", "file.json.k: saw '3', expected a value of type int"),
        ("k", True, "file.json.k: saw True, expected a value of type int"),
        ("k", 2.0, "file.json.k: saw 2.0, expected a value of type int"),
        ("sample_drafts", 1, "file.json.sample_drafts: saw 1, expected a value of type bool"),
        ("name", None, "file.json.name: saw None, expected a value of type str"),
        ("requests", {}, "file.json.requests: saw {}, expected a list"),
        ("requests.0", [], "file.json.requests[0]: saw [], expected an object (Request)"),
        (
            "requests.0.prompt.2",
            "7",
            "file.json.requests[0].prompt[2]: saw '7', expected a value of type int",
        ),
        ("requests.1.sampling.temperature", "hot", "file.json.requests[1].sampling.temperature: saw 'hot', "),
        ("requests.1.sampling.temperature", 10**400, "saw 1000"),
        ("requests.0.grammar.kind", "yaml", "expected one of 'json_schema', 'regex', 'ebnf', 'choice'"),
        ("drafter", "eagle", "file.json.drafter: saw 'eagle', expected one of 'mtp', 'ngram'"),
        ("must_observe", [], "file.json.must_observe: saw [], expected an object"),
        ("must_observe", {"rollback": "1"}, "file.json.must_observe.rollback: saw '1', expected a value of"),
        ("documented", {"fixed": {}}, "file.json.documented.fixed: saw [], expected the field 'failure' of"),
        ("documented", {"a": {"failure": "boom"}}, "documented.a.failure: saw 'boom', expected one of"),
    ],
)
def test_an_unknown_field_or_a_wrong_type_names_the_place(place: str, value: Any, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_json(put(written(), place, value), where="file.json")
    assert said in str(caught.value)
    assert "next: " in str(caught.value)


@pytest.mark.parametrize("gone", ["name", "requests"])
def test_a_missing_field_is_named(gone: str) -> None:
    data = written()
    del data["scenario"][gone]
    with pytest.raises(ScenarioError, match=rf"file: saw .*, expected the field '{gone}' of Scenario"):
        Scenario.from_json(json.dumps(data), where="file")


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5])
def test_another_version_is_refused(version: Any) -> None:
    with pytest.raises(ScenarioError, match=rf"file: saw version {version!r}, expected {VERSION}"):
        Scenario.from_json(json.dumps({**written(), "version": version}), where="file")


@pytest.mark.parametrize(
    "text", ["", "{", "[1,]", "\ufeff{}", "[" * 100_000, '{"version": 1' + "0" * 5000 + "}"]
)
def test_what_is_no_json_is_told_so(text: str) -> None:
    with pytest.raises(ScenarioError, match="file: not JSON"):
        Scenario.from_json(text, where="file")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x80"])
def test_a_file_that_is_no_text_is_told_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    for path in (tmp_path / "x", tmp_path, tmp_path / "absent"):
        with pytest.raises(ScenarioError, match=f"{path}: cannot be read"):
            Scenario.read(path)


def request(**other: Any) -> Request:
    return Request(**{"id": "r0", "prompt": (5,), "max_tokens": 8, **other})


def turn(*drafts: int, **other: Any) -> tuple[Turn, ...]:
    """A script whose second turn is this one."""
    return (Turn(token=9), Turn(**{"token": 1, "drafts": drafts, **other}))


ALONE = {"requests": (request(),), "script": None}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"requests": (), "script": None}, "saw no request"),
        ({"requests": (request(), request()), "script": None}, "saw request ids ['r0', 'r0']"),
        ({"k": 9}, "saw k=9, expected 0 to 8"),
        ({"k": -1}, "saw k=-1, expected 0 to 8"),
        ({"token_budget": 0}, "expected a token budget"),
        ({"max_num_seqs": 0}, "a number of sequences of at least 1"),
        ({**ALONE, "requests": (request(prompt=()),)}, "request 'r0': expected a prompt"),
        (
            {**ALONE, "requests": (request(max_tokens=0),)},
            "request 'r0': expected a prompt, max_tokens of at least",
        ),
        ({**ALONE, "requests": (request(arrival=-1),)}, "an arrival from 0 on"),
        ({**ALONE, "requests": (request(prompt=(3, -1)),)}, "request 'r0': saw a negative token id"),
        ({**ALONE, "requests": (request(prompt=(1,) * 9),), "max_model_len": 9}, "saw a prompt of 9 tokens"),
        ({**ALONE, "requests": (request(sampling=Sampling(temperature=-1)),)}, "request 'r0': saw Sampling"),
        (
            {**ALONE, "requests": (request(sampling=Sampling(temperature=float("inf"))),)},
            "a finite temperature",
        ),
        (
            {**ALONE, "requests": (request(sampling=Sampling(temperature=float("nan"))),)},
            "a finite temperature",
        ),
        ({**ALONE, "requests": (request(sampling=Sampling(top_p=0.0)),)}, "top_p in (0, 1]"),
        ({**ALONE, "requests": (request(sampling=Sampling(top_p=1.5)),)}, "top_p in (0, 1]"),
        ({**ALONE, "requests": (request(sampling=Sampling(top_k=-1)),)}, "top_k from 0 on"),
        ({**ALONE, "requests": (request(sampling=Sampling(seed=2**63)),)}, "a seed from 0"),
        ({**ALONE, "script": {"r9": turn()}}, "the script names request 'r9', expected one of ['r0']"),
        ({**ALONE, "script": {}}, "the script lacks turns for ['r0']"),
        ({**ALONE, "script": {"r0": ()}}, "script of 'r0': saw no turn"),
        ({**ALONE, "script": {"r0": turn(4)[1:]}}, "script of 'r0': its first turn ends the prompt"),
        ({**ALONE, "script": {"r0": turn(4, 5, 6)}}, "script of 'r0', turn 1: saw 3 drafts"),
        ({**ALONE, "script": {"r0": turn(4, accepted=3)}}, "turn 1: saw 1 drafts and accepted=3"),
        ({**ALONE, "script": {"r0": turn(4, accepted=0)}}, "turn 1: saw 1 drafts and accepted=0"),
        ({**ALONE, "script": {"r0": turn(-4)}}, "script of 'r0', turn 1: saw a negative token id"),
        ({**ALONE, "script": {"r0": turn(token=-4)}}, "script of 'r0', turn 1: saw a negative token id"),
    ],
)
def test_what_could_not_happen_is_refused_and_says_where(other: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        base(**other)
    assert str(caught.value).startswith("scenario 'two rows': ")
    assert said in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_an_illegal_script_in_a_file_is_refused_as_it_is_in_a_program() -> None:
    with pytest.raises(ScenarioError, match=r"script of 'r0', turn 1: saw 2 drafts and accepted=4"):
        Scenario.from_json(put(written(), "script.r0.1.accepted", 4))


def test_a_scenario_finds_its_requests_and_says_whether_it_is_forced() -> None:
    scenario = base()
    assert scenario.request("r1").prompt == (8,)
    with pytest.raises(KeyError):
        scenario.request("r9")
    assert scenario.forced
    assert not replace(scenario, script=None).forced
    assert Turn(drafts=(10, 11, 12), accepted=3, token=13).committed == (10, 11, 13)
    assert Turn(drafts=(10, 11, 12), token=13).committed == (13,)


# The codec itself.


def test_numbers_that_json_does_not_have_survive() -> None:
    from harness.trace import Coordinate

    for error in (float("inf"), float("-inf"), 0.1, None):
        divergence = Divergence(kind="state", at=Coordinate(step=1), message="", error=error)
        text = json.dumps(encode(divergence), allow_nan=False)
        assert decode(Divergence, json.loads(text), "x") == divergence
    nan = Divergence(kind="state", at=Coordinate(step=1), message="", error=float("nan"))
    back = decode(Divergence, json.loads(json.dumps(encode(nan), allow_nan=False)), "x")
    assert back.error != back.error


@pytest.mark.parametrize("verdict", list(Verdict))
def test_evidence_comes_back_equal(verdict: Verdict) -> None:
    evidence = Evidence(check="state", verdict=verdict, summary="s", power="half")
    data = json.loads(json.dumps(encode(evidence)))
    assert data["verdict"] == verdict.value
    assert decode(Evidence, data, "x") == evidence
    with pytest.raises(ScenarioError, match=r"x\.verdict: saw 'MAYBE', expected one of 'PASS'"):
        decode(Evidence, {**data, "verdict": "MAYBE"}, "x")


def test_every_field_of_a_scenario_is_tried_here() -> None:
    """A field that is added must be added to the strategy, or its round trip goes untested."""
    assert {field.name for field in fields(Scenario)} == {
        "name",
        "requests",
        "title",
        "k",
        "drafter",
        "sample_drafts",
        "script",
        "token_budget",
        "max_model_len",
        "max_num_seqs",
        "regime",
        "events",
        "prefix_caching",
        "block_size",
        "kv_blocks",
        "capture_sizes",
        "most_compilations",
        "must_observe",
        "documented",
        "reverse_rows",
        "passes",
    }


def test_a_scenario_error_is_bad_input() -> None:
    assert ScenarioError("x").exit_code == 2
    assert HarnessError("x").hint is None


@pytest.mark.parametrize(
    "setting",
    [
        {"max_num_seqs": 10**9},
        {"kv_blocks": 10**12},
        {"block_size": 10**12},
        {"max_model_len": 10**30},
        {"capture_sizes": (10**19,)},
        {"name": "x" * 5000},
        {"name": "a\ud800b"},
        {"events": (Event(step=1, what="dummy"),) * 20_000},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_what_no_machine_has_and_no_file_can_hold_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match="at most"):
        replace(base(), **setting)


def test_a_stop_text_that_is_no_text_convicts_nobody() -> None:
    with pytest.raises(ScenarioError, match="UTF-8"):
        replace(base(), requests=tuple(replace(r, stop=("\ud800",)) for r in base().requests))
