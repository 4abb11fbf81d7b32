"""Audits of a server: what a right one shows, what each kind of wrong answer does to them, and what is served wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cases.selfcheck.serving import serving
from harness.cli import main
from harness.errors import UsageError
from harness.exchange import Answer, Ask, Exchange, Fate, Place, Snapshot
from harness.live import counters
from harness.live.answers import LIBRARY, VALID, kind_of
from harness.live.audit import Audit, judge
from harness.live.judges import Judges
from harness.live.run import Audited, listen
from harness.live.subjects import legs
from harness.live.transcript import Transcript, read
from harness.models.tiny import ensure
from harness.scenario import Grammar
from harness.verdict import Verdict

CHECKS = [
    "liveness",
    "whole answers",
    "grammar",
    "solo v crowd",
    "solo v again",
    "ends",
    "rescoring",
    "greedy choice",
    "counters",
    "memory",
    "noise",
]
CHOICE = Grammar(kind="choice", text='["the green garden", "the bright engine"]')


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure("peaked")


@pytest.fixture(scope="module")
def judges(folder: Path) -> Judges:
    return Judges(folder)


def audit_of(folder: Path, path: Path, *, seed: int = 0, crowds: int = 1, **setting: str) -> Transcript:
    with serving(folder, **setting) as server:
        return listen(
            Audited(url=server.url, patience=20.0),
            lambda offer: legs(offer, seed, crowds=crowds, max_tokens=32),
            path,
            lambda line: None,
        )


@pytest.fixture(scope="module")
def heard(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The transcript of the correct server."""
    path = tmp_path_factory.mktemp("live") / "transcript.jsonl"
    audit_of(folder, path)
    return path


@pytest.fixture
def right(heard: Path) -> Transcript:
    """A fresh copy of it."""
    return read(heard)


def changed(transcript: Transcript, name: str, change: Callable[[Answer], Answer]) -> Transcript:
    exchange = transcript.exchanges[name]
    transcript.exchanges[name] = replace(exchange, answer=change(exchange.answer))
    return transcript


def failing(audit: Audit) -> list[str]:
    return [finding.check for finding in audit.failed]


def subject(transcript: Transcript, kind: str, leg: str = "") -> str:
    """The ask of a subject by the name of its question, alone or in another leg."""
    alone = next(name for name in transcript.asked if name.startswith(f"{kind}-") and "/" not in name)
    return f"{alone}/{leg}" if leg else alone


def moved(places: tuple[Place, ...], index: int, by: float) -> tuple[Place, ...]:
    there = replace(places[index], logprob=places[index].logprob + by)
    return (*places[:index], there, *places[index + 1 :])


def test_the_correct_server_passes_every_check(right: Transcript, judges: Judges) -> None:
    audit = judge(right, judges)
    assert {finding.check: finding.verdict for finding in audit.findings} == dict.fromkeys(
        CHECKS, Verdict.PASS
    )
    assert audit.noise.tolerance == pytest.approx(1e-4)
    assert audit.noise.grid == 0


def test_everything_was_compared(right: Transcript, judges: Judges) -> None:
    of = {finding.check: finding.of for finding in judge(right, judges).findings}
    assert of["solo v crowd"] == of["solo v again"] == 11
    assert of["rescoring"] >= 30
    assert of["grammar"] >= 18


def test_a_wrong_law_is_seen_by_rescoring(right: Transcript, judges: Judges) -> None:
    name = subject(right, "garden")
    changed(right, name, lambda a: replace(a, places=moved(a.places, 5, 0.01)))
    for leg in ("crowd 1", "again"):  # wrong everywhere: comparing with itself shows nothing
        changed(right, f"{name}/{leg}", lambda a: replace(a, places=moved(a.places, 5, 0.01)))
    audit = judge(right, judges)
    assert failing(audit) == ["rescoring"]
    assert len(audit.failed[0].hit) == 3
    assert "token 5" in audit.failed[0].worst


def test_a_wrong_law_under_a_grammar_is_seen_by_rescoring(right: Transcript, judges: Judges) -> None:
    name = subject(right, "order")
    changed(right, name, lambda a: replace(a, places=moved(a.places, 7, -0.02)))
    assert "rescoring" in failing(judge(right, judges))


