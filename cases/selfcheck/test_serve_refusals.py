"""What the server refuses: the right status, OpenAI's shape of an error, and a server that goes on."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from serving import LONG, MODEL, Server, serving

from harness.serve.limits import Limits

TOOLS = [{"type": "function", "function": {"name": "store", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def server(peaked: Path) -> Iterator[Server]:
    with serving(peaked) as running:
        yield running
        running.wait_until_free()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "no JSON"),
        (b"\xff{}", "no UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"model": "tiny", "prompt": "x", "max_tokens": 1, "max_tokens": 2}', "'max_tokens' stands twice"),
        (b'{"model": "tiny", "prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"model": "tiny", "prompt": "\\ud800"}', "Unicode"),
        (b'{"model": "tiny", "prompt": "x", "temperature": NaN}', "NaN"),
    ],
)
def test_malformed_bodies_are_refused(server: Server, body: bytes, says: str) -> None:
    answer = server.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert says in error["message"]
    assert error["type"] == "BadRequestError"
    assert error["code"] == 400


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": 5}, "prompt"),
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "empty"),
        ({"prompt": ["a", "b"]}, "one prompt"),
        ({"prompt": [5000]}, "vocabulary"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "x " * 2000}, "length"),
        ({"max_tokens": 5000}, "length"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"n": 2}, "n:"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": ""}, "stop"),
        ({"seed": 2**64}, "seed"),
        ({"surprise": 1}, "surprise"),
        ({"structured_outputs": {}}, "exactly one"),
        ({"structured_outputs": {"regex": "("}}, "does not compile"),
        ({"structured_outputs": {"json": {"type": "nonsense"}}}, "does not compile"),
        ({"structured_outputs": {"json": {"const": "x" * 70_000}}}, "65536"),
        ({"structured_outputs": {"json": {"$ref": "http://127.0.0.1:1/schema"}}}, "own parts"),
        ({"structured_outputs": {"json": '{"items": {"$ref": "other.json"}}'}}, "own parts"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "combined"),
        ({"response_format": {"type": "json_schema"}}, "needs json_schema"),
    ],
)
def test_what_cannot_be_done_is_refused(server: Server, body: dict[str, Any], says: str) -> None:
    answer = server.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1, **body})
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "role"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"tool_choice": "required"}, "needs tools"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"$ref": "other.json"}}}
                ]
            },
            "own parts",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "lose"}}},
            "none of the tools",
        ),
    ],
)
def test_chats_that_cannot_be_are_refused(server: Server, body: dict[str, Any], says: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    answer = server.post("/v1/chat/completions", {"model": MODEL, "messages": messages, **body})
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]


def test_unknown_models_and_paths_are_not_found(server: Server) -> None:
    with pytest.raises(openai.NotFoundError, match="'other'"):
        server.client.completions.create(model="other", prompt="x")
    assert server.http.get("/v1/nothing").json()["error"]["code"] == 404
    assert server.http.get("/v1/completions").json()["error"]["code"] == 405


def test_key_size_and_number_are_limited(peaked: Path) -> None:
    limits = Limits(max_open=1, max_body=2000)
    with serving(peaked, api_key="secret", max_num_seqs=1, limits=limits) as server:
        with pytest.raises(openai.AuthenticationError):
            server.client.models.list()
        assert server.post("/tokenize", {"prompt": "x"}).status_code == 401
        assert server.http.get("/health").status_code == 200
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)
        with pytest.raises(openai.APIStatusError, match="2000 bytes") as large:
            client.completions.create(model=MODEL, prompt="x" * 3000)
        assert large.value.status_code == 413
        stream = client.completions.create(
            model=MODEL, prompt="x", max_tokens=1000, extra_body=LONG, stream=True
        )
        next(iter(stream))
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model=MODEL, prompt="x")
        stream.close()
        server.wait_until_free()
        assert client.completions.create(model=MODEL, prompt="x", max_tokens=1).choices


ENDLESS = 'root ::= s\ns ::= s s s s s s s | s s s s | s s s | [a-zA-Z ]* | ""'


def test_an_endless_grammar_is_refused_while_others_are_answered(peaked: Path) -> None:
    """Its first masks take minutes inside xgrammar, where nothing interrupts them."""
    with serving(peaked, limits=Limits(compile_seconds=0.3), max_num_seqs=4) as server:
        server.complete("x", max_tokens=1, structured_outputs={"regex": "a+"})  # the child is there
        endless = {"model": MODEL, "prompt": "x", "structured_outputs": {"grammar": ENDLESS}}
        with ThreadPoolExecutor() as others:
            asked = [others.submit(server.post, "/v1/completions", endless) for _ in range(3)]
            assert server.complete("x", max_tokens=1)["finish_reason"]
            assert server.complete("x", max_tokens=5, structured_outputs={"regex": "b+"})["text"]
            for answer in [one.result() for one in asked]:
                assert answer.status_code == 400
                assert "did not compile within 0.3 s" in answer.json()["error"]["message"]
        server.wait_until_free()


def test_a_server_ends_while_a_grammar_does_not(peaked: Path) -> None:
    with serving(peaked, max_num_seqs=4) as server:
        endless = {"model": MODEL, "prompt": "x", "structured_outputs": {"grammar": ENDLESS}}
        server.complete("x", max_tokens=1, structured_outputs={"regex": "a+"})
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=endless, timeout=0.3)
        start = time.monotonic()
    assert time.monotonic() - start < 5  # and not the 10 s that the grammar might have taken


@pytest.mark.parametrize("regex", ["(((([a-z ]+)+)+)+)+", "((([a-z]*)*)*)*"])
def test_a_catastrophic_regex_is_refused(server: Server, regex: str) -> None:
    answer = server.post(
        "/v1/completions", {"model": MODEL, "prompt": "x", "structured_outputs": {"regex": regex}}
    )
    assert answer.status_code == 400
    assert "too ambiguous" in answer.json()["error"]["message"]


def test_a_grammar_that_grows_dear_ends_its_answer_and_no_other(peaked: Path) -> None:
    dear = {"grammar": "root ::= s\ns ::= s s | [a-z]"}
    with serving(peaked, limits=Limits(guide_seconds=0.02), max_num_seqs=4) as server:
        asked = {"model": MODEL, "prompt": "x", "max_tokens": 900, "structured_outputs": dear}
        answer = server.post("/v1/completions", asked)
        assert answer.status_code == 400, answer.text[:200]
        assert "more than 0.02 s" in answer.json()["error"]["message"]
        stream = server.client.completions.create(
            model=MODEL, prompt="x", max_tokens=900, stream=True, extra_body={"structured_outputs": dear}
        )
        with pytest.raises(openai.APIError, match="too ambiguous"):
            list(stream)
        server.wait_until_free()
        assert server.complete("x", max_tokens=3, **LONG)["finish_reason"] == "length"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", ""]
)
def test_a_body_of_another_type_is_refused(server: Server, kind: str) -> None:
    answer = server.http.post("/v1/completions", content=b'{"model": "tiny"}', headers={"content-type": kind})
    assert answer.status_code == 415
    assert answer.json()["error"]["type"] == "UnsupportedMediaTypeError"


def test_a_body_that_does_not_come_is_not_waited_for(peaked: Path) -> None:
    with serving(peaked, limits=Limits(body_seconds=0.3), max_num_seqs=4) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as slow:
            slow.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n{"
            )
            answer = b"".join(iter(lambda: slow.recv(4096), b""))  # and hangs up
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert server.complete("x", max_tokens=1)["finish_reason"]


@pytest.mark.parametrize("flood", [["X-Long: " + "y" * 1_000_000], [f"X-{i}: {i}" for i in range(20_000)]])
def test_a_flood_of_headers_is_refused(server: Server, flood: list[str]) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        with suppress(ConnectionError):  # it hangs up while we still send
            client.sendall("\r\n".join(["GET /health HTTP/1.1", "Host: x", *flood, "", ""]).encode())
        with suppress(ConnectionError):
            assert client.recv(4096)[:13] in (b"HTTP/1.1 400 ", b"")
    assert server.http.get("/health").status_code == 200


def test_the_document_knows_every_status(server: Server) -> None:
    document = server.http.get("/openapi.json").json()
    chat = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"200", "400", "401", "404", "408", "413", "415", "429", "500"} == set(chat)
    assert "HTTPValidationError" not in document["components"]["schemas"]
