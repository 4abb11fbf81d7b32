"""What a result says of its origin: the commit of the code, and the machine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harness.bench.history.filing import Invalid, file_runs
from harness.bench.history.history import History
from harness.bench.history.results import UNKNOWN, read
from harness.bench.machine import cores, hardware, processor
from harness.bench.result import read_result, write_result
from harness.bench.revision import Revision, revision_of
from harness.errors import UsageError

FIXTURE = Path(__file__).parents[2] / "fixtures/bench/vllm-0.32.0.json"


def git(folder: Path, *words: str) -> str:
    """What git says in a folder."""
    who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True
    ).stdout.strip()


def committed_package(checkout: Path) -> Path:
    """A package in a new checkout, committed beside a document."""
    git(checkout, "init", "-q")
    folder = checkout / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (checkout / "README").write_text("one")
    git(checkout, "add", "package/__init__.py", "README")
    git(checkout, "commit", "-qm", "first")
    return folder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return committed_package(tmp_path)


def test_the_commit_is_that_of_the_package_and_changes_beside_it_do_not_count(package: Path) -> None:
    first = revision_of(package)
    assert first is not None
    assert (first.name, first.dirty) == (git(package, "rev-parse", "HEAD"), False)
    (package.parent / "README").write_text("two")
    assert revision_of(package) == first
    git(package.parent, "commit", "-qam", "second")
    second = revision_of(package)
    assert second is not None
    assert (second.tree, second.commit != first.commit) == (first.tree, True)


def test_a_changed_package_is_not_its_commit(package: Path) -> None:
    (package / "__init__.py").write_text("changed = True")
    found = revision_of(package)
    assert found is not None
    assert found.dirty
    assert found.name == f"{git(package, 'rev-parse', 'HEAD')}-dirty"
    git(package, "commit", "-qam", "second")
    after = revision_of(package)
    assert after is not None
    assert (after.dirty, after.tree != found.tree) == (False, True)


def test_an_environment_inside_of_a_checkout_is_not_of_its_commit(package: Path, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages/harness"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert revision_of(installed) is None
    assert revision_of(tmp_path / "nowhere") is None


def test_the_machine_is_named_by_its_processor_and_cores(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: AMD  EPYC 9654 \nprocessor : 1\nmodel name\t: other\n")
    assert hardware(info).startswith(f"AMD EPYC 9654, {cores()} CPUs")
    assert processor(tmp_path / "missing")


def result_file(folder: Path, **ours: object) -> Path:
    """A result of ours, written down."""
    health = {"client_bound": False, "because": []}
    space = {"fingerprint": {"model": "m"}, "health": health, "valid": True, "metrics": {"tpot.mean_ms": 9.0}}
    found = {
        key: value for key, value in read_result(FIXTURE).items() if isinstance(value, (str, int, float))
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"result-{ours.get('cell', 'free')}.json"
    write_result(found | {"specharness": space | ours}, path)
    return path


def test_results_tell_their_commit_and_old_ones_none(tmp_path: Path) -> None:
    assert read(result_file(tmp_path / "a", commit="a" * 40, dirty=False)).run.commit == "a" * 40
    assert read(result_file(tmp_path / "b", commit="a" * 40, dirty=True)).run.commit == f"{'a' * 40}-dirty"
    assert read(result_file(tmp_path / "c")).run.commit == UNKNOWN
    assert read(result_file(tmp_path / "d", commit=None, dirty=None)).run.commit == UNKNOWN
    assert Revision(commit="c").name == "c"


def test_a_run_is_filed_whole_or_not_at_all(tmp_path: Path) -> None:
    url = str(tmp_path / "history")
    result_file(tmp_path / "run", commit="a" * 40)
    late = result_file(
        tmp_path / "run",
        cell="guided",
        commit="a" * 40,
        health={"client_bound": True, "because": ["its loop lagged"]},
    )
    with pytest.raises(Invalid, match="guided: client-bound: its loop lagged"):
        file_runs(url, [tmp_path / "run"], series="nightly")
    assert not (tmp_path / "history").exists()
    late.unlink()
    for _ in range(2):
        assert len(file_runs(url, [tmp_path / "run"], series="nightly")) == 1
    with History(url) as history:
        assert [run.commit for run in history.runs()] == ["a" * 40]
    found = json.loads((tmp_path / "run/result-free.json").read_text())
    result_file(tmp_path / "other", **found["specharness"] | {"commit": None})
    with pytest.raises(UsageError, match="says no commit"):
        file_runs(url, [tmp_path / "other"], series="nightly")
