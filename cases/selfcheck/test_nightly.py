"""A night: its stages in order, nothing of a run that is not correct, and what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from cases.selfcheck.bench_runs import START
from cases.selfcheck.test_bench_provenance import result_file
from harness import rundir
from harness.bench.history.dataset import Dataset
from harness.bench.history.marks import marks
from harness.bench.stats.judge import Call
from harness.bench.stats.of_result import run_of
from harness.cli import main
from harness.nightly_report import junit, markdown
from harness.nightly_steps import Steps
from harness.rundir import RunDir

NOWHERE = "http://127.0.0.1:9"
COMMIT = "c" * 40


def night(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], str]:
    """The JSON line, checked against the exit code, and everything above it."""
    code = main(["nightly", *map(str, arguments)])
    said = capsys.readouterr()
    told: dict[str, Any] = json.loads(said.out.splitlines()[-1])
    assert told["exit"] == code
    assert "Traceback" not in said.err
    return told, said.out + said.err


def flat(tpot: float) -> dict[str, float]:
    """Figures of a run, one of every gated kind."""
    names = ("ttft.median_ms", "ttft.p99_ms", "tpot.mean_ms", "tpot.p99_ms", "e2el.mean_ms")
    return dict.fromkeys(names, tpot) | {"throughput.output": 1000 / tpot, "ttft.n": 48, "tpot.n": 48}


def killed(folder: Path, *, tpot: float = 10.0) -> Path:
    """A night of a server at ``NOWHERE`` that was killed behind its benchmark."""
    bench = folder / "night/bench-20260320-020000-1"
    result_file(bench, commit=COMMIT, metrics=flat(tpot))
    found = json.loads((bench / "result-free.json").read_text())
    (bench / "result-free.json").write_text(json.dumps(found | {"date": "20260320-020000"}))
    setting = dict.fromkeys(("issues", "target", "model", "tokenizer", "commit", "calibration", "known"))
    setting |= {"history": str(folder / "history"), "series": "nightly", "base_url": NOWHERE}
    setting |= {"pairs": 4, "no_measure": False, "bench": []}
    done = {
        "live": {"command": ["live"], "line": {"verb": "live", "exit": 0}, "seconds": 1.0},
        "bench": {"command": ["bench"], "line": {"exit": 0, "run_dir": str(bench)}, "seconds": 1.0},
    }
    about = {"name": "nightly", "setting": setting, "steps": done, "machine": "m"}
    RunDir(folder / "night", about).save()
    return folder / "night"


def past(url: str, nights: int) -> None:
    """Nights of the same setting at 10 ms, with half a percent of noise."""
    rng = np.random.default_rng(3)
    for day in range(nights):
        told = {"specharness": {"valid": True, "metrics": flat(10 * float(np.exp(rng.normal(0, 0.005))))}}
        time = START + timedelta(days=day)
        Dataset(url).append(run_of(told, fingerprint={"model": "m"}, commit=f"{day:040x}", time=time))


@pytest.mark.parametrize(("tpot", "code", "word"), [(10.0, 0, "pass"), (14.0, 1, "regression")])
def test_a_correct_night_is_filed_gated_and_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tpot: float, code: int, word: str
) -> None:
    url, summary, xml = str(tmp_path / "history"), tmp_path / "step.md", tmp_path / "junit.xml"
    past(url, 10)
    run_dir = killed(tmp_path, tpot=tpot)
    told, _ = night(capsys, "--resume", run_dir, "--markdown", summary, "--junit", xml)
    assert (told["exit"], told["gate"]) == (code, word)
    assert told["steps"] == {"live": 0, "bench": 0, "gate": code, "page": 0}
    assert "<svg" in (Path(told["run_dir"]) / "history.html").read_text(encoding="utf-8")
    assert len(Dataset(url).names()) == 11
    (mark,) = marks(Dataset(url), "nightly")
    assert (mark.commit, mark.call, len(mark.settings)) == (COMMIT, Call(word), 1)
    assert f"Benchmark gate: {word}" in summary.read_text()
    root = ElementTree.parse(xml).getroot()
    assert [one.get("name") for one in root] == ["nightly", "benchmark gate: free"]
    assert bool(root.findall(".//failure")) is (code == 1)
    again, _ = night(capsys, "--resume", run_dir)  # the same night: nothing is filed or marked twice
    assert again["exit"] == code
    assert (len(Dataset(url).names()), len(marks(Dataset(url), "nightly"))) == (11, 1)


def test_the_first_night_has_nothing_to_be_held_against(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, shown = night(capsys, "--resume", killed(tmp_path))
    assert (told["exit"], told["gate"]) == (125, "inconclusive")
    assert "0 past nights" in shown


def test_what_is_not_correct_is_neither_measured_nor_filed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = tmp_path / "history"
    where = ("--base-url", NOWHERE, "--tokenizer", tmp_path, "--commit", COMMIT)
    told, _ = night(capsys, "--history", url, *where, "--reports", tmp_path / "reports")
    assert (told["exit"], list(told["steps"]), told["gate"]) == (2, ["live"], None)
    assert "nothing was measured" in told["verdict"]
    assert not Dataset(str(url)).names()
    text = (Path(told["run_dir"]) / "summary.md").read_text()
    assert "bad input" in text
    assert "tok/s" not in text


def test_a_benchmark_that_is_not_valid_is_not_filed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = killed(tmp_path)
    run = json.loads((run_dir / "run.json").read_text())
    run["steps"]["bench"]["line"]["exit"] = 1
    (run_dir / "run.json").write_text(json.dumps(run))
    told, _ = night(capsys, "--resume", run_dir)
    assert told["exit"] == 2  # it is asked again, and the server is still nowhere
    assert "not valid" in told["verdict"]
    assert not Dataset(str(tmp_path / "history")).names()


def test_no_speed_of_a_wrong_benchmark_stands_in_a_summary(tmp_path: Path) -> None:
    (tmp_path / "summary.md").write_text("999 tok/s")
    for code, shown in ((0, True), (1, False), (125, False)):
        line = {"exit": code, "run_dir": str(tmp_path), "error": "<b> | \x07"}
        run = {"setting": {"history": "h"}, "steps": {"bench": {"line": line, "seconds": 1.0}}}
        text = markdown(run, tmp_path / "none", "verdict", code)
        assert ("999 tok/s" in text) is shown
        assert "<b>" not in text
        suite = ElementTree.fromstring(junit(run, tmp_path / "none").encode())[0]
        assert (suite.get("failures"), suite.get("skipped")) == (str(int(code == 1)), str(int(code == 125)))


def test_a_step_that_ended_well_is_kept_and_others_are_run_again(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path, {})
    steps = Steps(run_dir, Console(quiet=True))
    assert steps.run("index", ["index", str(tmp_path)])["exit"] == 0
    assert steps.run("gone", ["history", "index", str(tmp_path / "gone")])["exit"] == 2
    seen = (tmp_path / "index.log").stat().st_mtime_ns
    again = Steps(RunDir.resume(tmp_path), Console(quiet=True))
    assert again.run("index", ["index", str(tmp_path)])["path"]
    assert again.run("gone", ["index", str(tmp_path)])["exit"] == 0
    assert (tmp_path / "index.log").stat().st_mtime_ns == seen


def test_an_interrupted_night_ends_its_step_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.cli", "nightly", "--history", str(tmp_path / "h")]
    process = subprocess.Popen(
        [*command, "--reports", str(tmp_path), "--commit", COMMIT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    end = time.monotonic() + 60
    while not list(tmp_path.glob("nightly-*/repro-24881.log")) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    assert json.loads(out.splitlines()[-1])["exit"] == process.returncode == 130
    assert "nightly --resume" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "saw no --history"),
        (["--history", "h", "--base-url", NOWHERE], "nobody knows the commit"),
        (["--history", "nosuch://x", "--commit", "c"], "cannot be opened"),
        (["--history", "h", "--commit", "c", "--pairs", "5"], "even number"),
        (["--history", "h", "--commit", "c", "--known", "gone.toml"], "no such file"),
        (["--history", "h", "--commit", "c", "--", "--resume", "x"], "is not for the benchmark alone"),
        (["--resume", "gone"], "run.json"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_run(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    line, _ = night(capsys, "--reports", tmp_path / "reports", *arguments)
    assert line["exit"] == 2
    assert told in line["error"]
    assert not (tmp_path / "reports").exists()


NIGHT = """
import signal
import sys
from pathlib import Path
from rich.console import Console
from harness.nightly_steps import Steps
from harness.rundir import RunDir
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a script
Steps(RunDir(Path(sys.argv[1]), {}), Console()).run("serve", ["serve", "--port", "0"])
"""


def test_the_step_of_a_killed_night_does_not_measure_on(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", NIGHT, str(tmp_path)])
    end = time.monotonic() + 30
    while not (found := _children(process.pid)) and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert found
    while (left := [pid for pid in found if _command(pid)]) and time.monotonic() < end:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "the step outlives its night"


def _children(pid: int) -> list[int]:
    """Of a process, once they run this command."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in found if b"harness.cli" in _command(int(one))]


def _command(pid: int) -> bytes:
    """Nothing where it is gone, or dead and not yet waited for."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("verb", ["bench", "nightly"])
def test_a_run_directory_that_is_being_written_is_not_written_by_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(rundir, "PATIENCE", 0.1)
    killed(tmp_path)
    before = (tmp_path / "night/run.json").read_bytes()
    with rundir.alone(tmp_path / "night"):
        assert main([verb, "--resume", str(tmp_path / "night")]) == 2
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "another process is still writing" in told["error"]
    assert (tmp_path / "night/run.json").read_bytes() == before


@pytest.mark.parametrize("steps", [7, {"live": 7}, {"live": {"line": {}}}, {"live": {"line": {"exit": 0}}}])
def test_a_damaged_night_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: object
) -> None:
    run_dir = RunDir.resume(killed(tmp_path))
    run_dir.run["steps"] = steps
    run_dir.save()
    told, _ = night(capsys, "--resume", run_dir.path)
    assert (told["exit"], "is not of a night" in told["error"]) == (2, True)
