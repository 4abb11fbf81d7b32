"""Files of pytest-benchmark in the history: a series of their own, gated by all that they time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.bench.history.results import read
from harness.cli import main


def timed(path: Path, *, scale: float = 1.0, day: int = 1, commit: str = "a" * 40, **more: Any) -> Path:
    """A file as pytest-benchmark 5 writes it."""
    medians = {"test_sse_parser": 3e-3, "test_kernel[gdn-32]": 7e-5}
    found = {
        "machine_info": {"cpu": {"brand_raw": "EPYC", "count": 2}, "python_version": "3.11.7"},
        "commit_info": {"id": commit, "dirty": False},
        "benchmarks": [
            {"name": name, "extra_info": {}, "stats": {"median": median * scale, "rounds": 40}}
            for name, median in medians.items()
        ],
        "datetime": f"2026-03-{day:02d}T02:00:00+00:00",
        "version": "5.3.1",
    }
    path.write_text(json.dumps(found | more))
    return path


def ask(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON line."""
    code = main([str(one) for one in arguments])
    line: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return code, line


def test_a_file_is_a_run_with_a_series_of_its_own(tmp_path: Path) -> None:
    found = read(timed(tmp_path / "a.json"))
    assert (found.cell, found.run.series, found.run.commit) == ("micro", "micro", "a" * 40)
    values = {name: (value.value, value.unit) for name, value in found.run.values.items()}
    assert values == {
        "sse_parser.median_us": (pytest.approx(3000), "us"),
        "kernel_gdn-32.median_us": (pytest.approx(70), "us"),
    }
    assert found.run.fingerprint["hardware"] == "EPYC, 2 CPUs"
    device = {"name": "test_k", "stats": {"median": 1e-3}, "extra_info": {"device": "H200"}}
    on_a_gpu = read(timed(tmp_path / "b.json", benchmarks=[device]))
    assert on_a_gpu.run.fingerprint["hardware"] == "EPYC, 2 CPUs, H200"


@pytest.mark.parametrize(("scale", "code"), [(1.0, 0), (1.3, 1)])
def test_they_are_gated_by_past_nights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: float, code: int
) -> None:
    url = tmp_path / "history"
    for day in range(1, 11):
        past = timed(tmp_path / f"{day}.json", scale=1 + day % 3 / 200, day=day, commit=f"{day:040x}")
        assert ask(capsys, "history", "add", url, past)[0] == 0
    tonight = timed(tmp_path / "tonight.json", scale=scale, day=12)
    got, line = ask(capsys, "gate", "--history", url, tonight)
    assert (got, line["cells"]["micro"]["nights"]) == (code, 10)
    assert set(line["cells"]["micro"]["metrics"]) == {"sse_parser.median_us", "kernel_gdn-32.median_us"}
    assert ask(capsys, "gate", "--history", url)[0] == 2  # they are no nights of a server
    assert ask(capsys, "gate", "--history", url, "--series", "micro")[0] == 0


def test_a_change_of_a_micro_benchmark_has_suspects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = tmp_path / "history"
    for day in range(1, 19):
        scale = (1.4 if day > 10 else 1.0) * (1 + day % 3 / 200)
        ask(
            capsys,
            "history",
            "add",
            url,
            timed(tmp_path / "x.json", scale=scale, day=day, commit=f"{day:040x}"),
        )
    code, line = ask(capsys, "history", "changes", url, "--series", "micro")
    assert (code, {one["suspects"] for one in line["changes"]}) == (1, {f"{10:040x}..{11:040x}"})


def test_files_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, scale in (("a", 1.0), ("b", 1.3)):
        for n in range(4):
            timed(tmp_path / f"{side}{n}.json", scale=scale * (1 + n / 400), day=n + 1)
    more = [part for n in "123" for s in "ab" for part in (f"--more-{s}", tmp_path / f"{s}{n}.json")]
    code, line = ask(capsys, "compare", tmp_path / "a0.json", tmp_path / "b0.json", *more)
    assert (code, line["call"]) == (1, "regression")


@pytest.mark.parametrize(
    ("more", "told"),
    [({"benchmarks": []}, "no benchmark with a median"), ({"datetime": "now"}, "expected ISO 8601")],
)
def test_a_damaged_file_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any], told: str
) -> None:
    code, line = ask(capsys, "history", "add", tmp_path / "h", timed(tmp_path / "a.json", **more))
    assert (code, told in line["error"]) == (2, True)
