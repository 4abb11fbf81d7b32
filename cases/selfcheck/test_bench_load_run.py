"""Whole runs: on disk as they come, killed and resumed, in several processes, over TLS and through a proxy."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from harness.bench.conformance.process import scripted_server
from harness.bench.load.arrivals import constant
from harness.bench.load.call import Call, completion
from harness.bench.load.clock import Clock
from harness.bench.load.run import LoadPlan, LoadResult, run_load, workers_needed
from harness.bench.load.shape import Closed, Open
from harness.bench.load.store import Part, RecordFile, read_records
from harness.bench.load.transport import Endpoint, choose, open_transport
from harness.bench.record import Chunk, Kind, Outcome, RequestRecord
from harness.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with scripted_server() as told:
        yield told


def calls(n: int, script: str = "plain") -> tuple[Call, ...]:
    return tuple(completion(f"r{i}", script, "x y z", 3) for i in range(n))


def plan_of(url: str, n: int = 20, **more: Any) -> LoadPlan:
    told: dict[str, Any] = {"endpoint": Endpoint(url=url), "calls": calls(n), "shape": Closed(concurrency=5)}
    return LoadPlan(**(told | more))


def measured(result: LoadResult) -> list[RequestRecord]:
    return [each for each in result.records if not each.warm_up]


def test_records_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    record = RequestRecord(
        id="a",
        scheduled=0.1,
        sent=0.2,
        closed=1.5,
        outcome=Outcome.USAGE_DIFFERS,
        chunks=(
            Chunk(at=0.3, kind=Kind.ROLE),
            Chunk(at=0.4123456789, kind=Kind.CONTENT, tokens=3, coalesced=True),
        ),
        detail='says "no"\n',
        status=200,
        finish_reason="stop",
        prompt_tokens=3,
        cached_tokens=1,
        completion_tokens=4,
        requested_tokens=9,
        guide="note",
        text="\u2028<script>\x1b[31m",
        token_ids=(1, 2),
        drafted=(4, 4),
        accepted=(1, 0),
        warm_up=True,
        extra={"connect_s": "0.1"},
    )
    with RecordFile(tmp_path / "records-0.jsonl") as file:
        file.begin(Part(plan="p", begin=0.0, unix=1.0))
        file.keep(record)
    kept = read_records(tmp_path)
    assert kept.records == (record,)
    assert kept.done == frozenset()
    assert kept.ended == 1.5


def test_a_run_leaves_every_record_with_its_schedule_and_a_certificate(url: str, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    warm = (completion("w0", "plain", "z", 3), completion("w1", "plain", "y", 3))
    shape = Open(times=constant(50, 40))
    plan = plan_of(url, 40, shape=shape, warm_up=warm)
    result = run_load(plan, tmp_path, progress=lambda done, of: told.append((done, of)))
    records = measured(result)
    assert [each.id for each in result.records if each.warm_up] == ["w0", "w1"]
    assert sorted(each.id for each in records) == sorted(call.id for call in plan.calls)
    assert {each.outcome for each in records} == {Outcome.COMPLETE}
    first = min(each.scheduled for each in records)
    moments = {each.id: each.scheduled - first for each in records}
    assert [moments[call.id] for call in plan.calls] == pytest.approx(list(shape.times)), (
        "the schedule that is stored is the one that was planned"
    )
    assert all(each.sent >= each.scheduled for each in records)
    assert result.health.offered_rate == pytest.approx(50)
    assert told
    assert told[-1][1] == 40
    assert read_records(tmp_path).records == result.records
    assert (result.transport, result.health.processes, result.health.parts) == ("raw", 1, 1)


def test_several_processes_share_one_clock_and_lose_nothing(url: str, tmp_path: Path) -> None:
    shape = Open(times=constant(40, 30))
    plan = plan_of(url, 30, shape=shape, workers=2, warm_up=calls(2)[:2])
    plan = replace(plan, warm_up=tuple(replace(call, id=f"w-{call.id}") for call in plan.warm_up))
    result = run_load(plan, tmp_path)
    records = measured(result)
    assert {each.id for each in records} == {call.id for call in plan.calls}
    first = min(each.scheduled for each in records)
    moments = {each.id: each.scheduled - first for each in records}
    assert [moments[call.id] for call in plan.calls] == pytest.approx(list(shape.times))
    assert max(each.closed for each in result.records if each.warm_up) < first
    assert len(list(tmp_path.glob("records-*.jsonl"))) == 2
    assert result.health.processes == 2
    assert result.health.loop_lag_p99 is not None
    assert result.health.dispatch_lag_max is not None


KILLED = """
import sys
from pathlib import Path
from harness.bench.load.call import completion
from harness.bench.load.run import LoadPlan, run_load
from harness.bench.load.shape import Closed, Open
from harness.bench.load.transport import Endpoint
url, folder, workers, n = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
calls = tuple(completion(f"r{i}", "plain", "x y z", 3) for i in range(n))
run_load(LoadPlan(endpoint=Endpoint(url=url), calls=calls, shape=Closed(concurrency=4), workers=workers), folder)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_what_kill_9_leaves_is_readable_and_the_rest_is_sent(url: str, tmp_path: Path, workers: int) -> None:
    n = 100
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, url, str(tmp_path), str(workers), str(n)], cwd=ROOT
    )
    deadline = time.monotonic() + 30
    while len(read_records(tmp_path).done) < 12:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(0.3)  # its workers see the end of their input
    before = read_records(tmp_path)
    time.sleep(0.2)
    assert read_records(tmp_path).done == before.done, "a worker outlived its parent and went on asking"
    assert 12 <= len(before.done) < n
    plan = plan_of(url, n, shape=Closed(concurrency=4), workers=workers)
    with pytest.raises(UsageError, match="--resume"):
        run_load(plan, tmp_path)
    with pytest.raises(UsageError, match="arguments that the run began with"):
        run_load(replace(plan, calls=calls(n, "one-token")), tmp_path, resume=True)
    result = run_load(replace(plan, shape=Closed(concurrency=4)), tmp_path, resume=True)
    ids = [each.id for each in measured(result)]
    assert sorted(ids) == sorted(call.id for call in plan.calls), "each once"
    assert all(each in result.records for each in before.records), "what was measured stays as it was"
    later = [each for each in result.records if each.id not in before.done]
    assert min(each.sent for each in later) >= before.ended
    assert result.health.parts == 2
    again = run_load(plan, tmp_path, resume=True)
    assert (again.records, again.health) == (result.records, result.health), "the certificate is on disk too"


