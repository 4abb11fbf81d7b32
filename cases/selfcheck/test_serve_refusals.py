"""What the server refuses: the right status, OpenAI's shape of an error, and a server that goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        (b"\xff{}", "parsing"),
        (b"[" * 100_000, "parsing"),
        (b'{"model": "tiny", "prompt": "\\ud800"}', "Unicode"),
        (b'{"model": "tiny", "prompt": "x", "temperature": NaN}', "temperature"),
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


def test_a_slow_grammar_is_refused_while_others_are_answered(
    peaked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(peaked, limits=Limits(compile_seconds=0.2)) as server:
        monkeypatch.setattr(server.service.grammars, "guide", lambda kind, text: time.sleep(1))
        slow = {"model": MODEL, "prompt": "x", "structured_outputs": {"regex": "a"}}
        answer = server.post("/v1/completions", slow)
        assert answer.status_code == 400
        assert "did not compile within 0.2 s" in answer.json()["error"]["message"]
        assert server.complete("x", max_tokens=1)["finish_reason"]
        server.wait_until_free()
