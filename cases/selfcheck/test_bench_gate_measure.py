"""The gate's own measuring: which commit is the baseline, and that its code, and no other, is served."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta
from pathlib import Path

import pytest

from cases.selfcheck.bench_runs import SETTING, START, ms, run
from cases.selfcheck.test_bench_provenance import committed_package, git
from harness.bench.history.dataset import Dataset
from harness.bench.history.marks import Mark, keep, last_good, marks
from harness.bench.stats.changepoints import ChangePoint
from harness.bench.stats.fingerprint import identity
from harness.bench.stats.judge import Call
from harness.bench.stats.run import Run
from harness.bench.stats.states import Change, State
from harness.bench.worktree import checked_out, has_commit
from harness.bench_asked import opened
from harness.cli import _parser
from harness.errors import UsageError
from harness.gate_measure import pairs_of
from harness.live.own_server import own_server

HERE = (identity(SETTING),)
SERVER = """import sys
print(*sys.argv)
print("serving fake (of the checkout) on http://127.0.0.1:1", flush=True)
sys.stdin.read()
"""


def night(day: int, commit: str) -> Run:
    return run({"tpot.mean_ms": ms(9.0)}, day=day, commit=commit)


def mark(day: int, commit: str, call: Call = Call.PASS, settings: tuple[str, ...] = HERE) -> Mark:
    time = START + timedelta(days=day)
    return Mark(time=time, commit=commit, series="nightly", settings=settings, call=call)


def known(day: int, bad: str, state: State = State.KNOWN) -> Change:
    point = ChangePoint(index=day, before=0.0, after=0.1, p_value=1e-4, nights=(day, day))
    time = START + timedelta(days=day)
    return Change(metric="tpot.mean_ms", point=point, state=state, time=time, good="g" * 40, bad=bad)


NIGHTS = [night(0, "aaa"), night(1, "bbb"), night(2, "ccc")]


@pytest.mark.parametrize(
    ("found", "changes", "commit"),
    [
        ([mark(0, "aaa"), mark(1, "bbb")], [], "bbb"),
        ([mark(0, "aaa"), mark(1, "bbb", Call.REGRESSION), mark(2, "ccc", Call.INCONCLUSIVE)], [], "aaa"),
        ([mark(0, "aaa"), mark(2, "ccc-dirty")], [], "aaa"),
        ([mark(0, "aaa", settings=("other",))], [], "ccc"),
        ([mark(0, "aaa"), mark(9, "later")], [], "aaa"),
        ([], [], "ccc"),
        ([mark(0, "aaa"), mark(1, "bbb", Call.REGRESSION)], [known(1, "bbb")], "bbb"),
        ([mark(0, "aaa"), mark(2, "ccc")], [known(1, "bbb")], "ccc"),
        ([mark(0, "aaa")], [known(1, "bbb", State.NEW)], "aaa"),
    ],
    ids=["newest", "red", "dirty", "other", "later", "none", "wanted", "after wanted", "new"],
)
def test_the_baseline_is_the_newest_commit_that_passed(
    found: list[Mark], changes: list[Change], commit: str
) -> None:
    assert last_good(NIGHTS, found, HERE, START + timedelta(days=3), changes) == commit


def test_without_an_earlier_night_there_is_no_baseline() -> None:
    assert last_good(NIGHTS, [], HERE, START) is None
    assert last_good(NIGHTS, [], ("other",), START + timedelta(days=3)) is None
    assert last_good([night(0, "a-dirty")], [], HERE, START + timedelta(days=3)) is None


def test_marks_come_back_as_they_were(tmp_path: Path) -> None:
    dataset = Dataset(str(tmp_path))
    wanted = [mark(0, "aaa"), mark(1, "bbb", Call.REGRESSION)]
    for one in reversed(wanted):
        keep(dataset, one)
    assert list(marks(dataset, "nightly")) == wanted
    assert marks(dataset, "other") == ()
    assert not dataset.names()  # a mark is no run
    (tmp_path / "gates/month=2026-03/x.json").write_text("{}")
    with pytest.raises(UsageError, match=r"x\.json holds no gate's call"):
        marks(dataset, "nightly")


def test_another_revision_is_checked_out_and_gone_again(tmp_path: Path) -> None:
    package = committed_package(tmp_path)
    first = git(package, "rev-parse", "HEAD")
    (package / "__init__.py").write_text("second = True")
    git(package, "commit", "-qam", "second")
    folder = tmp_path / "checkout"
    with checked_out(first, folder, package) as there:
        assert (there / "package/__init__.py").read_text() == ""
        with checked_out(first, folder, package) as again:  # what a killed run left is replaced
            assert (again / "package/__init__.py").exists()
    assert not folder.exists()
    assert len(git(package, "worktree", "list").splitlines()) == 1
    assert (has_commit(first, package), has_commit("0" * 40, package)) == (True, False)
    with pytest.raises(UsageError, match="cannot check it out"), checked_out("0" * 40, folder, package):
        pass


def test_a_server_of_a_checkout_runs_its_code(tmp_path: Path) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness/__init__.py").touch()
    (tmp_path / "harness/cli.py").write_text(SERVER)
    with own_server(["--k", "2"], tmp_path / "log", tmp_path) as server:
        assert server.model == "fake"
        assert "--k 2" in server.log.read_text()


def test_both_sides_are_measured_in_the_order_that_the_gate_says(tmp_path: Path) -> None:
    small = ["--requests", "2", "--concurrency", "2", "--output-tokens", "3", "--loop-lag", "60000"]
    run_dir, _, _ = opened(_parser().parse_args(["bench", *small, "--reports", str(tmp_path)]))
    if not run_dir.run["revision"]:
        pytest.skip("this is no git checkout")
    head, args = run_dir.run["revision"]["commit"], argparse.Namespace(json=True)
    with pairs_of(run_dir.path, head, args) as pairs:
        measure = pairs.of("free-off")
        sides = [*measure(True), *measure(False)]
        assert (run_dir.path / "pairs/checkout/harness/cli.py").is_file()
        with pytest.raises(UsageError, match="expected one of free-off, guided-off, free-mtp, guided-mtp"):
            pairs.of("free")
    assert not (run_dir.path / "pairs/checkout").exists()
    assert all(one.validity.correct and one.values["tpot.mean_ms"].value for one in sides)
    assert len({str(one.fingerprint) for one in sides}) == 1
    began = pairs_began(run_dir.path)
    assert began == [
        "baseline-free-off-0",
        "candidate-free-off-0",
        "candidate-free-off-1",
        "baseline-free-off-1",
    ]
    with pairs_of(run_dir.path, head, args) as pairs:  # a gate that was killed does not measure again
        before = (run_dir.path / "pairs/records/baseline-free-off-0/records-0.jsonl").stat().st_mtime_ns
        (left, right) = pairs.of("free-off")(True)
        after = (run_dir.path / "pairs/records/baseline-free-off-0/records-0.jsonl").stat().st_mtime_ns
    assert (left.values, right.values, after) == (sides[0].values, sides[1].values, before)
    with (
        pytest.raises(UsageError, match="holds pairs with the baseline"),
        pairs_of(run_dir.path, f"{head}~1", args),
    ):
        pass
    with (
        pytest.raises(UsageError, match="this clone does not hold it"),
        pairs_of(run_dir.path, "0" * 40, args),
    ):
        pass


def pairs_began(run_dir: Path) -> list[str]:
    """Cells in the order in which they were come to."""
    return list(json.loads((run_dir / "pairs/run.json").read_text())["began"])
