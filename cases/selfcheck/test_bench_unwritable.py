"""Files that cannot be written: said before anything is measured, and where a disk fills up, nothing is lost."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cases.selfcheck.benching import said
from cases.selfcheck.foreign import Foreign, running
from cases.selfcheck.mortal import EXTRA
from harness.bench.load.store import Part, RecordFile, read_records
from harness.cli import main
from harness.models.tiny import default_cache, ensure

CELLS = ("free", "guided")
SMALL = ["--requests", "30", "--concurrency", "2", "--output-tokens", "8", "--loop-lag", "5000", "--no-page"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As a disk that fills up: a file takes so many bytes, of the last line only a part."""
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, was[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The JSON line."""
    main([str(one) for one in arguments])
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    line: dict[str, Any] = json.loads(shown.out.splitlines()[-1])
    return line


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "--base-url", "http://127.0.0.1:9", "--tokenizer", ".", "--junit"),
        ("gate", "--history", "nowhere", "--markdown"),
        ("gate", "--history", "nowhere", "--junit"),
        ("compare", "nowhere", "nowhere", "--page"),
        ("history", "page", "nowhere", "--out"),
        ("nightly", "--history", "nowhere", "--base-url", "http://127.0.0.1:9", "--junit"),
        ("nightly", "--history", "nowhere", "--base-url", "http://127.0.0.1:9", "--markdown"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_anything_else(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
) -> None:
    if arguments[0] == "bench":  # the last of them begins a run
        arguments = ("bench", "--reports", str(tmp_path_factory.mktemp("reports")), *arguments[1:])
    line = told(capsys, *arguments, tmp_path)
    assert (line["exit"], f"{tmp_path}: cannot be written: Is a directory" in line["error"]) == (2, True)
    line = told(capsys, *arguments, tmp_path / "gone/x")
    assert (line["exit"], f"mkdir -p {tmp_path}/gone" in line["error"]) == (2, True)
    assert list(tmp_path.iterdir()) == []
    line = told(capsys, *arguments, tmp_path / "x")  # something else is wrong
    assert (line["exit"], "cannot be written" in line["error"], list(tmp_path.iterdir())) == (2, False, [])


def test_a_disk_that_fills_up_is_told_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ensure("peaked", cache=default_cache(os.environ))
    with running(Foreign(extra=EXTRA).app()) as url:
        where = ["--base-url", url, "--tokenizer", str(model), "--reports", str(tmp_path)]
        with files_of_at_most(90_000):  # more than a warm-up, less than a cell
            line = told(capsys, "bench", *SMALL, "--requests", "60", "--output-tokens", "24", *where)
        (run_dir,) = (path for path in tmp_path.iterdir() if path.is_dir())
        assert (line["exit"], "cannot be written: File too large" in line["error"]) == (2, True)
        assert "make room; what was measured is kept; go on with: " in line["error"]
        assert f"bench --resume {run_dir}" in line["error"]
        first = [one for name in CELLS for one in read_records(run_dir / "records" / name).records]
        assert 0 < len(first) < 120
        line = told(capsys, "bench", "--resume", run_dir, "--no-page")
    assert [sum(line["cells"][name]["streams"].values()) for name in CELLS] == [60, 60]
    again = [one for name in CELLS for one in read_records(run_dir / "records" / name).records]
    assert all(record in again for record in first)


def test_a_line_of_which_a_part_was_written_is_not_followed_by_another(tmp_path: Path) -> None:
    path = tmp_path / "records-0.jsonl"
    with RecordFile(path) as file:
        file.begin(Part(plan="p", begin=0, unix=0))
        file.keep(said([10], id="a"))
        with files_of_at_most(path.stat().st_size + 20), pytest.raises(OSError, match=r"space|large"):
            file.keep(said([10], id="b"))
    assert [one.id for one in read_records(tmp_path).records] == ["a"]
    with RecordFile(path) as file:
        file.begin(Part(plan="p", begin=1, unix=1))
        file.keep(said([10], id="b"))
    assert [one.id for one in read_records(tmp_path).records] == ["a", "b"]
