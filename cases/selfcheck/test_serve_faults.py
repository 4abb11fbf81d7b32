"""Broken engines served on purpose, an engine that dies, and the end of a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from serving import LONG, MODEL, children_of, serving

from harness.cli import main


@pytest.mark.parametrize("regime", ["trim", "placeholder"])
def test_a_served_fault_shows_outside_and_the_correct_engine_does_not(peaked: Path, regime: str) -> None:
    """A fault that keeps rejected drafts in the state: an answer, fed back, has other log-probabilities."""
    drift = {}
    for policy in ("fixed", "only-the-last-state"):
        with serving(peaked, policy=policy, regime=regime, max_num_seqs=4) as server:
            told = server.complete("The river", max_tokens=48, logprobs=0, **LONG)
            scored = server.complete(
                told["prompt_token_ids"] + told["token_ids"], max_tokens=0, echo=True, logprobs=0
            )
            pairs = zip(
                scored["logprobs"]["token_logprobs"][-48:], told["logprobs"]["token_logprobs"], strict=True
            )
            drift[policy] = max(abs(a - b) for a, b in pairs)
            server.wait_until_free()
    assert drift["fixed"] < 1e-3
    assert drift["only-the-last-state"] > 0.1


def test_prompt_lookup_and_no_speculation_are_served_too(peaked: Path) -> None:
    answers = []
    for spec in ("ngram", "off", "mtp"):
        with serving(peaked, spec=spec, prefix_caching=True, max_num_seqs=4) as server:
            answers.append(
                [server.complete("The river " * 30, max_tokens=24, **LONG)["token_ids"] for _ in range(2)]
            )
            whole = server.complete("The river " * 30, max_tokens=0, prompt_logprobs=0)
            assert len(whole["prompt_logprobs"]) == len(whole["prompt_token_ids"])
            assert None not in whole["prompt_logprobs"][1:]
            metrics = server.http.get("/metrics").text
            assert 'vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 0.0' not in metrics
    assert answers == [[answers[0][0]] * 2] * 3


def test_a_dead_engine_is_told_to_all_and_the_server_stays(peaked: Path) -> None:
    guided = {
        "model": MODEL,
        "prompt": "x",
        "max_tokens": 60,
        "structured_outputs": {"regex": "[0-9]{3}-[a-z]{20}-[0-9]{20}"},
    }
    with serving(peaked, policy="placeholder-embedded", regime="placeholder", max_num_seqs=4) as server:
        bystander = server.client.completions.create(
            model=MODEL, prompt="x", max_tokens=900, extra_body=LONG, stream=True
        )
        next(iter(bystander))
        answer = server.post("/v1/completions", guided)
        assert answer.status_code == 500
        assert "EngineDeadError: the engine died of" in answer.json()["error"]["message"]
        with pytest.raises(openai.APIError, match="EngineDeadError"):
            list(bystander)
        assert server.post("/v1/completions", {"model": MODEL, "prompt": "x"}).status_code == 500
        health = server.http.get("/health")
        assert health.status_code == 503
        assert "EngineDeadError" in health.text
        assert server.http.get("/v1/models").status_code == 200
        assert not server.service.loop.open


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command itself, and where it listens."""
    command = [sys.executable, "-m", "harness.cli", "serve", "--port", "0", *arguments]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, env=environment, **pipes) as child:
        try:
            assert child.stderr is not None
            line = child.stderr.readline()
            assert " on http://" in line, line + child.stderr.read()
            yield child, line.split(" on ")[1].strip()
        finally:
            child.kill()


def test_sigterm_lets_what_runs_come_to_its_end(peaked: Path) -> None:
    arguments = ("--model", str(peaked), "--served-model-name", MODEL, "--until-eof")
    with process(*arguments) as (child, url):
        assert_grammars_are_tried_in_a_fork(child.pid, url)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(
            model=MODEL,
            prompt="The",
            max_tokens=100,
            extra_body=LONG,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [next(iter(stream))]
        child.send_signal(signal.SIGTERM)
        chunks += list(stream)
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 100
        assert child.wait(timeout=30) == 0  # while its standard input is still open
        out, _ = child.communicate()
        assert json.loads(out.splitlines()[-1]) == {
            "verb": "serve", "model": MODEL, "variant": "fixed", "died": None, "exit": 0,
        }  # fmt: skip
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def assert_grammars_are_tried_in_a_fork(server: int, url: str) -> None:
    """A Python that imports everything once more would have another command line."""
    guided = {"model": MODEL, "prompt": "x", "structured_outputs": {"regex": "a{3}"}}
    answer = httpx.post(f"{url}/v1/completions", json=guided, timeout=30)
    assert answer.json()["choices"][0]["text"] == "aaa"
    words = {Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children_of(server)}
    assert words == {Path(f"/proc/{server}/cmdline").read_bytes()}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--fault", "no-such-fault"], "no-such-fault"),
        (["--max-model-len", "100000"], "positions"),
        (["--host", "203.0.113.1"], "cannot listen"),
        (["--port", "99999"], "cannot listen"),
        (["--k", "0"], "at least 1"),
    ],
)
def test_the_verb_says_what_it_cannot_serve(
    peaked: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", "--model", str(peaked), *arguments]) == 2
    out, err = capsys.readouterr()
    assert says in err
    assert json.loads(out.splitlines()[-1])["exit"] == 2
