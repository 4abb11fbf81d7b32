"""Guides against fresh replays: whatever was looked at, a guide stands where its accepted tokens put it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from harness.engine.grammars import MOST_BYTES, MOST_DEPTH, MOST_PROPERTIES
from harness.engine.guided import CORRECT_GUIDE, Grammars, Guide, GuideDecisions, Vocabulary, apply_masks
from harness.errors import EngineError, ModelError, UsageError

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
)
GRAMMARS = {
    "json_schema": SCHEMA,
    "regex": "[a-f]{2,5}(-[0-9]+)?",
    "ebnf": 'root ::= "(" root ")" | [a-z]*',
    "choice": json.dumps(["yes", "yes, please", 'say "no"', "a\\b\nü😀", ""]),
}
SAMPLES = {
    "json_schema": '{"name": "bob", "age": 12}',
    "regex": "fade-15",
    "ebnf": "((abc))",
    "choice": "yes, please",
}


@pytest.fixture(scope="module")
def vocabulary(peaked: Path) -> Vocabulary:
    return Vocabulary.load(peaked)


@pytest.fixture(scope="module")
def encode(peaked: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(peaked / "tokenizer.json"))
    return lambda text: tokenizer.encode(text).ids


@pytest.fixture(scope="module")
def grammars(vocabulary: Vocabulary) -> Grammars:
    return Grammars(vocabulary)


@pytest.fixture(scope="module")
def stop(vocabulary: Vocabulary) -> int:
    return min(vocabulary.stop_ids)


def next_mask(guide: Guide, vocabulary: Vocabulary) -> torch.Tensor:
    masks = torch.full((1, vocabulary.words), 0x5A5A5A5A, dtype=torch.int32)  # junk, to be overwritten
    guide.fill_masks([], masks)
    return masks[0]


def legal(mask: torch.Tensor) -> list[int]:
    return [
        word * 32 + bit for word, value in enumerate(mask.tolist()) for bit in range(32) if value >> bit & 1
    ]


def assert_same(guide: Guide, fresh: Guide, vocabulary: Vocabulary) -> None:
    assert guide.num_accepted == fresh.num_accepted
    assert guide.is_terminated == fresh.is_terminated
    assert next_mask(guide, vocabulary).equal(next_mask(fresh, vocabulary))


def replayed(grammars: Grammars, kind: str, tokens: list[int]) -> Guide:
    guide = grammars.guide(kind, GRAMMARS[kind])
    assert guide.accept(tokens)
    return guide


# What the guide allows.


@pytest.mark.parametrize("kind", GRAMMARS)
def test_every_kind_allows_its_sample_and_ends_with_a_stop_token(
    kind: str, grammars: Grammars, encode: Callable[[str], list[int]], stop: int
) -> None:
    guide = grammars.guide(kind, GRAMMARS[kind])
    tokens = encode(SAMPLES[kind])
    assert guide.accept(tokens)
    assert not guide.is_terminated
    assert guide.accept([stop])
    assert guide.is_terminated
    assert guide.num_accepted == len(tokens) + 1


@pytest.mark.parametrize("text", json.loads(GRAMMARS["choice"]))
def test_choices_are_literal(
    text: str, grammars: Grammars, encode: Callable[[str], list[int]], stop: int
) -> None:
    assert replayed(grammars, "choice", [*encode(text), stop]).is_terminated


@pytest.mark.parametrize("kind", GRAMMARS)
def test_special_and_padded_tokens_are_never_allowed(
    kind: str, grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]], peaked: Path
) -> None:
    added = json.loads((peaked / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    silent = {token["id"] for token in added} - vocabulary.stop_ids | set(range(1000, vocabulary.size))
    guide = grammars.guide(kind, GRAMMARS[kind])
    for token in encode(SAMPLES[kind]):
        assert not silent & set(legal(next_mask(guide, vocabulary)))
        assert guide.accept([token])
    for token in (*silent, -1, vocabulary.size, vocabulary.size + 7):
        assert not guide.accept([token])


def test_accept_stops_at_the_first_refusal_and_counts_what_it_took(
    grammars: Grammars, encode: Callable[[str], list[int]], vocabulary: Vocabulary
) -> None:
    (a,), (digit,) = encode("a"), encode("7")
    guide = grammars.guide("regex", GRAMMARS["regex"])
    assert not guide.accept([a, digit, a])
    assert_same(guide, replayed(grammars, "regex", [a]), vocabulary)


# Looking ahead changes nothing.


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(sorted(GRAMMARS)))
def test_any_excursion_leaves_the_guide_equal_to_a_fresh_replay(
    data: st.DataObject, kind: str, grammars: Grammars, vocabulary: Vocabulary, stop: int
) -> None:
    guide, tokens = grammars.guide(kind, GRAMMARS[kind]), []

    def walk(most: int) -> list[int]:
        """A legal walk from here, made by a guide of its own, then sometimes a token that may be illegal."""
        scout, path = replayed(grammars, kind, tokens), []
        for _ in range(data.draw(st.integers(0, most))):
            options = legal(next_mask(scout, vocabulary))
            if scout.is_terminated or not options:
                break
            path.append(
                stop if stop in options and data.draw(st.booleans()) else data.draw(st.sampled_from(options))
            )
            assert scout.accept(path[-1:])
        return path

    for _ in range(8):
        action = data.draw(st.sampled_from(["accept", "validate", "fill", "rollback"]))
        path = walk(5)
        junk = data.draw(st.lists(st.integers(-1, vocabulary.size), max_size=2))
        if action == "accept":
            accepted = guide.accept(path)
            assert accepted
            tokens += path
        elif action == "validate":
            kept = guide.validate(path + junk)
            assert kept >= len(path)
            replayed(grammars, kind, tokens + (path + junk)[:kept])
        elif action == "fill":
            guide.fill_masks(path, torch.zeros(len(path) + 1, vocabulary.words, dtype=torch.int32))
        else:
            count = data.draw(st.integers(0, len(tokens)))
            guide.rollback(count)
            tokens = tokens[: len(tokens) - count]
        assert_same(guide, replayed(grammars, kind, tokens), vocabulary)


@pytest.mark.parametrize("kind", GRAMMARS)
def test_mask_rows_are_those_of_committing_draft_by_draft(
    kind: str, grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    drafts = encode(SAMPLES[kind])
    masks = torch.zeros(len(drafts) + 3, vocabulary.words, dtype=torch.int32)
    grammars.guide(kind, GRAMMARS[kind]).fill_masks(drafts, masks, first_row=1)
    for n in range(len(drafts) + 1):
        assert masks[1 + n].equal(next_mask(replayed(grammars, kind, drafts[:n]), vocabulary))
    assert not masks[0].any()
    assert not masks[-1].any()


@pytest.mark.parametrize("position", range(4))
def test_a_stop_token_among_the_drafts_is_forgotten_when_rejected(
    position: int, grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]], stop: int
) -> None:
    (a,) = encode("a")
    drafts = [a] * position + [stop] + [a] * (3 - position)
    guide = replayed(grammars, "regex", [a, a])
    assert guide.validate(drafts) == position + 1
    masks = torch.zeros(5, vocabulary.words, dtype=torch.int32)
    guide.fill_masks(drafts, masks)
    assert (masks[position + 1 :] == -1).all()  # behind the stop token nothing is constrained
    assert (masks[: position + 1] != -1).any(dim=1).all()
    assert_same(guide, replayed(grammars, "regex", [a, a]), vocabulary)
    assert guide.accept([a])


def test_after_the_stop_token_nothing_is_accepted_and_nothing_masked(
    grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]], stop: int
) -> None:
    tokens = [*encode("abba"), stop]
    guide = replayed(grammars, "regex", tokens)
    assert guide.validate(encode("a")) == 0
    assert not guide.accept([stop])
    assert guide.num_accepted == len(tokens)
    assert (next_mask(guide, vocabulary) == -1).all()
    guide.rollback(1)
    assert_same(guide, replayed(grammars, "regex", tokens[:-1]), vocabulary)


@pytest.mark.parametrize("position", range(4))
def test_a_placeholder_ends_the_advance_and_keeps_later_rows_constrained(
    position: int, grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    (a,) = encode("a")
    drafts = [a] * position + [-1] + [a] * (3 - position)
    guide = grammars.guide("regex", GRAMMARS["regex"])
    assert guide.validate(drafts) == position
    masks = torch.full((5, vocabulary.words), -1, dtype=torch.int32)
    guide.fill_masks(drafts, masks)
    for row in range(5):
        known = [a] * min(row, position)
        assert masks[row].equal(next_mask(replayed(grammars, "regex", known), vocabulary))
    assert_same(guide, replayed(grammars, "regex", []), vocabulary)


def test_masks_of_drafts_that_were_not_validated_are_refused_and_leave_no_trace(
    grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    (a,), (digit,) = encode("a"), encode("7")
    guide = replayed(grammars, "regex", [a])
    with pytest.raises(EngineError, match="refuses draft 1"):
        guide.fill_masks([a, digit, a], torch.zeros(4, vocabulary.words, dtype=torch.int32))
    assert_same(guide, replayed(grammars, "regex", [a]), vocabulary)


@pytest.mark.parametrize("count", [-1, 3])
def test_more_than_was_accepted_cannot_be_rolled_back(
    count: int, grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    guide = replayed(grammars, "regex", encode("a") * 2)
    with pytest.raises(EngineError, match=f"by {count} of 2"):
        guide.rollback(count)
    assert_same(guide, replayed(grammars, "regex", encode("a") * 2), vocabulary)


def test_rows_that_do_not_fit_are_refused(grammars: Grammars, vocabulary: Vocabulary) -> None:
    masks = torch.zeros(2, vocabulary.words, dtype=torch.int32)
    for drafts, first_row in (([5, 6], 0), ([5], 1), ([], 2), ([], -1)):
        with pytest.raises(
            EngineError, match=f"{len(drafts) + 1} mask rows from {first_row} do not fit into 2"
        ):
            grammars.guide("regex", ".*").fill_masks(drafts, masks, first_row)


def test_refusals_are_silent(
    grammars: Grammars, vocabulary: Vocabulary, stop: int, capfd: pytest.CaptureFixture[str]
) -> None:
    guide = grammars.guide("regex", ".*")
    refused = [-1, vocabulary.size, *vocabulary.silent_ids]
    assert not any(guide.accept([token]) for token in refused)
    assert guide.accept([stop])
    assert not any(guide.accept([token]) for token in (5, stop, *refused))
    assert capfd.readouterr().err == ""


# Masks of a whole step.


def test_packed_masks_lie_where_the_packed_logits_do(
    grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    (a,) = encode("a")
    guides = [replayed(grammars, "regex", [a] * n) for n in (1, 2)]
    masks = grammars.masks([guides[0], None, guides[1]], [[a, a], [5, 6, 7], []])
    assert masks.shape == (8, vocabulary.words)
    assert (masks[3:7] == -1).all()
    for row, known in ((0, 1), (1, 2), (2, 3), (7, 2)):
        assert masks[row].equal(next_mask(replayed(grammars, "regex", [a] * known), vocabulary))


def test_masked_logits_are_minus_infinity_and_the_rest_untouched(
    grammars: Grammars, vocabulary: Vocabulary
) -> None:
    masks = grammars.masks([grammars.guide("choice", GRAMMARS["choice"]), None], [[], []])
    logits = torch.randn(2, vocabulary.size + 40)  # columns that no mask word covers
    masked = apply_masks(logits, masks)
    allowed = legal(masks[0])
    assert masked[1].equal(logits[1])
    assert masked[0].isfinite().nonzero().flatten().tolist() == allowed
    assert masked[0, allowed].equal(logits[0, allowed])
    assert logits.isfinite().all()


def test_masks_wider_than_the_logits_are_cut() -> None:
    masks = torch.tensor([[0b101, 0]], dtype=torch.int32)
    assert apply_masks(torch.zeros(1, 5), masks).isfinite().tolist() == [[True, False, True, False, False]]


def test_the_sign_bit_of_a_mask_word_is_a_token_like_any_other() -> None:
    masks = torch.tensor([[-(2**31), 1]], dtype=torch.int32)
    assert apply_masks(torch.zeros(1, 64), masks).isfinite().nonzero()[:, 1].tolist() == [31, 32]


# Faults: each decision can be wrong, and the checks above see it.


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(
            replace(CORRECT_GUIDE, tokens_to_roll_back=lambda advanced, proposed: max(advanced - 1, 0)),
            id="one token stays behind",
        ),
        pytest.param(
            replace(CORRECT_GUIDE, tokens_to_roll_back=lambda advanced, proposed: proposed),
            id="refused drafts are rolled back",
        ),
        pytest.param(
            replace(CORRECT_GUIDE, terminated_after_rollback=lambda before, matcher: before),
            id="the stop token stays in force",
        ),
    ],
)
def test_a_wrong_rollback_is_seen(
    wrong: GuideDecisions,
    grammars: Grammars,
    vocabulary: Vocabulary,
    encode: Callable[[str], list[int]],
    stop: int,
) -> None:
    (a,) = encode("a")
    guide = Grammars(vocabulary, wrong).guide("regex", GRAMMARS["regex"])
    guide.accept([a, a])
    guide.validate([stop, a])
    with pytest.raises(AssertionError):
        assert_same(guide, replayed(grammars, "regex", [a, a]), vocabulary)


def test_a_stop_token_that_stays_in_force_ends_the_request_early(
    vocabulary: Vocabulary, encode: Callable[[str], list[int]], stop: int
) -> None:
    wrong = replace(CORRECT_GUIDE, terminated_after_rollback=lambda before, matcher: before)
    guide = Grammars(vocabulary, wrong).guide("regex", GRAMMARS["regex"])
    assert guide.accept(encode("a") * 2)
    guide.validate([stop])
    assert not guide.accept(encode("a"))


def test_a_wrong_first_row_is_seen(
    grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    (a,) = encode("a")
    wrong = replace(CORRECT_GUIDE, first_logit_row=lambda request, drafts: request)
    guides = [replayed(grammars, "regex", [a] * n) for n in (1, 2)]
    drafts = [[a, a], []]
    assert not Grammars(vocabulary, wrong).masks(guides, drafts).equal(grammars.masks(guides, drafts))


@pytest.mark.parametrize(
    ("drafts_seen", "like"),
    [
        pytest.param(lambda row, known: 0, [0, 0, 0, 0], id="first row repeated"),
        pytest.param(
            lambda row, known: row if row <= known else None, [0, 1, 2, None], id="free behind a placeholder"
        ),
    ],
)
def test_a_wrong_row_of_a_window_is_seen(
    drafts_seen: Callable[[int, int], int | None],
    like: list[int | None],
    grammars: Grammars,
    vocabulary: Vocabulary,
    encode: Callable[[str], list[int]],
) -> None:
    drafts = [*encode("aa")[:1] * 2, -1]
    wrong = Grammars(vocabulary, replace(CORRECT_GUIDE, drafts_seen=drafts_seen))
    masks = wrong.masks([wrong.guide("regex", "[a-d]{2}")], [drafts])
    for mask, seen in zip(masks, like, strict=True):
        known = grammars.guide("regex", "[a-d]{2}")
        assert known.accept(drafts[: seen or 0])
        assert mask.equal(next_mask(known, vocabulary)) if seen is not None else bool((mask == -1).all())


def test_masks_of_the_step_before_are_seen(
    grammars: Grammars, vocabulary: Vocabulary, encode: Callable[[str], list[int]]
) -> None:
    (a,) = encode("a")
    wrong = Grammars(vocabulary, replace(CORRECT_GUIDE, refreshes_masks=lambda mixed: not mixed))
    guide = wrong.guide("regex", "[a-d]{2}")
    before = wrong.masks([guide], [[a]])
    guide.accept([a, a])
    assert wrong.masks([guide], [[]], mixed=False).equal(replayed_masks(grammars, [a, a]))
    assert wrong.masks([guide], [[]], mixed=True).equal(
        replayed_masks(grammars, [a, a])
    )  # of the step before
    wrong.masks([guide, None], [[], []])
    fresh = wrong.guide("regex", "[a-d]{2}")
    stale = wrong.masks([fresh, None, fresh], [[], [], []], mixed=True)
    assert stale[:1].equal(replayed_masks(grammars, [a, a]))
    assert stale[2:].equal(before[:1])


def replayed_masks(grammars: Grammars, tokens: list[int]) -> torch.Tensor:
    guide = grammars.guide("regex", "[a-d]{2}")
    assert guide.accept(tokens)
    return grammars.masks([guide], [[]])


def test_masks_that_are_not_as_many_as_the_logits_are_refused(
    grammars: Grammars, vocabulary: Vocabulary
) -> None:
    wrong = Grammars(vocabulary, replace(CORRECT_GUIDE, count_mask_rows=lambda drafts: 2 * len(drafts)))
    masks = wrong.masks([None, wrong.guide("regex", "a")], [[], []])
    with pytest.raises(EngineError, match="saw 4 mask rows, expected one for each of 2 rows of logits"):
        apply_masks(torch.zeros(2, vocabulary.size), masks)


def test_a_mask_asked_of_an_ended_grammar_is_an_error(
    vocabulary: Vocabulary, encode: Callable[[str], list[int]], stop: int
) -> None:
    wrong = Grammars(vocabulary, replace(CORRECT_GUIDE, is_masked=lambda terminated: True))
    guide = wrong.guide("regex", "[a-d]{1,2}")
    assert guide.accept(encode("a"))
    with pytest.raises(RuntimeError, match="terminated"):
        wrong.masks([guide], [[stop]])


# Bad input.


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + "{}" + "}" * depth


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        ("regexp", "a", "unknown kind of grammar 'regexp'; there are json_schema, regex, ebnf, choice"),
        ("regex", "(a", "parenthesis is not closed"),
        ("regex", r"(a)\1", "Backreference is not supported"),
        ("ebnf", "root ::= foo", 'Rule "foo" is not defined'),
        ("ebnf", 'foo ::= "a"', "root rule"),
        ("ebnf", 'root ::= root "a"', "allows no text at all"),
        ("json_schema", "{not json", "Expecting property name"),
        ("json_schema", '{"type": "nope"}', 'Unsupported type "nope"'),
        ("json_schema", "false", "cannot accept any value"),
        ("choice", "yes", "Expecting value"),
        ("choice", "[]", "at least one string"),
        ("choice", "[1]", "at least one string"),
        ("choice", '["\\ud800"]', "surrogates not allowed"),
        ("regex", "a" * (MOST_BYTES + 1), f"at most {MOST_BYTES}"),
        ("json_schema", nested(MOST_DEPTH + 1), f"at most {MOST_PROPERTIES} and {MOST_DEPTH}"),
        ("json_schema", nested(2000), "recursion"),
        (
            "json_schema",
            json.dumps({"properties": {str(i): {} for i in range(MOST_PROPERTIES + 1)}}),
            "at most",
        ),
    ],
)
def test_bad_grammars_are_refused_with_the_reason(
    kind: str, text: str, complaint: str, grammars: Grammars
) -> None:
    with pytest.raises(UsageError) as raised:
        grammars.guide(kind, text)
    message = str(raised.value)
    assert complaint in message
    assert kind in message
    assert ".cc:" not in message  # nobody wants to know where in xgrammar's source
    assert len(message) < 400


def test_grammars_at_the_bounds_compile(grammars: Grammars) -> None:
    grammars.guide("json_schema", nested(MOST_DEPTH))
    grammars.guide("choice", json.dumps([f"option {i}" for i in range(3000)]))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("config.json", None, "cannot read"),
        ("config.json", "{", "cannot read"),
        ("config.json", "[]", "expected a JSON object"),
        ("config.json", "{}", "expected a vocab_size"),
        ("config.json", '{"vocab_size": 1024}', "at least one eos_token_id"),
        ("tokenizer.json", '{"decoder": {"type": "Metaspace"}}', "expected a byte-level tokenizer"),
    ],
)
def test_a_model_folder_that_names_no_vocabulary_is_refused(
    name: str, content: str | None, complaint: str, peaked: Path, tmp_path: Path
) -> None:
    for each in ("config.json", "tokenizer.json"):
        (tmp_path / each).write_bytes((peaked / each).read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=complaint):
        Vocabulary.load(tmp_path)


def test_the_text_part_of_a_multimodal_config_counts(peaked: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((peaked / "tokenizer.json").read_bytes())
    config = {"vocab_size": 7, "text_config": {"vocab_size": 1024, "eos_token_id": 999}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert Vocabulary.load(tmp_path).size == 1024


def test_stop_tokens_of_the_generation_config_come_first(peaked: Path, tmp_path: Path) -> None:
    config = json.loads((peaked / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_bytes((peaked / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": 999}), encoding="utf-8")
    assert Vocabulary.load(tmp_path).stop_ids == {999}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [999, 997]}', encoding="utf-8")
    assert Vocabulary.load(tmp_path).stop_ids == {997, 999}