def test_a_torn_line_is_left_out_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "records-0.jsonl"
    record = RequestRecord(id="a", scheduled=0, sent=0, closed=1, outcome=Outcome.COMPLETE)
    part = Part(plan="p", begin=0.0, unix=1.0)
    with RecordFile(path) as file:
        file.begin(part)
        file.keep(record)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[1][:40])
    assert read_records(tmp_path).records == (record,)
    with RecordFile(path) as file:
        file.begin(Part(plan="p", begin=1.0, unix=2.0))
        file.keep(replace(record, id="b"))
    assert [each.id for each in read_records(tmp_path).records] == ["a", "b"]
    path.write_bytes(whole + b'{"line":"request","id":1}\n' + whole.splitlines(keepends=True)[1])
    with pytest.raises(UsageError, match="line 3"):
        read_records(tmp_path)


def sent(url: str, transport: str, n: int = 1, script: str = "plain", **endpoint: Any) -> list[RequestRecord]:
    async def run() -> list[RequestRecord]:
        clock = Clock()
        told = open_transport(Endpoint(url=url, **endpoint), clock, transport)
        records = [await told.send(call, clock.now()) for call in calls(n, script)]
        await told.close()
        return records

    return uvloop.run(run())


@pytest.mark.parametrize("transport", ["raw", "aiohttp", "openai"])
def test_nobody_there_is_no_connection(transport: str) -> None:
    (record,) = sent("http://127.0.0.1:9", transport)
    assert record.outcome is Outcome.NO_CONNECTION


