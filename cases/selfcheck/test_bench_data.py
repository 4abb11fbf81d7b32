"""What a benchmark sends: exact lengths, the same for the same seed, guides that can be kept."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bench.data.ask import Ask, Guide, GuideKind
from harness.bench.data.drawn import Lengths, drawn, repeated_prefixes
from harness.bench.data.files import custom, share_gpt
from harness.bench.data.guides import bundled, guided, made_unique, schema_folder
from harness.bench.data.timed import timed
from harness.bench.data.vocabulary import Vocabulary
from harness.bench.data.workload import PRESETS, digest, preset
from harness.bench.validity import Validity, judge_for
from harness.errors import UsageError
from harness.models.tiny import ensure

REGEX = Guide(name="digits", kind=GuideKind.REGEX, rule="[0-9]{4}")
CHOICE = Guide(name="mood", kind=GuideKind.CHOICE, rule=("good", "bad"))
GRAMMAR = Guide(name="sum", kind=GuideKind.GRAMMAR, rule='root ::= "1" ("+1")*')


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure("peaked", 0)


@pytest.fixture(scope="module")
def words(folder: Path) -> Vocabulary:
    return Vocabulary(folder)


def written(path: Path, *entries: object) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def test_random_ids_are_ordinary_and_of_exact_length(folder: Path, words: Vocabulary) -> None:
    added = {token["id"] for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]}
    assert added
    assert not added & set(words.ordinary)
    asks = drawn(words, 50, Lengths(prompt=33, output=7), Random(1))
    assert {len(ask.prompt) for ask in asks} == {33}
    assert {(ask.prompt_tokens, ask.max_tokens, ask.ignore_eos) for ask in asks} == {(33, 7, True)}
    assert len({ask.prompt for ask in asks}) == 50
    assert len({ask.id for ask in asks}) == 50


def test_special_tokens_of_the_base_vocabulary_are_not_ordinary(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "[UNK]", "<pad>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert Vocabulary(tmp_path).ordinary == (1, 2)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 120), st.integers(0, 99))
def test_random_texts_encode_to_exactly_as_many_tokens(length: int, seed: int) -> None:
    words = Vocabulary(ensure("peaked", 0))
    assert words.count(words.text(Random(seed), length)) == length


def test_merely_decoding_ids_would_not_give_that_length(words: Vocabulary) -> None:
    wrong = sum(words.count(words.decode(words.draw(Random(seed), 60))) != 60 for seed in range(50))
    assert wrong > 40


def test_a_ratio_spreads_lengths_evenly_around_theirs(words: Vocabulary) -> None:
    sizes = [
        len(ask.prompt) for ask in drawn(words, 400, Lengths(prompt=20, output=10, ratio=0.5), Random(0))
    ]
    assert (min(sizes), max(sizes)) == (10, 30)
    assert sum(sizes) / 400 == pytest.approx(20, abs=1)
    for wrong in (
        {"prompt": 0, "output": 1},
        {"prompt": 1, "output": 0},
        {"prompt": 1, "output": 1, "ratio": 1.0},
    ):
        with pytest.raises(UsageError):
            Lengths(**wrong)


def test_the_same_seed_asks_the_same_and_another_does_not(words: Vocabulary) -> None:
    workload = PRESETS["quick"]
    assert digest(workload.asks(words, 3)) == digest(workload.asks(words, 3))
    assert digest(workload.asks(words, 3)) != digest(workload.asks(words, 4))
    turned = workload.asks(words, 3)[::-1]
    assert digest(turned) != digest(workload.asks(words, 3))


def test_the_preset_of_the_thread_has_its_size(words: Vocabulary) -> None:
    found = preset("pr24957")
    asks = found.asks(words, 0)
    assert (len(asks), found.concurrency) == (100, 10)
    assert sum(ask.prompt_tokens or 0 for ask in asks) == pytest.approx(204_357, rel=1e-3)
    assert sum(ask.max_tokens for ask in asks) == pytest.approx(97_082, rel=1e-3)
    assert found.longest == 3015
    with pytest.raises(UsageError, match="expected one of pr24957"):
        preset("pr1")


def test_prefixes_are_shared_evenly(words: Vocabulary) -> None:
    asks = repeated_prefixes(
        words, 22, Random(5), prefixes=4, prefix_tokens=30, suffix_tokens=5, output_tokens=3
    )
    heads = Counter(ask.prompt[:30] for ask in asks)
    assert sorted(heads.values()) == [5, 5, 6, 6]
    assert len({ask.prompt for ask in asks}) == 22
    assert {len(ask.prompt) for ask in asks} == {35}


# files


def test_conversations_in_share_gpts_shape(tmp_path: Path, words: Vocabulary) -> None:
    def talk(*texts: str, **more: object) -> dict[str, object]:
        return {"conversations": [{"from": "human", "value": text} for text in texts], **more}

    long = "one two three four five six seven"
    path = tmp_path / "talks.json"
    path.write_text(
        json.dumps([talk(long, long + " eight", id="a"), talk("x"), talk("a", "b"), talk(long, long)])
    )
    asks = share_gpt(path, words, 10)
    assert [ask.id for ask in asks] == ["a", "conversation-00001"]
    assert (asks[0].prompt_tokens, asks[0].max_tokens) == (words.count(long), words.count(long + " eight"))
    assert not asks[0].ignore_eos
    assert len(share_gpt(path, words, 1)) == 1
    assert share_gpt(path, words, 10, output_tokens=9)[0].max_tokens == 9
    with pytest.raises(UsageError, match="no usable prompt"):
        share_gpt(path, words, 10, longest=10)


def test_json_lines_of_ones_own(tmp_path: Path) -> None:
    path = written(
        tmp_path / "own.jsonl",
        {"prompt": "line\u2028separator", "output_tokens": 5, "at": 1.5, "id": "x"},
        {"prompt": [1, 2, 3], "guide": {"json": {"type": "object"}}},
        {"prompt": "hi", "guide": {"kind": "choice", "rule": ["a", "b"], "name": "ab"}},
    )
    path.write_text(
        path.read_text().replace("\\u2028", "\u2028"), encoding="utf-8"
    )  # legal in JSON, no end of line
    first, second, third = custom(path, count=len)
    assert (first.id, first.at, first.max_tokens, first.prompt) == ("x", 1.5, 5, "line\u2028separator")
    assert (second.prompt, second.prompt_tokens, second.max_tokens) == ((1, 2, 3), 3, 256)
    assert second.guide is not None
    assert third.guide is not None
    assert second.guide.kind is GuideKind.JSON_SCHEMA
    assert (third.guide.name, third.guide.rule) == ("ab", ("a", "b"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "own.jsonl:2: saw no JSON"),
        ("[" * 100_000, "own.jsonl:2: saw no JSON"),
        ("3", "saw int, expected an object"),
        ("{}", "expected a text or token ids"),
        ('{"prompt": []}', "expected a text or token ids"),
        ('{"prompt": [-1]}', "expected a text or token ids"),
        ('{"prompt": [true]}', "expected a text or token ids"),
        ('{"prompt": "a", "output_tokens": 0}', "expected 1 or more"),
        ('{"prompt": "a", "output_tokens": "9"}', "expected 1 or more"),
        ('{"prompt": "a", "at": -1}', "expected seconds"),
        ('{"prompt": "a", "at": NaN}', "expected seconds"),
        ('{"prompt": "a", "guide": {"xml": 1}}', "expected one of json"),
        ('{"prompt": "a", "guide": {"kind": ["regex"], "rule": 1}}', "expected one of json"),
        ('{"prompt": "a", "guide": {"choice": []}}', "expected a non-empty tuple"),
        ('{"prompt": "a", "guide": {"regex": 3}}', "expected a text"),
        ('{"prompt": "a", "id": "first"}', "twice"),
    ],
)
def test_a_bad_line_is_one_clear_error(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "a", "id": "first"}\n' + line + "\n")
    with pytest.raises(UsageError) as error:
        custom(path)
    assert said in str(error.value)


def test_files_that_cannot_be_read_are_one_clear_error(tmp_path: Path, words: Vocabulary) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    for path in (tmp_path / "missing", tmp_path / "bytes", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            custom(path)
    with pytest.raises(UsageError, match="ShareGPT"):
        share_gpt(written(tmp_path / "x.jsonl", {"prompt": "a"}), words, 1)
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        Vocabulary(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot be read"):
        Vocabulary(tmp_path).encode("a")


def test_a_trace_keeps_times_lengths_and_shared_blocks(tmp_path: Path, words: Vocabulary) -> None:
    def line(at: float, size: int, *hashes: int) -> dict[str, object]:
        return {"timestamp": at, "input_length": size, "output_length": 4, "hash_ids": hashes}

    path = written(tmp_path / "t.jsonl", line(500, 20, 7, 8, 9), line(1500, 18, 7, 8, 3), line(2500, 9))
    asks = timed(path, words, 1, block=8)
    assert [ask.at for ask in asks] == [0.0, 1.0, 2.0]
    assert [len(ask.prompt) for ask in asks] == [20, 18, 9]
    assert asks[0].prompt[:16] == asks[1].prompt[:16]
    assert asks[0].prompt[16:18] != asks[1].prompt[16:18]
    assert [ask.at for ask in timed(path, words, 1, speed=2.0)] == [0.0, 0.5, 1.0]
    assert [ask.at for ask in timed(path, words, 1, tick=1.0)] == [0.0, 1000.0, 2000.0]
    assert timed(path, words, 1, block=8) == asks
    assert len(timed(path, words, 1, longest=22)) == 2
    assert len(timed(path, words, 1, n=1)) == 1
    for wrong in (line(100, 5), {"timestamp": "x"}, {"input_length": 3}, line(True, 5)):
        with pytest.raises(UsageError, match=r"t\.jsonl:2"):
            timed(written(tmp_path / "t.jsonl", line(500, 20), wrong), words, 1)


# guides


def test_the_bundled_schemas_are_many_and_their_examples_keep_them() -> None:
    guides = bundled()
    assert len(guides) >= 30
    assert len({guide.name for guide in guides}) == len(guides)
    for guide in guides:
        (example,) = guide.rule["examples"]
        assert judge_for(guide)(json.dumps(example), False)[0] is Validity.VALID, guide.name
        assert guide.task.count(": ") == 1
    assert [guide.name for guide in bundled("matrix", "person")] == ["matrix", "person"]
    with pytest.raises(UsageError, match="saw schema 'persona'"):
        bundled("persona")


def test_engines_can_compile_every_bundled_schema_and_write_its_example() -> None:
    import xgrammar

    info = xgrammar.TokenizerInfo(
        [bytes([byte]) for byte in range(256)] + [b"<end>"],
        vocab_type=xgrammar.VocabType.RAW,
        stop_token_ids=[256],
    )
    compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)
    for guide in bundled():
        compiled = compiler.compile_json_schema(
            json.dumps(guide.rule), any_whitespace=False, separators=(",", ":")
        )
        matcher = xgrammar.GrammarMatcher(compiled)
        example = json.dumps(guide.rule["examples"][0], separators=(",", ":")).encode()
        assert all(matcher.accept_token(byte) for byte in example), guide.name
        assert matcher.accept_token(256), guide.name


def strings(schema: Any, where: str = "") -> list[str]:
    """Places of string schemas that nothing bounds."""
    if isinstance(schema, list):
        return [place for one in schema for place in strings(one, where)]
    if not isinstance(schema, dict):
        return []
    open_end = schema.get("type") == "string" and not {"maxLength", "pattern", "enum"} & schema.keys()
    inner = [
        place for key, one in schema.items() if key != "examples" for place in strings(one, f"{where}/{key}")
    ]
    return ([where] if open_end else []) + inner


def test_every_string_of_the_bundled_schemas_ends_somewhere() -> None:
    assert {guide.name: found for guide in bundled() if (found := strings(guide.rule))} == {}
    assert strings({"properties": {"a": {"type": "string"}}}) == ["/properties/a"]


def test_a_folder_in_json_schema_benchs_layout(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "Github_easy").mkdir()
    (tmp_path / "Github_easy" / "o1.json").write_text('{"type": "object"}')
    written(tmp_path / "Snowplow.jsonl", {"json_schema": '{"type": "array"}', "unique_id": "s1"})
    table = pa.table({"json_schema": ['{"type": "null"}'], "unique_id": ["k1"]})
    pq.write_table(table, tmp_path / "Kubernetes.parquet")
    (tmp_path / "README.md").write_text("no schema")
    found = {guide.name: (guide.family, guide.rule["type"]) for guide in schema_folder(tmp_path)}
    assert found == {
        "Github_easy/o1": ("Github_easy", "object"),
        "Snowplow/s1": ("Snowplow", "array"),
        "Kubernetes/k1": ("Kubernetes", "null"),
    }


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.json", b"{", "saw no JSON"),
        ("x.json", b"3", "expected a schema"),
        ("x.jsonl", b'{"other": 1}\n', "expected a schema"),
        ("x.parquet", b"PAR1", "cannot be read as Parquet"),
        ("x.txt", b"", "saw no schema"),
    ],
)
def test_a_folder_without_schemas_is_one_clear_error(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        schema_folder(tmp_path)
    with pytest.raises(UsageError, match="saw no folder"):
        schema_folder(tmp_path / "missing")


def plain(n: int) -> list[Ask]:
    return [Ask(id=f"r{i}", prompt=(i,), max_tokens=5, ignore_eos=True) for i in range(n)]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), st.floats(0, 1), st.integers(0, 9))
def test_a_mix_has_exactly_its_share_and_changes_no_prompt(n: int, share: float, seed: int) -> None:
    asks = plain(n)
    mixed = guided(asks, [REGEX, CHOICE], Random(seed), share=share)
    with_guide = [ask for ask in mixed if ask.guide is not None]
    assert len(with_guide) == round(share * n)
    assert [(ask.id, ask.prompt, ask.max_tokens) for ask in mixed] == [
        (ask.id, ask.prompt, ask.max_tokens) for ask in asks
    ]
    assert not any(ask.ignore_eos for ask in with_guide)
    turns = Counter(ask.guide.name for ask in with_guide if ask.guide)
    assert max(turns.values(), default=0) - min(turns["digits"], turns["mood"]) <= 1


def test_unique_guides_differ_in_text_and_allow_the_same() -> None:
    for guide, text in ((bundled("person")[0], None), (REGEX, "1234"), (CHOICE, "bad"), (GRAMMAR, "1+1")):
        mixed = guided(plain(5), [guide], Random(0), unique=True)
        guides = [ask.guide for ask in mixed if ask.guide]
        assert len({json.dumps(one.rule) for one in guides}) == 5
        assert len({one.name for one in guides}) == 5
        assert {one.family for one in guides} == {guide.family or guide.name}
        answer = text or json.dumps(guide.rule["examples"][0])
        assert all(judge_for(one)(answer, False)[0] is Validity.VALID for one in guides)
    scalar = made_unique(Guide(name="n", kind=GuideKind.JSON_SCHEMA, rule={"type": "integer"}), "r1")
    assert judge_for(scalar)("3", False)[0] is Validity.VALID
    assert scalar.rule != {"type": "integer"}


def test_a_share_that_is_none_is_refused() -> None:
    for share, guides in ((1.5, [REGEX]), (-0.1, [REGEX]), (0.5, [])):
        with pytest.raises(UsageError, match="saw share"):
            guided(plain(2), guides, Random(0), share=share)


def test_guided_and_free_runs_of_one_preset_have_the_same_prompts(words: Vocabulary) -> None:
    from dataclasses import replace

    free = PRESETS["quick"]
    pairs = zip(free.asks(words, 7), replace(free, guided=1.0).asks(words, 7), strict=True)
    assert all((one.id, one.prompt) == (other.id, other.prompt) and other.guide for one, other in pairs)


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(UsageError, match="max_tokens 0"):
        Ask(id="a", prompt="x", max_tokens=0)
    with pytest.raises(UsageError, match="ignore_eos with guide"):
        Ask(id="a", prompt="x", max_tokens=1, ignore_eos=True, guide=REGEX)
    with pytest.raises(UsageError, match="expected an object"):
        Guide(name="g", kind=GuideKind.JSON_SCHEMA, rule="{}")
