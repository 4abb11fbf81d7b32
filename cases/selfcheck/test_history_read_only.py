"""A history that cannot be written: whoever only reads it needs no index on disk."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cases.selfcheck.bench_runs import ms, run
from harness.bench.history.history import History
from harness.cli import main


def filled(folder: Path, nights: int = 3) -> Path:
    with History(str(folder)) as history:
        for day in range(nights):
            history.append(dataclasses.replace(run({"tpot.mean_ms": ms(10.0)}, day=day), id=f"n{day}"))
    (folder / "index.sqlite").unlink()
    return folder


@pytest.mark.parametrize("verb", [["history", "list"], ["history", "changes"], ["gate", "--history"]])
def test_a_history_whose_index_cannot_be_written_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    url = filled(tmp_path / "h")
    (url / "index.sqlite").mkdir()
    code = main([*verb, str(url)])
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (code, "error" in line) == (125 if verb[0] == "gate" else 0, False)


def test_an_index_that_is_older_than_its_runs_and_cannot_be_written_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = filled(tmp_path / "h")
    with History(str(url)) as history:
        assert len(history.runs()) == 3
    before = (url / "index.sqlite").read_bytes()
    with History(str(url)) as history:
        history.append(dataclasses.replace(run({"tpot.mean_ms": ms(10.0)}, day=9), id="later"))
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write whatever a mode says
    with History(str(url)) as history:
        assert len(history.runs()) == 4
    assert (url / "index.sqlite").read_bytes() == before


def test_reading_a_run_needs_no_dataset_of_arrow(tmp_path: Path) -> None:
    """Which costs 0.6 s, and threads that an interpreter on its way out has died of."""
    url = filled(tmp_path / "h", 1)
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from harness.bench.history.history import History\n"
            f"with History({str(url)!r}) as h: print(len(h.runs()), 'pyarrow.dataset' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["1", "False"]