def test_a_law_that_is_no_number_is_wrong(right: Transcript, judges: Judges) -> None:
    name = subject(right, "garden", "again")
    changed(right, name, lambda a: replace(a, places=moved(a.places, 5, float("nan"))))
    assert failing(judge(right, judges)) == ["solo v again", "rescoring"]


def test_a_token_that_depends_on_the_company_is_seen(right: Transcript, judges: Judges) -> None:
    name = subject(right, "winter", "crowd 1")
    changed(
        right, name, lambda a: replace(a, tokens=(*a.tokens[:9], a.tokens[9] ^ 1, *a.tokens[10:]), text="")
    )
    audit = judge(right, judges)
    assert "solo v crowd" in failing(audit)
    (found,) = (f for f in audit.failed if f.check == "solo v crowd")
    assert found.hit == (name,)
    assert "token 9" in found.worst


def test_a_near_tie_may_go_either_way(right: Transcript, judges: Judges) -> None:
    alone, name = subject(right, "winter"), subject(right, "winter", "crowd 1")
    tie = {"a": -1.0, "b": -1.0 - 1e-6}
    changed(
        right,
        alone,
        lambda a: replace(a, places=(*a.places[:9], replace(a.places[9], best=tie), *a.places[10:])),
    )
    changed(
        right, name, lambda a: replace(a, tokens=(*a.tokens[:9], a.tokens[9] ^ 1, *a.tokens[10:]), text="")
    )
    found = {f.check: f.verdict for f in judge(right, judges).findings}
    assert found["solo v crowd"] is Verdict.NEAR_TIE


def test_a_greedy_token_that_is_not_the_best_is_seen(right: Transcript, judges: Judges) -> None:
    name = subject(right, "garden")
    text = right.exchanges[name].answer.prompt + right.exchanges[name].answer.tokens
    score = next(e for e in right.of("score") if e.ask.prompt == text)
    at = len(right.exchanges[name].answer.prompt) - 1 + 6

    def better(answer: Answer) -> Answer:
        place = answer.prompt_places[at]
        best = {**place.best, "7": place.logprob + 0.3}
        places = (*answer.prompt_places[:at], replace(place, best=best), *answer.prompt_places[at + 1 :])
        return replace(answer, prompt_places=places)

    changed(right, score.ask.id, better)
    assert "greedy choice" in failing(judge(right, judges))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: replace(a, tokens=a.tokens[:-1], places=a.places[:-1]), "usage counts"),
        (lambda a: replace(a, text=a.text + "x"), "the tokens say"),
        (lambda a: replace(a, places=a.places[:-1]), "log-probabilities"),
        (
            lambda a: replace(a, completion_tokens=a.completion_tokens - 1, tokens=a.tokens[:-1]),
            "ended for its length",
        ),
        (lambda a: replace(a, prompt_tokens=a.prompt_tokens + 1), "of the prompt"),
        (lambda a: replace(a, completion_tokens=99), "were allowed"),
    ],
)
def test_an_answer_that_contradicts_itself_is_seen(
    right: Transcript, judges: Judges, change: Callable[[Answer], Answer], words: str
) -> None:
    name = subject(right, "garden", "again")
    changed(right, name, change)
    audit = judge(right, judges)
    (found,) = (f for f in audit.failed if f.check == "whole answers")
    assert found.hit == (name,)
    assert words in found.worst


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("text", lambda a: replace(a, text=a.text + " on"), "stops at"),
        ("text", lambda a: replace(a, finish_reason="length"), "ended by length, expected stop"),
        (
            "token",
            lambda a: replace(a, tokens=a.tokens[:-2], completion_tokens=None, places=()),
            "tokens, expected",
        ),
        ("token", lambda a: replace(a, finish_reason="length", completion_tokens=None), "expected stop"),
        ("length", lambda a: replace(a, tokens=a.tokens[:-1], completion_tokens=None, places=()), "expected"),
        ("length", lambda a: replace(a, tokens=(a.tokens[0] ^ 1, *a.tokens[1:])), "token 0 is not that"),
    ],
)
def test_an_answer_that_ends_at_another_place_is_seen(
    right: Transcript, judges: Judges, kind: str, change: Callable[[Answer], Answer], words: str
) -> None:
    name = f"{subject(right, 'winter')}/{kind}"
    changed(right, name, change)
    (found,) = (f for f in judge(right, judges).failed if f.check == "ends")
    assert found.hit == (name,)
    assert words in found.worst


