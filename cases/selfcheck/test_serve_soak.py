"""The crowd of ``cases/live/soak.py``: it sees what is wrong, and whoever is killed, no result is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serving import children_of, serving

from harness.serve.reading import Reading

SOAK = Path(__file__).parents[1] / "live" / "soak.py"


def command(*flags: Any) -> list[str]:
    return [sys.executable, str(SOAK), *map(str, flags)]


def soak(*flags: Any) -> dict[str, Any]:
    """The last line of a whole run."""
    done = subprocess.run(command(*flags), capture_output=True, text=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == told["exit"], done.stderr
    return told


def test_a_few_seconds_lose_and_mix_nothing(peaked: Path, tmp_path: Path) -> None:
    flags = ("--seconds", 4, "--streams", 80, "--sample", 15, "--reports", tmp_path)
    told = soak(*flags, "--serve", f"--model {peaked}")
    assert told["faults"] == 0, (Path(told["reports"]) / "found.jsonl").read_text()
    assert told["solo"]["compared"] == 15
    assert told["ended"]["aborted"] > 10
    assert set(told["ended"]) == {"aborted", "whole"}


def test_a_crowd_whose_tokens_are_mixed_is_seen(
    peaked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: one piece in forty has the tokens of the piece before it, whoever's that was."""
    honest, seen = Reading._answered, []

    def mixed(self: Reading, delta: Any) -> Any:
        piece = honest(self, delta)
        seen.append(piece)
        if len(seen) % 40 == 0 and len(seen[-2].tokens) == len(piece.tokens):
            object.__setattr__(piece, "tokens", seen[-2].tokens)
        return piece

    monkeypatch.setattr(Reading, "_answered", mixed)
    with serving(peaked, max_num_seqs=32) as server:
        flags = ("--base-url", server.url, "--streams", 40, "--seconds", 4, "--sample", 20)
        told = soak(*flags, "--reports", tmp_path)
    assert told["exit"] == 1
    found = (Path(told["reports"]) / "found.jsonl").read_text()
    assert "its tokens say" in found


@contextmanager
def running(peaked: Path, reports: Path) -> Iterator[tuple[subprocess.Popen[str], Path, int]]:
    """A run that lasts, once its first 30 answers are there: the client, its folder, and its server's process."""
    flags = ("--seconds", 60, "--streams", 40, "--reports", reports, "--serve", f"--model {peaked}")
    with subprocess.Popen(
        command(*flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        pid = 0
        try:
            until = time.monotonic() + 90
            while len(answers(reports)) < 30:
                assert time.monotonic() < until
                assert client.poll() is None
                time.sleep(0.05)
            folder = next(reports.iterdir())
            pid = json.loads((folder / "run.json").read_text())["server"]["pid"]
            yield client, folder, pid
        finally:
            client.kill()
            if pid and Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)


def answers(reports: Path) -> list[dict[str, Any]]:
    """Every result on disk; each line but the last must be whole, and the last is whole when a newline ends it."""
    text = "".join(file.read_text() for file in reports.glob("*/streams.jsonl"))
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    return [line for line in lines if line["event"] == "ended"]


def test_a_killed_client_leaves_every_result(peaked: Path, tmp_path: Path) -> None:
    with running(peaked, tmp_path) as (client, folder, pid):
        client.kill()
        client.wait()
        text = (folder / "streams.jsonl").read_text()
        assert text.endswith("\n")
        lines = [json.loads(line) for line in text.splitlines()]
        begun = {line["index"] for line in lines if line["event"] == "begun"}
        ended = [line for line in lines if line["event"] == "ended"]
        assert len(ended) >= 30
        assert {line["index"] for line in ended} <= begun
        assert all(line["tokens"] for line in ended if line["ended"] == "whole")
        assert 0 < len(begun) - len(ended) <= 40  # those in flight are known by name
        for _ in range(100):  # a server that was started for the run ends with it
            if not Path(f"/proc/{pid}").exists():
                break
            time.sleep(0.1)
        assert not Path(f"/proc/{pid}").exists()


def test_a_killed_server_ends_the_run_with_the_names_of_what_was_under_way(
    peaked: Path, tmp_path: Path
) -> None:
    with running(peaked, tmp_path) as (client, folder, pid):
        grammars = [Path(f"/proc/{child}/cmdline") for child in children_of(pid)]
        assert grammars
        os.kill(pid, signal.SIGKILL)
        out, err = client.communicate(timeout=60)
        assert not any(path.exists() and path.read_bytes() for path in grammars)  # zombies have no words
        told = json.loads(out.splitlines()[-1])
        assert client.returncode == told["exit"] == 1
        assert 0 < len(told["lost"]) <= 40
        assert "server gone" in err
        assert str(told["lost"][0]) in err
        lines = [json.loads(line) for line in (folder / "streams.jsonl").read_text().splitlines()]
        assert {line["index"] for line in lines if line["event"] == "lost"} == set(told["lost"])
        assert sum(told["ended"].values()) == len(answers(tmp_path)) >= 30
        assert json.loads((folder / "run.json").read_text())["exit"] == 1
