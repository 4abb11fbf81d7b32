"""Two grammar libraries that share no code agree on what is legal, and on what the end of an output means."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from harness.errors import ModelError, ScenarioError, Unsupported
from harness.models.tiny import ensure
from harness.oracle.foreign import ForeignGrammar
from harness.oracle.grammar import GrammarOracle, ReasoningJudge, Vocabulary

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "blue", 'a "quoted" one']}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
READING = {
    "type": "object",
    "properties": {"value": {"type": "number"}, "valid": {"type": "boolean"}, "note": {"type": "null"}},
    "required": ["value", "valid", "note"],
    "additionalProperties": False,
}
CHOICES = ["yes", "no", "yes please", 'say "hi"\n', "naïve \\ é", "tab\tand \x01"]
GRAMMARS = {
    "person": ("json_schema", json.dumps(PERSON)),
    "reading": ("json_schema", json.dumps(READING)),
    "words": ("regex", r"[a-z]{2,5}(-[0-9]+)*"),
    "not quoted": ("regex", r'[^"]*x'),
    "date": ("regex", r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]|(today|tomorrow)\."),
    "choices": ("choice", json.dumps(CHOICES)),
    "sums": ("ebnf", 'root ::= term ("+" term)*\nterm ::= [0-9]+ | "(" root ")"\n'),
    "counted": ("ebnf", 'root ::= "a"{2,4} [^b]\n'),
}
EXAMPLES = {
    "person": '{"name": "Ada \\u0007\\n", "age": 36, "tags": ["a \\"quoted\\" one"]}',
    "reading": '{"value": -1.5e3, "valid": true, "note": null}',
    "words": "abc-1",
    "not quoted": "box",
    "date": "2024-02-29",
    "choices": "naïve \\ é",
    "sums": "12+(3+4)",
    "counted": "aaac",
}


def disputed(kind: str, before: str, piece: str) -> bool:
    """Where the libraries differ for good; both strings are in byte-level spelling (``ġ`` is 0x7F, ``í`` is 0xED).

    xgrammar lets 0xED begin a surrogate, which RFC 3629 forbids. Inside JSON strings llguidance refuses 0x7F, the
    escape ``\\/``, and ``\\u`` for anything but control characters, all of which RFC 8259 permits.
    """
    in_string = "ġ" in piece or "\\" in before[-5:] + piece
    return before.endswith("í") or (kind == "json_schema" and in_string)


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure("peaked", 0)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("name", GRAMMARS)
def test_two_libraries_agree_on_random_walks(folder: Path, tokenizer: Tokenizer, name: str) -> None:
    kind, text = GRAMMARS[name]
    ours, theirs = GrammarOracle.compile(folder, kind, text), ForeignGrammar.compile(folder, kind, text)
    pieces = [tokenizer.id_to_token(token) or "" for token in range(ours.vocabulary.size)]
    rng = np.random.default_rng(0)
    for _ in range(8):
        history: list[int] = []
        while len(history) < 25 and not ended_by(ours, history):
            here, there, before = ours.replay(history), theirs.replay(history), spell(pieces, history)
            for token in np.flatnonzero(here.allowed() != there.allowed()):
                assert disputed(kind, before, pieces[token])
            drafts = rng.choice(np.flatnonzero(here.allowed()), 3).tolist()
            counts = here.legal_prefix(drafts), there.legal_prefix(drafts)
            if counts[0] != counts[1]:
                agreed = min(counts)
                assert disputed(kind, before + spell(pieces, drafts[:agreed]), pieces[drafts[agreed]])
            history.append(int(rng.choice(np.flatnonzero(here.allowed() & there.allowed()))))
        assert theirs.replay(history).terminated == ended_by(ours, history)


@pytest.mark.parametrize("judge", [GrammarOracle, ForeignGrammar])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_whole_example_is_legal_and_may_end(
    folder: Path, tokenizer: Tokenizer, judge: type[GrammarOracle], name: str
) -> None:
    grammar, tokens = judge.compile(folder, *GRAMMARS[name]), tokenizer.encode(EXAMPLES[name]).ids
    stop = grammar.vocabulary.stop_ids[0]
    assert grammar.legal_prefix([*tokens, stop]) == len(tokens) + 1
    assert grammar.legal_prefix([*tokens[:-1], stop]) == len(tokens) - 1


def spell(pieces: list[str], tokens: list[int]) -> str:
    return "".join(pieces[token] for token in tokens)


def ended_by(grammar: GrammarOracle, history: list[int]) -> bool:
    return grammar.replay(history).terminated


@pytest.mark.parametrize("judge", [GrammarOracle, ForeignGrammar])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_is_legal_and_then_only_the_end(
    folder: Path, tokenizer: Tokenizer, judge: type[GrammarOracle], choice: str
) -> None:
    grammar = judge.compile(folder, "choice", json.dumps(CHOICES))
    tokens = tokenizer.encode(choice).ids
    at_end = grammar.replay(tokens)
    expected = {*grammar.vocabulary.stop_ids, *(tokenizer.encode(" ").ids if choice == "yes" else [])}
    allowed = set(np.flatnonzero(at_end.allowed()))
    assert expected <= allowed
    assert all(tokenizer.decode([t]).startswith(" p") for t in allowed - expected)


@pytest.mark.parametrize("judge", [GrammarOracle, ForeignGrammar])
def test_after_the_stop_token_nothing_is_masked_and_nothing_is_legal(
    folder: Path, tokenizer: Tokenizer, judge: type[GrammarOracle]
) -> None:
    grammar = judge.compile(folder, "choice", '["yes"]')
    yes, letter, (stop, other) = (
        tokenizer.encode("yes").ids,
        tokenizer.encode("a").ids,
        grammar.vocabulary.stop_ids,
    )
    assert grammar.replay([]).legal_prefix([*yes, stop, *letter]) == len(yes) + 1
    assert grammar.replay(yes).legal_prefix([other]) == 1
    done = grammar.replay([*yes, stop])
    assert done.terminated
    assert done.allowed().all()
    assert done.allowed().shape == (1024,)
    assert done.legal_prefix([stop]) == done.legal_prefix(letter) == done.legal_prefix([]) == 0


@pytest.mark.parametrize("judge", [GrammarOracle, ForeignGrammar])
def test_placeholders_special_and_padding_tokens_are_never_legal(
    folder: Path, tokenizer: Tokenizer, judge: type[GrammarOracle]
) -> None:
    grammar = judge.compile(folder, "json_schema", json.dumps(PERSON))
    inside = grammar.replay(tokenizer.encode('{"name": "a').ids)
    banned = [tokenizer.token_to_id("<|im_start|>"), *grammar.vocabulary.stop_ids, *range(1000, 1024)]
    assert not inside.allowed()[banned].any()
    for token in [*banned, -1, 1024]:
        assert inside.legal_prefix([token]) == 0


@pytest.mark.parametrize("judge", [GrammarOracle, ForeignGrammar])
def test_an_illegal_history_is_named_by_its_first_illegal_token(
    folder: Path, tokenizer: Tokenizer, judge: type[GrammarOracle]
) -> None:
    grammar = judge.compile(folder, "regex", "ab+")
    a, b = (tokenizer.encode(letter).ids[0] for letter in "ab")
    with pytest.raises(ScenarioError, match=f"token {a} at index 2"):
        grammar.replay([a, b, a, b])


def test_asking_changes_nothing(folder: Path, tokenizer: Tokenizer) -> None:
    grammar = GrammarOracle.compile(folder, "regex", "(ab)*c")
    a, b, c = (tokenizer.encode(letter).ids[0] for letter in "abc")
    here = grammar.replay([a, b])
    before = here.allowed()
    assert here.legal_prefix([a, b, a, a]) == 3
    assert here.legal_prefix([c, grammar.vocabulary.stop_ids[0]]) == 2
    assert (here.allowed() == before).all()


@pytest.mark.parametrize("kind", ["json_schema", "regex", "ebnf", "choice", "poetry"])
def test_a_grammar_that_does_not_compile_is_refused(folder: Path, kind: str) -> None:
    with pytest.raises(ScenarioError):
        GrammarOracle.compile(folder, kind, "(")
    with pytest.raises((ScenarioError, Unsupported, ValueError)):
        ForeignGrammar.compile(folder, kind, "(")


def test_stop_tokens_come_from_the_generation_config_first(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "tokenizer.json", tmp_path)

    def stop_ids(**eos: object) -> tuple[int, ...]:
        for name, token in eos.items():
            (tmp_path / f"{name}.json").write_text(json.dumps({"vocab_size": 1024, "eos_token_id": token}))
        return GrammarOracle.compile(tmp_path, "regex", "a").vocabulary.stop_ids

    assert stop_ids(config=999) == (999,)
    assert stop_ids(generation_config=[998, 997]) == (998, 997)
    assert stop_ids(generation_config=None) == (999,)
    with pytest.raises(ModelError, match="eos_token_id"):
        stop_ids(config=None)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        stop_ids(config=999)


@pytest.mark.parametrize("text", ["plain text", 'tab\tand "naïve"\n', "😀 and 中文", "\x00\x7f\xad\xa0"])
def test_tokens_say_their_bytes(folder: Path, tokenizer: Tokenizer, text: str) -> None:
    vocabulary = Vocabulary.read(folder)
    tokens = tokenizer.encode(text).ids
    assert vocabulary.text(tokens) == text.encode()
    silent = [tokenizer.token_to_id("<|im_start|>"), *vocabulary.stop_ids, -1, 1000, 10**6]
    assert vocabulary.text([*silent, *tokens, *silent]) == text.encode()
    assert len(vocabulary.text(range(256))) == 256


@pytest.mark.parametrize("judge", [GrammarOracle, ForeignGrammar])
def test_a_reasoning_is_free_up_to_its_marker(
    folder: Path, tokenizer: Tokenizer, judge: type[GrammarOracle]
) -> None:
    ruling = judge.compile(folder, "regex", "ab+")
    a, b, x = (tokenizer.encode(letter).ids[0] for letter in "abx")
    marker, stop = tokenizer.token_to_id("<|im_start|>"), ruling.vocabulary.stop_ids[0]
    reasoning = ReasoningJudge(ruling, marker)
    for thought in ([], [x, x], [b, stop]):
        thinking = reasoning.replay(thought)
        assert thinking.allowed().all()
        assert not thinking.terminated
        assert thinking.legal_prefix([x, marker, a, b, x]) == 4
        assert thinking.legal_prefix([x, -1, marker]) == thinking.legal_prefix([x, 1024]) == 1
        answered = reasoning.replay([*thought, marker, a, b])
        assert (answered.allowed() == ruling.replay([a, b]).allowed()).all()
        assert answered.legal_prefix([marker]) == 0
        assert reasoning.replay([*thought, marker, a, b, stop]).terminated
