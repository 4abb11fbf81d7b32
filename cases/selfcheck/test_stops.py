"""Where a run of committed tokens ends, against one token after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from harness.engine.grammars import Vocabulary
from harness.engine.stops import CORRECT_STOPS, Cut, Stops

ROOM = 100


@pytest.fixture(scope="module")
def stops(peaked: Path) -> Stops:
    return Stops(Vocabulary.load(peaked))


@pytest.fixture(scope="module")
def encode(peaked: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(peaked / "tokenizer.json"))
    return lambda text: [token for letter in text for token in tokenizer.encode(letter).ids]


def test_a_run_without_an_end_is_kept_up_to_the_last_allowed_token(stops: Stops) -> None:
    assert stops.cut([5], [6, 7, 8], ROOM) == Cut(tokens=3, stops=False)
    assert stops.cut([5], [6, 7, 8], 2) == Cut(tokens=2, stops=False)


@pytest.mark.parametrize("place", range(4))
def test_a_stop_token_ends_the_run_wherever_it_lies(place: int, stops: Stops) -> None:
    run = [5] * place + [9] + [5] * (3 - place)
    assert stops.cut([], run, ROOM, {9, 11}) == Cut(tokens=place + 1, stops=True)
    assert stops.cut([], run, place + 1, {9, 11}) == Cut(tokens=place + 1, stops=True)  # before the length
    assert stops.cut([], run, place, {9, 11}) == Cut(tokens=place, stops=False)


@pytest.mark.parametrize("before", range(6))
def test_a_stop_text_may_span_tokens_and_steps(
    before: int, stops: Stops, encode: Callable[[str], list[int]]
) -> None:
    tokens = encode("xabc]yz")
    cut = stops.cut(tokens[:before], tokens[before:], ROOM, texts=["abc]"])
    assert cut == (Cut(tokens=5 - before, stops=True) if before < 5 else Cut(tokens=2, stops=False))


def test_the_earliest_of_several_ends_counts(stops: Stops, encode: Callable[[str], list[int]]) -> None:
    tokens = encode("abcdef")
    assert stops.cut([], tokens, ROOM, texts=["ef", "bc"]).tokens == 3
    assert stops.cut([], tokens, ROOM, {tokens[1]}, ["ef", "bc"]).tokens == 2
    assert stops.cut([], tokens, ROOM, {tokens[4]}, ["ef", "bc"]).tokens == 3


def test_a_text_may_end_inside_a_token_and_a_letter_inside_its_bytes(stops: Stops, peaked: Path) -> None:
    tokenizer = Tokenizer.from_file(str(peaked / "tokenizer.json"))
    word = tokenizer.encode(" temperature").ids
    assert stops.cut(word[:-1], word[-1:], ROOM, texts=["temperat"]).stops is (len(word) == 1)
    face = tokenizer.encode("😀").ids
    assert len(face) > 1
    for split in range(len(face)):
        assert stops.cut(face[:split], face[split:], ROOM, texts=["😀"]).tokens == len(face) - split
    assert not stops.cut([], face[:-1], ROOM, texts=["😀"]).stops


def test_special_tokens_and_placeholders_have_no_text(
    stops: Stops, encode: Callable[[str], list[int]]
) -> None:
    a, b = encode("ab")
    assert stops.cut([a], [997, -1, b], ROOM, texts=["ab"]) == Cut(tokens=3, stops=True)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text("ab]", max_size=14),
    texts=st.lists(st.text("ab]", min_size=1, max_size=4), max_size=3),
    stop=st.sampled_from(["", "]"]),
    room=st.integers(1, 14),
    lengths=st.lists(st.integers(1, 5), min_size=14, max_size=14),
)
def test_runs_end_where_single_tokens_do(
    text: str,
    texts: list[str],
    stop: str,
    room: int,
    lengths: list[int],
    stops: Stops,
    encode: Callable[[str], list[int]],
) -> None:
    tokens, stop_ids = encode(text), set(encode(stop))

    def written(lengths: list[int]) -> tuple[list[int], bool]:
        answer: list[int] = []
        for length in lengths:
            run = tokens[len(answer) : len(answer) + length]
            cut = stops.cut(answer, run, room - len(answer), stop_ids, texts)
            answer += run[: cut.tokens]
            if cut.stops or len(answer) == room:
                return answer, cut.stops
        return answer, False

    answer, stopped = written(lengths)
    assert (answer, stopped) == written([1] * 14)
    ends = (*texts, *stop)
    lengths_so_far = range(1, min(room, len(text)) + 1)
    expected = next((length for length in lengths_so_far if text[:length].endswith(ends)), None)
    assert (len(answer), stopped) == ((expected, True) if expected else (min(room, len(text)), False))


@pytest.mark.parametrize("fault", ["tokens", "texts", "length"])
def test_each_decision_matters(
    fault: str, peaked: Path, stops: Stops, encode: Callable[[str], list[int]]
) -> None:
    wrong = {
        "tokens": replace(CORRECT_STOPS, tokens_compared=lambda n: range(n - 1, n)),
        "texts": replace(CORRECT_STOPS, texts_searched=lambda n: range(n - 1, n)),
        "length": replace(CORRECT_STOPS, looks_for_stops=lambda n, room: n < room),
    }[fault]
    tokens = encode("abc]")
    stop_ids = {tokens[1]} if fault != "texts" else set()
    texts = ["ab"] if fault == "texts" else []
    room = 4 if fault == "length" else ROOM
    suspect = Stops(Vocabulary.load(peaked), wrong)
    assert stops.cut([], tokens, room, stop_ids, texts) == Cut(tokens=2, stops=True)
    assert suspect.cut([], tokens, room, stop_ids, texts) == Cut(tokens=4, stops=False)
