"""When a night was: one night for all cells of a run, one moment on machines of any zone, nights in any order."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cases.selfcheck.benching import said, shifted
from harness.bench.history.results import read_all
from harness.bench.metrics.summary import summarise
from harness.bench.result import Setting, result, write_result
from harness.cli import main

FIRST = datetime(2026, 3, 1, 23, 58, tzinfo=UTC)


def night(
    folder: Path, *, date: datetime = FIRST, cell: str = "free-mtp", tpot: float = 10.0, **ours: Any
) -> Path:
    """A run directory with one more cell."""
    records = [shifted(said([50 + tpot * at for at in range(9)], id=f"r{n}"), n * 0.01) for n in range(12)]
    extra = {"cell": cell, "fingerprint": {"data": cell}, "health": {"client_bound": False, "because": []}}
    setting = Setting(model_id="tiny", date=date)
    folder.mkdir(exist_ok=True, parents=True)
    write_result(
        result(setting, records, summarise(records), extra=extra | {"commit": "a" * 40} | ours),
        folder / f"result-{cell}.json",
    )
    return folder


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The JSON line."""
    main([str(one) for one in arguments])
    line: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return line


@pytest.fixture
def zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sequence[str]]:
    """Puts this process into another zone; the old one is back behind the test."""
    yield ("UTC", "Asia/Tokyo")
    monkeypatch.undo()
    time.tzset()


def test_cells_of_a_run_over_midnight_are_of_one_night(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = night(tmp_path / "run", time=FIRST.isoformat())
    night(run, cell="guided-mtp", date=FIRST + timedelta(minutes=4), time=FIRST.isoformat())
    told(capsys, "history", "add", tmp_path / "h", run)
    assert len(told(capsys, "gate", "--history", tmp_path / "h")["cells"]) == 2


def test_a_result_is_one_run_in_every_zone(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    zones: Sequence[str],
) -> None:
    says = night(tmp_path / "says", time="2026-03-01T23:58:00+00:00")
    silent = night(tmp_path / "silent", tpot=11)  # of an earlier version
    for zone in zones:
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert read_all([says])["free-mtp"][0].run.time == FIRST
        for run in (says, silent):
            assert told(capsys, "history", "add", tmp_path / "h", run)["exit"] == 0
        assert len(told(capsys, "history", "list", tmp_path / "h")["runs"]) == 2


@pytest.mark.parametrize("time", ["yesterday", "2026-03-01T23:58:00", 7])
def test_a_time_that_is_none_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], time: object
) -> None:
    line = told(capsys, "history", "add", tmp_path / "h", night(tmp_path / "run", time=time))
    assert (line["exit"], "expected a time with its zone" in line["error"]) == (2, True)


def test_a_change_between_two_nights_of_one_commit_blames_no_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for day in sorted(range(12), key=lambda day: day * 5 % 12):  # filed in any order
        when = (FIRST + timedelta(days=day)).isoformat()
        slow = 1.4 if day >= 6 else 1.0
        run = night(tmp_path / f"night-{day}", tpot=(10 + day % 3 / 50) * slow, time=when)
        told(capsys, "history", "add", tmp_path / "h", run)
    line = told(capsys, "history", "changes", tmp_path / "h", "--metric", "tpot.mean_ms")
    (change,) = line["changes"]
    assert change["since"] == (FIRST + timedelta(days=6)).isoformat()
    assert change["suspects"].startswith(f"none, {'a' * 40} before and after: see the machine")


def test_a_page_of_a_fresh_history_draws_no_single_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a second for each metric of each cell, and nothing to see."""
    told(capsys, "history", "add", tmp_path / "h", night(tmp_path / "first"))
    out = tmp_path / "page.html"
    assert told(capsys, "history", "page", tmp_path / "h", "--out", out)["exit"] == 0
    text = out.read_text(encoding="utf-8")
    assert ("<svg" in text, "one night: a line is drawn from the second one on" in text) == (False, True)
    second = (FIRST + timedelta(days=1)).isoformat()
    told(capsys, "history", "add", tmp_path / "h", night(tmp_path / "second", time=second))
    told(capsys, "history", "page", tmp_path / "h", "--out", out, "--metric", "tpot.mean_ms")
    text = out.read_text(encoding="utf-8")
    assert ("<svg" in text, "one night:" in text) == (True, False)