def guided(tokens: tuple[int, ...], text: str, reason: str, fate: Fate = Fate.COMPLETE) -> Exchange:
    ask = Ask(id="r", leg="solo", max_tokens=20, grammar=CHOICE)
    return Exchange(ask=ask, answer=Answer(fate=fate, tokens=tokens, text=text, finish_reason=reason))


def test_kinds_of_guided_answers_are_told_apart(folder: Path, judges: Judges) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")

    def tokens(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text).ids)

    whole = "the green garden"
    assert kind_of(guided((*tokens(whole), end), whole, "stop"), judges) == VALID
    assert kind_of(guided(tokens(whole), whole, "stop"), judges) == VALID  # the end token may be left out
    assert kind_of(guided(tokens("the green"), "the green", "length"), judges) == "truncated"
    assert kind_of(guided(tokens("the green"), "the green", "stop"), judges) == "ended early"
    assert kind_of(guided(tokens("the grey"), "the grey", "stop"), judges) == "violated"
    assert kind_of(guided((*tokens(whole), end, end), whole, "length"), judges) == "went on behind its end"


def test_what_a_matcher_allows_and_json_refuses_is_the_librarys(folder: Path, judges: Judges) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    schema = Grammar(kind="json_schema", text='{"type": "string", "maxLength": 4}')
    text = '"a\x1c"'
    ask = Ask(id="r", leg="solo", max_tokens=20, grammar=schema)
    answer = Answer(
        fate=Fate.COMPLETE,
        tokens=(*tokenizer.encode(text).ids, tokenizer.token_to_id("<|im_end|>")),
        text=text,
        finish_reason="stop",
    )
    assert kind_of(Exchange(ask=ask, answer=answer), judges) == LIBRARY


def test_without_a_tokenizer_the_text_is_judged() -> None:
    assert kind_of(guided((1, 2), "the green garden", "stop"), Judges(None)) == VALID
    assert kind_of(guided((1, 2), "the grey", "stop"), Judges(None)) == "violated"


def grown(transcript: Transcript, when: str, name: str, by: float) -> None:
    """From this moment on a counter is off by so much."""
    late = False
    for index, snapshot in enumerate(transcript.snapshots):
        late = late or snapshot.when == when
        if late:
            values = {**snapshot.values, name: snapshot.values.get(name, 0.0) + by}
            transcript.snapshots[index] = replace(snapshot, values=values)


@pytest.mark.parametrize(
    ("name", "by"),
    [
        (counters.GENERATED, 1),
        (counters.GENERATED, -1),
        (counters.PROMPTS, 1),
        (counters.ACCEPTED, 1000),
        (counters.DRAFTED, 100_000),
        (f"{counters.PER_POSITION}[2]", 500),
        (counters.DRAFTS, -100_000),
    ],
)
def test_a_counter_that_is_off_is_seen(right: Transcript, judges: Judges, name: str, by: float) -> None:
    grown(right, "again", name, by)
    assert failing(judge(right, judges)) == ["counters"]


def test_acceptance_that_fades_is_seen(right: Transcript, judges: Judges) -> None:
    before = next(s for s in right.snapshots if s.when == "crowd 1").values
    after = next(s for s in right.snapshots if s.when == "again").values
    for name in [name for name in after if "accepted" in name]:
        grown(right, "again", name, before[name] - after[name])
    assert "acceptance of the same requests fell" in " ".join(f.told for f in judge(right, judges).failed)


@pytest.mark.parametrize("name", [counters.RUNNING, counters.WAITING, counters.MEMORY])
def test_what_is_not_given_back_is_seen(right: Transcript, judges: Judges, name: str) -> None:
    grown(right, "crowd 1", name, 0.01)
    assert failing(judge(right, judges)) == ["memory"]


def test_a_death_is_blamed_on_the_one_that_ran(right: Transcript, judges: Judges) -> None:
    name = subject(right, "order")
    detail = "the engine died of RuntimeError: shape '[15, -1, 512]' is invalid for input of size 22528"
    changed(right, name, lambda a: replace(a, fate=Fate.FAILED, status=500, detail=detail))
    found = judge(right, judges).failed[0]
    assert (found.check, found.hit) == ("liveness", (name,))
    assert found.worst.startswith(f"it ran alone: {name}")
    assert found.cause.startswith("shape mismatch")
    assert "24881" in found.cause


