"""Guided answers are judged by class, and answers of two runs are held side by side."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from benching import said
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bench.data.ask import Guide, GuideKind
from harness.bench.equality import greedy_equality
from harness.bench.json_prefix import is_json_prefix
from harness.bench.record import Outcome, RequestRecord
from harness.bench.validity import Validity, validate

PERSON = Guide(
    name="person",
    kind=GuideKind.JSON_SCHEMA,
    rule={
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
)
DATE = Guide(name="date", kind=GuideKind.REGEX, rule=r"\d{4}-\d{2}-\d{2}")
MOOD = Guide(name="mood", kind=GuideKind.CHOICE, rule=("good", "bad"))
SUM = Guide(
    name="sum", kind=GuideKind.GRAMMAR, rule='root ::= term ("+" term)*\nterm ::= [0-9]+ | "(" root ")"'
)
ODD = Guide(name="odd", kind=GuideKind.REGEX, rule="(")
AWAY = Guide(name="away", kind=GuideKind.JSON_SCHEMA, rule={"$ref": "http://localhost:9/never-fetched.json"})
NONE = Guide(name="none", kind=GuideKind.JSON_SCHEMA, rule={"type": "no such type"})
DOTS = Guide(name="dots", kind=GuideKind.GRAMMAR, rule="root ::= nowhere")
BIG = Guide(name="big", kind=GuideKind.JSON_SCHEMA, rule={"type": "integer", "minimum": 100})
GUIDES = [BIG, PERSON, DATE, MOOD, SUM, ODD, AWAY, NONE, DOTS]


def answer(guide: Guide | None, text: str, finish: str = "stop", name: str = "r0") -> RequestRecord:
    return replace(
        said([100, 200], id=name),
        guide=guide.name if guide else None,
        text=text,
        finish_reason=finish,
    )


@pytest.mark.parametrize(
    ("guide", "text", "finish", "wanted"),
    [
        (PERSON, '{"name": "Ann", "age": 3}', "stop", Validity.VALID),
        (PERSON, ' {"name": "Ann",\n "age": 3}\n', "length", Validity.VALID),
        (PERSON, '{"name": "Ann", "ag', "length", Validity.TRUNCATED),
        (PERSON, '{"name": "Ann", "ag', "stop", Validity.ENDED_EARLY),
        (PERSON, "", "length", Validity.TRUNCATED),
        (PERSON, "", "stop", Validity.ENDED_EARLY),
        (PERSON, '{"name": "Ann" "ag', "length", Validity.INVALID_JSON),
        (PERSON, "Sure! Here it is: {}", "stop", Validity.INVALID_JSON),
        (PERSON, '{"name": "Ann", "age": 3} tag-54io', "length", Validity.INVALID_JSON),
        (PERSON, '{"name": "Ann", "age": NaN}', "stop", Validity.INVALID_JSON),
        (PERSON, '{"name": "Ann", "age": -3}', "stop", Validity.VIOLATION),
        (PERSON, '{"name": "Ann"}', "stop", Validity.VIOLATION),
        (PERSON, '{"name": "A\x03n", "age": 3}', "stop", Validity.GRAMMAR_LIBRARY),
        (PERSON, '{"name": "A\x03n", "age": -3}', "stop", Validity.VIOLATION),
        (PERSON, '{"name": "A\x03n", "a', "length", Validity.TRUNCATED),
        (PERSON, '{"name": "A\x03n", "a', "stop", Validity.ENDED_EARLY),
        (PERSON, '{"name": "Ann", "age": 3.0}', "stop", Validity.VALID),  # 3.0 is an integer to JSON schema
        (PERSON, '{"name": "Ann", "age": -3}', "length", Validity.VIOLATION),  # nothing behind it can mend it
        (PERSON, '{\x03"name": "Ann", "age": 3}', "stop", Validity.INVALID_JSON),
        (PERSON, '{"name": "Ann",\n"age": 3', "length", Validity.TRUNCATED),
        (PERSON, '{"name": NaN, "age": "\x03', "length", Validity.INVALID_JSON),
        (BIG, "12", "length", Validity.TRUNCATED),
        (BIG, "12", "stop", Validity.VIOLATION),
        (BIG, "true", "length", Validity.VIOLATION),
        (BIG, "123", "length", Validity.VALID),
        (DATE, "2026-12-01", "stop", Validity.VALID),
        (DATE, "2026-12-01 or so", "stop", Validity.VIOLATION),
        (DATE, "2026-1", "length", Validity.TRUNCATED),
        (MOOD, "bad", "stop", Validity.VALID),
        (MOOD, "ba", "length", Validity.TRUNCATED),
        (MOOD, "go", "stop", Validity.ENDED_EARLY),
        (MOOD, "badly", "stop", Validity.VIOLATION),
        (SUM, "1+(22+3)", "stop", Validity.VALID),
        (SUM, "1+(22+", "length", Validity.TRUNCATED),
        (SUM, "1+(22+", "stop", Validity.ENDED_EARLY),
        (SUM, "1++2", "stop", Validity.VIOLATION),
        (ODD, "x", "stop", Validity.UNJUDGED),
        (AWAY, "{}", "stop", Validity.UNJUDGED),
        (NONE, "{}", "stop", Validity.UNJUDGED),
        (DOTS, "x", "stop", Validity.UNJUDGED),
        (replace(PERSON, name="stranger"), "{}", "stop", Validity.UNJUDGED),
        (PERSON, "[" * 100_000, "stop", Validity.UNJUDGED),
    ],
)
def test_an_answer_is_judged_by_its_class(guide: Guide, text: str, finish: str, wanted: Validity) -> None:
    (found,) = validate([answer(guide, text, finish)], GUIDES).answers
    assert found.validity is wanted, found.detail
    assert (found.detail == "") == (wanted is Validity.VALID)


def test_a_document_with_more_behind_it_is_told_from_a_wrong_one() -> None:
    run = [answer(PERSON, '{"name": "A", "age": 3} tag', name="a"), answer(PERSON, '{"name"; 3}', name="b")]
    first, second = validate(run, GUIDES).answers
    assert first.detail == "a document, then 4 more characters (ignore_eos?)"
    assert "delimiter" in second.detail


def test_free_answers_dead_streams_and_warm_up_are_not_judged() -> None:
    dead = replace(answer(PERSON, "{"), outcome=Outcome.CUT)
    found = validate([answer(None, "hello"), dead, replace(answer(PERSON, "{"), warm_up=True)], GUIDES)
    assert found.answers == ()
    assert found.valid_share is None


def test_the_valid_share_is_of_those_that_can_be_judged() -> None:
    run = [
        answer(MOOD, "good", name="a"),
        answer(MOOD, "worse", name="b"),
        answer(ODD, "x", name="c"),
        answer(PERSON, "{", "length", name="d"),
    ]
    found = validate(run, GUIDES)
    assert found.valid_share == pytest.approx(1 / 3)
    assert found.invalid == {"b", "c", "d"}
    assert found.by_guide["mood"] == {Validity.VALID: 1, Validity.VIOLATION: 1}
    assert found.counts[Validity.TRUNCATED] == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_every_beginning_of_a_document_is_a_prefix(value: object, plain: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=plain, indent=indent)
    assert all(is_json_prefix(text[:end]) for end in range(len(text) + 1))


@pytest.mark.parametrize(
    "text",
    ['{"a" 1', "nope", '{"a": 01', "[1 2", "{a", '{"a":1,}', "[1,]", '{"a": "\\q', "[tru]", "{}x", "+1", "1.e5",
     "[1}", '"\x01', ".5", "--1", '{"a":1 "b"', "'a'", "tru ", "- 1", '"\\u00g', "{,", "[,", ":", "}", "1 2"],
)  # fmt: skip
def test_what_no_continuation_can_mend_is_no_prefix(text: str) -> None:
    assert not is_json_prefix(text)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='{}[]":,\\ut0123456789eE+-.rufalsn \n', max_size=12))
def test_a_prefix_that_parses_is_a_document_and_a_document_is_a_prefix(text: str) -> None:
    try:
        json.loads(text, parse_constant=lambda word: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return
    assert is_json_prefix(text)


def test_two_greedy_runs_are_compared_token_by_token() -> None:
    same = said([1, 2], id="same", token_ids=(5, 6), text="ab")
    first = [same, said([1, 2], id="other", token_ids=(5, 6, 7)), said([1, 2], id="short", token_ids=(5, 6))]
    second = [
        said([9, 99], id="short", token_ids=(5, 6, 7)),
        replace(same, text="tokens are what counts"),
        said([9, 99], id="other", token_ids=(5, 8, 7)),
    ]
    found = greedy_equality(first, second)
    assert (found.compared, found.equal, found.holds) == (3, 1, False)
    assert {(one.id, one.index, one.unit) for one in found.divergences} == {
        ("other", 1, "token"),
        ("short", 2, "token"),
    }
    assert greedy_equality(first, first).holds


def test_without_token_ids_texts_are_compared_and_it_is_said() -> None:
    a, b = said([1, 2], text="hello", token_ids=(1, 2)), said([1, 2], text="help")
    (found,) = greedy_equality([a], [b]).divergences
    assert (found.index, found.unit, found.lengths) == (3, "character", (5, 4))


def test_what_succeeded_in_one_run_alone_is_not_equal() -> None:
    a = said([1, 2], id="a", token_ids=(1,))
    found = greedy_equality([a, replace(a, id="b")], [replace(a, outcome=Outcome.CUT)])
    assert (found.compared, found.holds, found.unpaired) == (0, None, ("a", "b"))
