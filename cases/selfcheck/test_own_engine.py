"""Options of the embedded engine beside the URL of another server, and the other way round: refused, by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main

OWN = {
    "--variant": "as-merged",
    "--spec": "ngram",
    "--k": "2",
    "--regime": "placeholder",
    "--preset": "flat",
    "--layout": "replay",
}
BENCH = OWN | {"--graphs": "off", "--compare": "fixed,as-merged", "--rounds": "2"}
LIVE = OWN | {"--prefix-caching": None}
CASES = [
    (verb, flag, value) for verb, own in (("bench", BENCH), ("live", LIVE)) for flag, value in own.items()
]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is told before anything is asked."""
    assert main(list(arguments)) == 2
    error: str = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    return error


@pytest.mark.parametrize(("verb", "flag", "value"), CASES)
def test_an_option_that_another_server_would_not_hear_of_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, flag: str, value: str | None
) -> None:
    where = ["--base-url", "http://127.0.0.1:9", "--reports", str(tmp_path)]
    where += ["--tokenizer", str(tmp_path)] if verb == "bench" else []
    told = refusal(capsys, verb, *where, flag, *([] if value is None else [value]))
    assert told.startswith(f"{flag}: saw --base-url http://127.0.0.1:9 beside it")
    assert list(tmp_path.iterdir()) == []
    assert "beside it" not in refusal(capsys, verb, *where)


@pytest.mark.parametrize("flag", ["--model", "--api-key-file"])
def test_what_is_of_a_server_of_the_users_is_not_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    told = refusal(capsys, "live", flag, __file__, "--reports", str(tmp_path))
    assert f"{flag}: is of a server of yours" in told
