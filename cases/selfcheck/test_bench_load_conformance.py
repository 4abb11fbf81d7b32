"""Every transport against every script, over a socket, with the server in a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from harness.bench.conformance.__main__ import main
from harness.bench.conformance.outsider import Claim, judged_claim
from harness.bench.conformance.process import scripted_server
from harness.bench.conformance.score import Score, call_of, judged, score, truth_log
from harness.bench.conformance.scripts import every_script
from harness.bench.load.call import CHAT, COMPLETIONS, completion
from harness.bench.load.clock import Clock
from harness.bench.load.health import Pulse, merged
from harness.bench.load.transport import Endpoint, Transport, open_transport
from harness.bench.record import Kind, Outcome, RequestRecord

SCRIPTS = every_script()
OF_THE_STOCK_CLIENT = {
    "byte-order-mark",  # loses the first event
    "other-events",  # reads the data of every event, whatever its name
    "error-event",  # takes an event called error for nothing, and the stream for a cut one
    "old-error-object",  # the same
    "error-as-200",  # the same with a document
}
"""What ``openai`` itself does: none of it makes a success of a failure."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with scripted_server() as told:
        yield told


def scored(url: str, name: str, **more: Any) -> list[Score]:
    return uvloop.run(
        score(lambda endpoint, clock: open_transport(endpoint, clock, name), url, SCRIPTS, **more)
    )


@pytest.mark.parametrize("name", ["raw", "aiohttp"])
def test_our_transports_are_right_on_every_script(url: str, name: str) -> None:
    wrong = [each for each in scored(url, name, tolerance=2.0, at_once=24) if not each.is_right]
    assert wrong == []


def test_the_stock_client_fails_what_is_known_and_never_counts_a_failure_as_a_success(url: str) -> None:
    scores = scored(url, "openai", tolerance=20.0, at_once=16)
    assert {each.name for each in scores if not each.is_right} == OF_THE_STOCK_CLIENT
    assert [each for each in scores if each.saw is Outcome.COMPLETE and each.expected is not each.saw] == []


def test_stamps_of_the_raw_transport_are_those_of_the_writes(url: str) -> None:
    some = {key: SCRIPTS[key] for key in [("plain", COMPLETIONS), ("role-first", CHAT)]}
    lags = [
        each.lag
        for _ in range(5)
        for each in uvloop.run(
            score(lambda endpoint, clock: open_transport(endpoint, clock, "raw"), url, some, tolerance=2.0)
        )
    ]
    assert min(lag for lag in lags if lag is not None) < 0.005  # the best: others use this machine too


@pytest.mark.parametrize(
    ("name", "path", "ttft", "tpot"),
    [
        ("several-tokens-per-chunk", COMPLETIONS, 0.100, 0.010),  # trap 1
        ("four-tokens-first", COMPLETIONS, 0.100, 0.040 / 7),  # trap 2, the compatible TPOT
        ("role-first", CHAT, 0.080, 0.020),  # trap 3
        ("reasoning-first", CHAT, 0.100, 0.050),  # trap 11
        ("one-token", COMPLETIONS, 0.040, None),  # trap 13
        ("cut-clean", COMPLETIONS, 0.020, None),
    ],
)
def test_the_truth_of_a_script_is_the_trap_s(name: str, path: str, ttft: float, tpot: float | None) -> None:
    truth = SCRIPTS[name, path].truth
    assert truth.ttft == pytest.approx(ttft)
    assert truth.tpot == (None if tpot is None else pytest.approx(tpot))


def test_the_first_answer_token_comes_after_the_first_reasoning_token() -> None:
    chunks = SCRIPTS["reasoning-first", CHAT].truth.chunks
    assert next(at for at, kind, _ in chunks if kind is Kind.CONTENT) == pytest.approx(0.300)


def test_dead_streams_are_failures_and_their_tokens_are_kept_apart(url: str) -> None:
    """Trap 9, small: 8 of 10 complete, and what the other two had said is no output of a success."""

    async def ten() -> list[RequestRecord]:
        transport, clock = open_transport(Endpoint(url=url), Clock(), "raw"), Clock()
        names = ["plain"] * 8 + ["error-then-done", "error-event"]
        records = await asyncio.gather(
            *(
                transport.send(call_of(SCRIPTS[name, COMPLETIONS], f"ten-{i}"), clock.now())
                for i, name in enumerate(names)
            )
        )
        await transport.close()
        return list(records)

    records = uvloop.run(ten())
    assert Counter(each.outcome for each in records) == {Outcome.COMPLETE: 8, Outcome.IN_BAND_ERROR: 2}
    partial = [each for each in records if each.outcome is not Outcome.COMPLETE]
    assert [sum(c.tokens or 0 for c in each.chunks) for each in partial] == [2, 2]
    assert {each.detail for each in partial} == {"engine died"}


def test_a_late_reader_shows_and_is_client_bound(url: str) -> None:
    """Trap 15: written at 20, 40 and 60 ms, read at once behind that."""

    async def late() -> tuple[RequestRecord, Any]:
        clock = Clock()
        transport = open_transport(Endpoint(url=url), clock, "raw")
        await transport.send(completion("early", "plain", "x", 3), clock.now())
        pulse = Pulse(clock)
        pulse.start()
        task = asyncio.create_task(transport.send(completion("late", "plain", "x", 3), clock.now()))
        await asyncio.sleep(0.005)
        time.sleep(0.15)  # the loop hears nothing
        record = await task
        pulses = pulse.stop()
        await transport.close()
        return record, merged([pulses], [record])

    record, health = uvloop.run(late())
    assert record.outcome is Outcome.COMPLETE
    assert health.coalesced_share == pytest.approx(2 / 3)
    assert health.loop_lag_max >= 0.041
    assert health.is_client_bound
    assert any("event-loop lag" in why for why in health.because)