def test_a_death_in_a_crowd_names_all_who_ran(right: Transcript, judges: Judges) -> None:
    leaving = min(right.of("crowd 1"), key=lambda e: e.answer.ended)
    changed(right, leaving.ask.id, lambda a: replace(a, fate=Fate.BROKEN, detail="x"))
    found = judge(right, judges).failed[0]
    assert "requests ran together" in found.worst


def test_the_log_says_what_http_does_not(right: Transcript, judges: Judges) -> None:
    changed(
        right, subject(right, "order"), lambda a: replace(a, fate=Fate.FAILED, status=500, detail="sorry")
    )
    right.log = (
        "RuntimeError: The size of tensor a (6) must match the size of tensor b (4)",
        "shutting down",
    )
    assert "size of tensor a (6)" in judge(right, judges).failed[0].cause


def test_silence_is_a_failure(right: Transcript, judges: Judges) -> None:
    changed(right, subject(right, "order"), lambda a: replace(a, fate=Fate.HUNG, detail="no news for 30 s"))
    found = judge(right, judges).failed[0]
    assert (found.check, "starves" in found.cause) == ("liveness", True)


def test_a_refusal_of_a_legal_request_is_a_failure(right: Transcript, judges: Judges) -> None:
    changed(right, subject(right, "letter"), lambda a: replace(a, fate=Fate.REFUSED, status=400, detail="no"))
    assert failing(judge(right, judges)) == ["liveness"]


def test_a_prompt_whose_law_depends_on_its_company_is_seen(right: Transcript, judges: Judges) -> None:
    name = next(e.ask.id for e in right.of("score together"))
    changed(right, name, lambda a: replace(a, prompt_places=moved(a.prompt_places, 3, 2.0)))
    audit = judge(right, judges)
    assert failing(audit) == ["noise"]
    assert audit.noise.tolerance == pytest.approx(1e-4)


def test_noise_widens_the_tolerance(right: Transcript, judges: Judges) -> None:
    name = next(e.ask.id for e in right.of("score together"))
    changed(right, name, lambda a: replace(a, prompt_places=moved(a.prompt_places, 3, 0.02)))
    changed(right, subject(right, "garden"), lambda a: replace(a, places=moved(a.places, 5, 0.05)))
    audit = judge(right, judges)
    assert audit.noise.tolerance == pytest.approx(0.06, rel=1e-3)  # one place: three times the largest
    assert failing(audit) == []


def test_noise_of_many_places_counts_ten_times(right: Transcript, judges: Judges) -> None:
    for exchange in list(right.of("score together")):
        changed(right, exchange.ask.id, lambda a: replace(a, prompt_places=moved(a.prompt_places, 3, 0.02)))
    assert judge(right, judges).noise.tolerance == pytest.approx(0.2, rel=1e-2)


def test_rounded_logits_are_known_to_their_step(right: Transcript, judges: Judges) -> None:
    def rounded(place: Place) -> Place:
        return replace(place, best={"1": -1.0, "2": -1.0 - 0.0625 * round(place.gap or 1)})

    for exchange in list(right.of("score")):
        changed(
            right,
            exchange.ask.id,
            lambda a: replace(a, prompt_places=tuple(rounded(place) for place in a.prompt_places)),
        )
    assert judge(right, judges).noise.grid == 0.0625


def test_a_reference_that_answers_otherwise_is_seen(right: Transcript, heard: Path, judges: Judges) -> None:
    other = read(heard)
    assert {f.check: f.verdict for f in judge(right, judges, other).findings}["reference"] is Verdict.PASS
    name = subject(other, "record")
    changed(other, name, lambda a: replace(a, places=moved(a.places, 4, 0.3)))
    assert failing(judge(right, judges, other)) == ["reference"]


def test_a_cut_transcript_is_judged_as_far_as_it_goes(heard: Path, judges: Judges, tmp_path: Path) -> None:
    lines = heard.read_text().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(lines[: len(lines) // 4]) + lines[len(lines) // 4][:40])
    audit = judge(read(cut), judges)
    assert failing(audit) == []
    assert audit.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "text", ["", "{", "{}\n", '{"exchange": 1}\n', "\x00\n", '{"offer": {"url": "u"}}\n']
)
def test_what_is_no_transcript_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match="is no transcript"):
        read(path)


def test_an_empty_audit_decides_nothing(judges: Judges, right: Transcript) -> None:
    assert judge(Transcript(offer=right.offer), judges).verdict is Verdict.INCONCLUSIVE


