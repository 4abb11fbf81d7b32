"""The fuzzer finds nothing in the server, and what is planted in it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from serving import serving

import harness.serve.app as app
from harness.serve.limits import Limits
from harness.serve.protocol import CompletionRequest

FUZZ = Path(__file__).parents[1] / "live" / "fuzz.py"


def fuzz(url: str, reports: Path, *switches: str, seconds: int, **more: Any) -> dict[str, Any]:
    """The last line of a run against a server of this process."""
    flags = [each for name, value in more.items() for each in (f"--{name.replace('_', '-')}", str(value))]
    command = [
        sys.executable,
        str(FUZZ),
        "--base-url",
        url,
        "--reports",
        str(reports),
        "--seconds",
        str(seconds),
    ]
    done = subprocess.run([*command, *switches, *flags], capture_output=True, text=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == told["exit"], done.stderr
    return told


def test_a_quarter_of_a_minute_finds_nothing(peaked: Path, tmp_path: Path) -> None:
    with serving(peaked, limits=Limits(compile_seconds=1), max_num_seqs=8) as server:
        told = fuzz(server.url, tmp_path, seconds=15)
        assert told["found"] == {}
        assert told["exit"] == 0
        for source in ("drawn positive", "drawn negative", "hostile", "wire"):
            assert sum(told["statuses"][source].values()) > 5
        server.wait_until_free()


# Planted faults strike a request for four tokens, which is what hostile requests ask for; the plain request between
# turns asks for twelve.


def _raises(honest: Any, body: CompletionRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A handler that trips over something: 500."""
    assert body.max_tokens != 4, "planted"
    return honest(body)


def _hangs(honest: Any, body: CompletionRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A handler that keeps everybody waiting."""
    if body.max_tokens == 4:
        time.sleep(5)
    return honest(body)


def _forgets(honest: Any, body: CompletionRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A request that leaves something behind: later ones get the answer to another prompt."""
    if body.max_tokens == 4:
        monkeypatch.setattr(app, "only_prompt", lambda body: "another prompt")
    return honest(body)


@pytest.mark.parametrize(
    ("plant", "says"), [(_raises, "500"), (_hangs, "no answer in 3 s"), (_forgets, "at first")]
)
def test_a_planted_fault_is_found(
    peaked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Any, says: str
) -> None:
    with serving(peaked, limits=Limits(compile_seconds=1), max_num_seqs=8) as server:
        monkeypatch.setattr(app, "only_prompt", partial(plant, app.only_prompt, monkeypatch=monkeypatch))
        told = fuzz(server.url, tmp_path, "--first", seconds=60, case_seconds=3)
        assert told["exit"] == 1
        lines = (Path(told["reports"]) / "found.jsonl").read_text().splitlines()
        assert {json.loads(line)["kind"] for line in lines} == set(told["found"])
        assert any(says in json.loads(line)["detail"] for line in lines), lines


def test_without_a_server_the_fuzzer_says_so(tmp_path: Path) -> None:
    told = fuzz("http://127.0.0.1:9", tmp_path, seconds=1)
    assert told["exit"] == 2
    assert "http://127.0.0.1:9/v1/models" in told["error"]