@pytest.mark.parametrize("transport", ["raw", "aiohttp", "openai"])
def test_a_stream_that_never_ends_is_a_timeout_however_busy_it_is(url: str, transport: str) -> None:
    (record,) = sent(url, transport, script="reasoning-first", total=0.25)
    assert record.outcome in (Outcome.TIMEOUT, Outcome.HTTP_ERROR)
    (record,) = sent(url, transport, script="several-tokens-per-chunk", total=0.12)
    assert record.outcome is Outcome.TIMEOUT
    assert record.closed - record.sent < 1.0


def test_connections_are_used_again(url: str) -> None:
    records = sent(url, "raw", 3)
    assert ["connect_s" in each.extra for each in records] == [True, False, False]


def test_a_connection_that_the_server_has_dropped_is_replaced() -> None:
    """The server answers once per connection and closes it without saying so."""
    told = b'{"choices":[{"text":"a","finish_reason":"stop"}],"usage":{"completion_tokens":1}}'
    body = b"data: %s\n\ndata: [DONE]\n\n" % told
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    asked = []

    async def run() -> list[RequestRecord]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(2):
                if not await reader.read(65536):
                    return
                asked.append(1)
                if len(asked) in (2, 4):  # the second request on a connection: gone
                    writer.transport.abort()
                    return
                writer.write(head + body)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        clock = Clock()
        told = open_transport(
            Endpoint(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), clock, "raw"
        )
        records = [await told.send(call, clock.now()) for call in calls(2)]
        await told.close()
        server.close()
        return records

    records = uvloop.run(run())
    assert [each.outcome for each in records] == [Outcome.COMPLETE] * 2
    assert len(asked) == 3


ANSWER = b'data: {"choices":[{"text":"a","finish_reason":"stop"}],"usage":{"completion_tokens":1}}\n\ndata: [DONE]\n\n'
SSE = b"Content-Type: text/event-stream\r\n"
SIZED = b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n" % (SSE, len(ANSWER))