def test_metrics_are_added_up_over_labels_but_not_positions() -> None:
    from harness.targets.pages import read_metrics

    text = (
        "# HELP a b\n"
        'vllm:x_total{engine="0",model_name="m"} 2.0\n'
        'vllm:x_total{engine="1",model_name="m"} 3.0\n'
        'vllm:p_total{position="1"} 4\n'
        'vllm:t_bucket{le="0.1"} 7\n'
        "vllm:x_created 1e9\n"
        "plain 1\n"
    )
    assert read_metrics(text) == {"vllm:x_total": 5.0, "vllm:p_total[1]": 4.0, "plain": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "check"),
    [("as-merged", "rescoring"), ("before-fix", "liveness"), ("stop-text-inside-a-run", "ends")],
)
def test_what_is_served_wrong_is_seen(
    folder: Path, judges: Judges, tmp_path: Path, variant: str, check: str
) -> None:
    transcript = audit_of(folder, tmp_path / "t.jsonl", policy=variant)
    assert check in failing(judge(transcript, judges))


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serving(folder, api_key="secret") as server:
        yield server.url


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object], str]:
    code = main(["live", *arguments])
    out = capsys.readouterr().out
    return code, json.loads(out.splitlines()[-1]), out


def test_a_budget_ends_an_audit_and_keeps_what_was_heard(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    arguments = [
        "--base-url",
        url,
        "--api-key-file",
        str(key),
        "--reports",
        str(tmp_path),
        "--max-tokens",
        "8",
    ]
    code, result, _ = run(capsys, *arguments, "--budget", "14", "--tokenizer", str(folder))
    assert (code, result["verdict"]) == (125, "INCONCLUSIVE")
    assert result["requests"] == 15  # the one that could not be asked is named
    (run_dir,) = tmp_path.glob("live-*")
    for file in run_dir.iterdir():
        assert "secret" not in file.read_text()
    code, again, _ = run(capsys, "--judge", str(run_dir / "transcript.jsonl"), "--tokenizer", str(folder))
    assert again["findings"] == result["findings"]


def test_what_was_said_is_redacted(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECHARNESS_API_KEY", "secret")
    _, _, out = run(
        capsys,
        "--base-url",
        url,
        "--reports",
        str(tmp_path),
        "--budget",
        "12",
        "--redact",
        "--max-tokens",
        "8",
    )
    (run_dir,) = tmp_path.glob("live-*")
    said = [json.loads(line) for line in (run_dir / "transcript.jsonl").read_text().splitlines()]
    answers = [line["exchange"] for line in said if "exchange" in line]
    assert len(answers) == 12
    assert all(not a["answer"].get("text") and not a["answer"].get("tokens") for a in answers)
    for text in (out, *(file.read_text() for file in run_dir.iterdir())):
        assert "green garden" not in text


def test_a_wrong_key_and_nobody_there_are_clear_errors(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPECHARNESS_API_KEY", raising=False)
    code, result, _ = run(capsys, "--base-url", url, "--reports", str(tmp_path))
    assert (code, "401" in str(result["error"])) == (2, True)
    code, result, _ = run(capsys, "--base-url", "http://127.0.0.1:9", "--reports", str(tmp_path))
    assert (code, "no connection" in str(result["error"])) == (2, True)


def test_a_snapshot_of_nobody_is_empty() -> None:
    import asyncio

    from harness.targets.openai_server import OpenAIServer

    async def look() -> Snapshot:
        server = OpenAIServer("http://127.0.0.1:9", "m", patience=1.0)
        try:
            return await server.snapshot("now")
        finally:
            await server.close()

    snapshot = asyncio.run(look())
    assert (snapshot.health, dict(snapshot.values)) == (None, {})


def test_our_server_does_not_outlive_a_killed_audit(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from harness.live.own_server import own_server\n"
        f"with own_server([], Path({str(tmp_path / 'log')!r})) as own:\n"
        "    print(own.process.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as audit:
        assert audit.stdout is not None
        server = int(audit.stdout.readline())
        audit.kill()
    for _ in range(200):
        if not Path(f"/proc/{server}/cmdline").exists() or not Path(f"/proc/{server}/cmdline").read_bytes():
            return
        time.sleep(0.1)
    os.kill(server, signal.SIGKILL)
    pytest.fail("the server is still there")
