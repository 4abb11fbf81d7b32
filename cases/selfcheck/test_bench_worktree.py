"""Where no other commit can be checked out: no clone, and no git."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.bench.worktree import has_commit
from harness.errors import UsageError


def test_a_copy_that_is_no_clone_is_called_that(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no git checkout.*\n.*in a clone"):
        has_commit("HEAD", tmp_path)


def test_a_machine_without_git_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="install git"):
        has_commit("HEAD")