def test_a_score_sees_wrong_chunks_wrong_outcomes_and_late_stamps(url: str) -> None:
    async def one() -> tuple[Transport, Clock, RequestRecord]:
        clock = Clock()
        transport = open_transport(Endpoint(url=url), clock, "raw")
        record = await transport.send(call_of(SCRIPTS["role-first", CHAT], "seen"), 0.0)
        await transport.close()
        return transport, clock, record

    _, clock, record = uvloop.run(one())
    script, entry = SCRIPTS["role-first", CHAT], truth_log(url)["seen"]
    assert judged(script, record, entry, clock, 2.0).is_right
    role_counts = tuple(replace(c, kind=Kind.CONTENT) if c.kind is Kind.ROLE else c for c in record.chunks)
    late = tuple(replace(c, at=c.at + 3.0) for c in record.chunks)
    early = tuple(replace(c, at=c.at - 3.0) for c in record.chunks)
    for wrong in (
        replace(record, chunks=role_counts),
        replace(record, chunks=late),
        replace(record, chunks=early),
        replace(record, outcome=Outcome.CUT),
        replace(record, text="ab"),
        replace(record, completion_tokens=4),
        replace(record, finish_reason="length"),
    ):
        assert not judged(script, wrong, entry, clock, 2.0).is_right


def test_an_unknown_script_is_refused_with_the_names_that_are_known(url: str) -> None:
    async def one() -> RequestRecord:
        transport = open_transport(Endpoint(url=url), Clock(), "raw")
        record = await transport.send(completion("a", "no-such-script", "x", 1), 0.0)
        await transport.close()
        return record

    record = uvloop.run(one())
    assert (record.outcome, record.status) == (Outcome.HTTP_ERROR, 404)
    assert "no-such-script" in record.detail
    assert "expected one of after-done" in record.detail


VLLM_LIKE = """
import json, sys, time, urllib.request
url, script, path, result = sys.argv[1:]
body = json.dumps({"model": script, "stream": True, "max_tokens": 3}).encode()
began = time.monotonic()
with urllib.request.urlopen(urllib.request.Request(url + path, body)) as answer:
    for number, line in enumerate(line for line in answer if line.startswith(b"data:")):
        if number == 0:
            first = time.monotonic() - began
told = {"completed": 1, "failed": 0, "mean_ttft_ms": first * 1e3, "total_output_tokens": 3}
open(result, "w").write(json.dumps(told))
"""


def test_a_tool_that_counts_roles_and_failures_is_found_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What some clients in the field do: the first line is the first token, and every end is a success."""
    tool = tmp_path / "tool.py"
    tool.write_text(VLLM_LIKE)
    command = f"{sys.executable} {tool} {{url}} {{script}} {{path}} {{result}}"
    some = ["role-first", "error-then-done", "http-500"]
    arguments = ["tool", "--command", command, "--path", CHAT, "--tolerance", "0.04", "--scripts", *some]
    assert main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1])["wrong"] == [f"{CHAT}:role-first", f"{CHAT}:error-then-done"]
    assert any("TTFT" in line and "expected" in line for line in lines)
    assert any("a success, although the stream ended with: error inside the stream" in line for line in lines)


def test_a_tool_s_command_needs_its_holes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tool", "--command", "vllm bench serve"]) == 2
    assert "expected {url}, {script}, {result} in it" in capsys.readouterr().err
    assert main(["tool", "--command", "x {url} {script} {result}", "--scripts", "nonsense"]) == 2
    assert "saw script 'nonsense'" in capsys.readouterr().err
    dies = f"{sys.executable} -c 'raise SystemExit(\"no such flag\")' {{url}} {{script}} {{result}}"
    assert main(["tool", "--command", dies, "--scripts", "plain"]) == 2
    assert "no result for any script, and said: no such flag" in capsys.readouterr().err


def test_a_claim_of_tokens_and_pace_is_held_against_the_truth() -> None:
    script = SCRIPTS["several-tokens-per-chunk", COMPLETIONS]
    right = Claim(is_success=True, ttft=0.1, tpot=0.01, tokens=10)
    assert judged_claim(script, right, {}, 0.005).is_right
    for wrong in (
        replace(right, ttft=0.005),
        replace(right, tpot=0.030),
        replace(right, tokens=4),
        replace(right, is_success=False),
    ):
        assert not judged_claim(script, wrong, {}, 0.005).is_right
    assert judged_claim(SCRIPTS["cut-clean", CHAT], Claim(is_success=False), {}, 0.005).is_right


def test_every_payload_holds_its_own_time_and_the_log_holds_the_same(url: str) -> None:
    body = json.dumps({"model": "plain", "stream": True}).encode()
    request = urllib.request.Request(url + COMPLETIONS, body, {"X-Request-Id": "stamped"})
    with urllib.request.urlopen(request) as answer:
        events = [line[6:] for line in answer.read().split(b"\n\n") if line.startswith(b"data: {")]
    entry = truth_log(url)["stamped"]
    stamps = [float(json.loads(event)["truth"]) for event in events]
    assert len(stamps) == 4
    assert stamps == pytest.approx(entry["written"][:4], abs=1e-5)
    assert 0.020 <= stamps[0] - entry["received"] < 1.0
