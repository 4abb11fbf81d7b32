"""Another revision of this package's repository, checked out beside it for as long as it is measured."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.bench.revision import PACKAGE
from harness.errors import UsageError


def has_commit(commit: str, package: Path = PACKAGE) -> bool:
    """Whether this clone holds it; a shallow one holds the newest alone. UsageError where there is no clone."""
    if _git(package, "rev-parse", "--git-dir").returncode:
        raise UsageError(
            f"{package}: is no git checkout, so no other commit can be measured beside it",
            hint="run it in a clone, or without --measure: then the past nights decide",
        )
    return _git(package, "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0


@contextmanager
def checked_out(commit: str, folder: Path, package: Path = PACKAGE) -> Iterator[Path]:
    """``folder`` as a worktree at ``commit``; it is removed in the end, and so is what a killed run left of it.

    UsageError where git cannot.
    """
    _git(package, "worktree", "remove", "--force", str(folder))
    _git(package, "worktree", "prune")
    made = _git(package, "worktree", "add", "--detach", str(folder), commit)
    if made.returncode:
        raise UsageError(
            f"{commit}: git cannot check it out in {folder}: {made.stderr.strip().splitlines()[-1]}",
            hint="name a commit that this clone holds; `git fetch --unshallow` fetches what a shallow one lacks",
        )
    try:
        yield folder
    finally:
        _git(package, "worktree", "remove", "--force", str(folder))


def _git(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(package), *words], capture_output=True, text=True, timeout=120
        )
    except OSError as error:
        raise UsageError(f"git: cannot be run: {error}", hint="install git") from None