@pytest.mark.parametrize("transport", ["raw", "aiohttp"])
@pytest.mark.parametrize(
    ("answer", "outcome", "status"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED + b"\r\n" + ANSWER, Outcome.COMPLETE, 200),
        (b"HTTP/1.0 200 OK\r\n" + SSE + b"\r\n" + ANSWER, Outcome.COMPLETE, 200),
        (SIZED + b"Connection: close\r\n\r\n" + ANSWER, Outcome.COMPLETE, 200),
        (SIZED + b"\r\n" + ANSWER[:-20], Outcome.CUT, 200),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Outcome.HTTP_ERROR, 204),
        (b"HTTP/1.1 307 X\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n", Outcome.HTTP_ERROR, 307),
        (b"SSH-2.0-OpenSSH\r\n\r\n", Outcome.CUT, None),
    ],
    ids=["continue", "http-1.0", "close", "short", "no-content", "redirect", "no-http"],
)
def test_whatever_http_a_server_speaks_each_request_gets_its_verdict(
    transport: str, answer: bytes, outcome: Outcome, status: int | None
) -> None:
    async def run() -> list[RequestRecord]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(65536)
            writer.write(answer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        there = Endpoint(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", silence=5.0)
        told = open_transport(there, Clock(), transport)
        records = [await told.send(call, 0.0) for call in calls(2)]
        await told.close()
        server.close()
        return records

    assert [(each.outcome, each.status) for each in uvloop.run(run())] == [(outcome, status)] * 2


def test_the_transport_follows_from_the_url_and_says_why() -> None:
    assert choose(Endpoint(url="http://h:1/v1")) == ("raw", "plain HTTP: the cheapest client")
    assert choose(Endpoint(url="https://h")) == ("aiohttp", "TLS")
    assert choose(Endpoint(url="http://h", proxy="http://p:1")) == ("aiohttp", "a proxy is set")
    assert Endpoint(url="http://h:1/v1/").root == "http://h:1"
    for endpoint, name, said in (
        (Endpoint(url="h:1"), None, "http://HOST:PORT"),
        (Endpoint(url="https://h"), "raw", "--transport aiohttp"),
        (Endpoint(url="http://h"), "curl", "one of raw, aiohttp, openai"),
    ):
        with pytest.raises(UsageError) as error:
            choose(endpoint, name)
        assert said in str(error.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_aiohttp_speaks_tls_with_a_certificate_of_its_own_and_trusts_no_other(
    url: str, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def run() -> list[RequestRecord]:
        server = await asyncio.start_server(lambda r, w: _relay(r, w, url), "127.0.0.1", 0, ssl=context)
        there = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        clock, records = Clock(), []
        for ca_file in (str(certificate), None):
            told = open_transport(Endpoint(url=there, ca_file=ca_file), clock)
            records.append(await told.send(calls(1)[0], clock.now()))
            await told.close()
        server.close()
        return records

    trusted, strange = asyncio.run(run())
    assert (trusted.outcome, trusted.text) == (Outcome.COMPLETE, "abc")
    assert strange.outcome is Outcome.NO_CONNECTION


def test_aiohttp_goes_through_a_proxy(url: str) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _relay(reader, writer, url, asked)

    async def run() -> RequestRecord:
        server = await asyncio.start_server(proxy, "127.0.0.1", 0)
        via = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        told = open_transport(Endpoint(url=url, proxy=via), Clock())
        record = await told.send(calls(1)[0], 0.0)
        await told.close()
        server.close()
        return record

    assert asyncio.run(run()).outcome is Outcome.COMPLETE
    assert asked[0].startswith(b"POST http://127.0.0.1:")


async def _relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str, asked: list[bytes] | None = None
) -> None:
    """Bytes to the scripted server and back; an absolute URL becomes a path."""
    there, back = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))

    async def copy(source: asyncio.StreamReader, goal: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if asked is not None and goal is back:
                asked.append(data)
                data = data.replace(b"POST " + url.encode(), b"POST ", 1)
            goal.write(data)
        goal.close()

    try:
        await asyncio.gather(copy(reader, back), copy(there, writer))
    except OSError:
        writer.close()


def test_a_plan_that_cannot_be_is_refused(url: str) -> None:
    for more, said in (
        ({"calls": ()}, "0 calls"),
        ({"calls": calls(2) + calls(1)}, "3 calls with 2 ids"),
        ({"shape": Open(times=(0.0,))}, "1 arrivals for 20 calls"),
    ):
        with pytest.raises(UsageError, match=said):
            plan_of(url, **more)


def test_workers_follow_from_the_load() -> None:
    assert workers_needed(100) == 1
    assert workers_needed(30_000) == 1
    assert workers_needed(30_001) == 2
    assert workers_needed(100_000) == 4


def test_the_load_server_s_truth_and_our_stamps_agree() -> None:
    """The comparison of clients, small: the figures are the client's own lateness and cost."""
    command = [sys.executable, "cases/bench/load_cost.py", "--clients", "raw", "--streams", "10"]
    command += ["--seconds", "4", "--rounds", "1", "--cores", "0", str(max(os.sched_getaffinity(0)))]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "| ours, `raw` |" in answer.stdout, answer.stderr
    row = json.loads(answer.stdout.splitlines()[-1])["table"]["raw"]
    assert row["kernel_stamped"]
    assert row["failed"] == 0
    assert 1 < row["cpu_us_per_chunk"] < 500
    assert 0 < row["lag_p50_ms"] < 1000
