"""Guides of requests that reason first: free up to and with the marker, a fresh guide behind it, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from harness.engine.guided import CORRECT_GUIDE, Grammars, Guide, GuideDecisions, Vocabulary
from harness.errors import EngineError

PATTERN = "[a-c]{1,3}"
MARKER = 998  # a special token, which no grammar allows


@pytest.fixture(scope="module")
def vocabulary(peaked: Path) -> Vocabulary:
    return Vocabulary.load(peaked)


@pytest.fixture(scope="module")
def grammars(vocabulary: Vocabulary) -> Grammars:
    return Grammars(vocabulary)


@pytest.fixture(scope="module")
def encode(peaked: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(peaked / "tokenizer.json"))
    return lambda text: [token for letter in text for token in tokenizer.encode(letter).ids]


@pytest.fixture(scope="module")
def stop(vocabulary: Vocabulary) -> int:
    return min(vocabulary.stop_ids)


def after(grammars: Grammars, answer: list[int], marker: int | None = MARKER) -> Guide:
    guide = grammars.guide("regex", PATTERN, marker)
    assert guide.accept(answer)
    return guide


def masks_of(guide: Guide, drafts: list[int], vocabulary: Vocabulary) -> torch.Tensor:
    masks = torch.full((len(drafts) + 1, vocabulary.words), 0x5A5A5A5A, dtype=torch.int32)
    guide.fill_masks(drafts, masks)
    return masks


def next_mask(answer: list[int], grammars: Grammars, vocabulary: Vocabulary) -> torch.Tensor:
    """The mask after an answer, by a guide that never saw its reasoning."""
    if MARKER not in answer:
        return torch.full((vocabulary.words,), -1, dtype=torch.int32)
    return masks_of(after(grammars, answer[answer.index(MARKER) + 1 :], None), [], vocabulary)[0]


def assert_same(guide: Guide, answer: list[int], grammars: Grammars, vocabulary: Vocabulary) -> None:
    read = answer[answer.index(MARKER) + 1 :] if MARKER in answer else []
    assert guide.num_accepted == len(read)
    assert masks_of(guide, [], vocabulary)[0].equal(next_mask(answer, grammars, vocabulary))


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("illegal", range(5))
def test_drafts_are_kept_through_the_marker_and_then_as_the_grammar_allows(
    place: int, illegal: int, grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    a, x = encode("ax")
    drafts = [x] * place + [MARKER] + [a] * (3 - place) if place < 4 else [x] * 4
    drafts = [x if i == illegal else token for i, token in enumerate(drafts)] if illegal > place else drafts
    guide = after(grammars, [x, x])
    assert guide.validate(drafts) == (illegal if illegal > place else 4)
    assert_same(guide, [x, x], grammars, vocabulary)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("placeholder", range(5))
def test_masks_rule_from_behind_the_marker_and_stay_in_force_behind_a_placeholder(
    place: int,
    placeholder: int,
    grammars: Grammars,
    vocabulary: Vocabulary,
    encode: Callable[[str], list[int]],
) -> None:
    a, x = encode("ax")
    drafts = [x] * place + [MARKER] + [a] * (3 - place) if place < 4 else [x] * 4
    drafts = [*drafts[:placeholder], *[-1] * (4 - placeholder)]
    guide = after(grammars, [x])
    masks = masks_of(guide, drafts, vocabulary)
    for row in range(5):
        known = [x, *drafts[: min(row, placeholder)]]
        assert masks[row].equal(next_mask(known, grammars, vocabulary))
    assert_same(guide, [x], grammars, vocabulary)


@pytest.mark.parametrize("committed", range(1, 5))
def test_a_marker_that_is_rejected_does_not_end_the_reasoning(
    committed: int, grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    a, x = encode("ax")
    drafts = [x, MARKER, a, a]
    guide = after(grammars, [])
    assert guide.validate(drafts) == 4
    masks_of(guide, drafts, vocabulary)
    assert guide.accept([*drafts[: committed - 1], drafts[committed - 1] if committed > 1 else x])
    assert_same(guide, drafts[:committed], grammars, vocabulary)


def test_the_marker_counts_once_and_behind_it_it_is_a_token_like_any_other(
    grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    a, b = encode("ab")
    guide = after(grammars, [a, b], marker=b)
    assert guide.validate([a, b, b, a]) == 3
    assert guide.accept([b, a])
    assert guide.num_accepted == 2
    assert not guide.accept([MARKER])


def test_an_end_token_ends_the_grammar_only_behind_the_marker(
    grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]], stop: int
) -> None:
    (a,) = encode("a")
    guide = after(grammars, [a])
    assert guide.validate([stop, MARKER, a, a, stop, a]) == 5
    assert guide.until_end([stop, a]) is None
    assert guide.until_end([stop, MARKER, a, stop, a]) == 4
    assert guide.accept([stop])
    assert not guide.is_terminated
    assert guide.accept([MARKER, a, a])
    assert guide.until_end([a, stop, a]) == 2
    assert guide.accept([stop])
    assert guide.is_terminated
    assert guide.validate([a]) == 0


def test_a_draft_behind_the_marker_that_was_not_validated_is_refused_and_leaves_no_trace(
    grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    (x,) = encode("x")
    guide = after(grammars, [x])
    with pytest.raises(EngineError, match="refuses draft 2"):
        masks_of(guide, [x, MARKER, x], vocabulary)
    assert_same(guide, [x], grammars, vocabulary)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_excursion_leaves_the_guide_where_its_answer_put_it(
    data: st.DataObject, grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    guide, answer, tokens = after(grammars, []), [], [*encode("abx"), MARKER]
    for _ in range(6):
        window = data.draw(st.lists(st.sampled_from(tokens), max_size=5))
        kept = guide.validate(window)
        legal = next(
            n
            for n in range(len(window), -1, -1)
            if grammars.guide("regex", PATTERN, MARKER).accept(answer + window[:n])
        )
        assert kept == legal
        holes = data.draw(st.integers(0, 2))
        masks = masks_of(guide, [*window[:kept], *[-1] * holes], vocabulary)
        for row in range(kept + holes + 1):
            assert masks[row].equal(next_mask(answer + window[: min(row, kept)], grammars, vocabulary))
        committed = window[: data.draw(st.integers(0, kept))]
        assert guide.accept(committed, window)
        answer += committed
        assert_same(guide, answer, grammars, vocabulary)


def test_reasoning_and_other_requests_share_a_step(
    grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    a, x = encode("ax")
    masks = grammars.masks([after(grammars, [x]), None, after(grammars, [a], None)], [[x, MARKER], [], [a]])
    for row, answer in ((0, [x]), (1, [x, x]), (2, [x, x, MARKER]), (4, [MARKER, a]), (5, [MARKER, a, a])):
        assert masks[row].equal(next_mask(answer, grammars, vocabulary))
    assert (masks[3] == -1).all()


# Faults: each decision can be wrong, and a guide then leaves its answer.


def never(tokens: object, marker: int) -> int | None:
    return None


def at_once(tokens: object, marker: int) -> int | None:
    return 0


@pytest.mark.parametrize(
    ("wrong", "differs"),
    [
        pytest.param(replace(CORRECT_GUIDE, drafts_begin=never), {"kept", "masks"}, id="drafts stay free"),
        pytest.param(replace(CORRECT_GUIDE, drafts_begin=at_once), {"kept", "masks"}, id="drafts never free"),
        pytest.param(
            replace(CORRECT_GUIDE, answer_begins=at_once), {"count", "next"}, id="reasoning is read"
        ),
        pytest.param(
            replace(CORRECT_GUIDE, held_back=lambda tokens, switches: tokens if switches else 0),
            {"count", "next"},
            id="deferred at the switch",
        ),
        pytest.param(
            replace(CORRECT_GUIDE, held_back=lambda tokens, switches: tokens),
            {"count", "next"},
            id="a step behind",
        ),
        pytest.param(
            replace(CORRECT_GUIDE, tokens_to_accept=lambda committed, drafts, prompt: drafts),
            {"count", "next"},
            id="rejected drafts are read",
        ),
    ],
)
def test_a_wrong_decision_is_seen(
    wrong: GuideDecisions,
    differs: set[str],
    grammars: Grammars,
    vocabulary: Vocabulary,
    encode: Callable[[str], list[int]],
) -> None:
    a, b, x = encode("abx")

    def facts(grammars: Grammars) -> dict[str, object]:
        guide = grammars.guide("regex", PATTERN, MARKER)
        kept = guide.validate([x, MARKER, a, x])
        try:
            masks = masks_of(guide, [x, MARKER, a], vocabulary).tolist()
        except EngineError:
            masks = []
        guide.accept([x, MARKER, b], [x, MARKER, a, a])
        return {
            "kept": kept,
            "masks": masks,
            "count": guide.num_accepted,
            "next": masks_of(guide, [], vocabulary).tolist(),
        }

    right, suspect = facts(grammars), facts(Grammars(vocabulary, wrong))
    assert {name for name in right if right[name] != suspect[name]} == differs


def test_tokens_that_were_held_back_are_read_a_step_later(
    vocabulary: Vocabulary, grammars: Grammars, encode: Callable[[str], list[int]]
) -> None:
    (a,) = encode("a")
    late = Grammars(vocabulary, replace(CORRECT_GUIDE, held_back=lambda tokens, switches: tokens))
    guide = late.guide("regex", PATTERN)
    for count in range(3):
        assert guide.num_accepted == max(count - 1, 0)
        assert guide.accept([a])
