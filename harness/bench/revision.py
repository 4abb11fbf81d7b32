"""Which code was measured: the commit of the checkout that this package lies in."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """``dirty``: files of the package differ from that commit. ``tree``: git's hash of the package at that commit,
    which two commits share that differ elsewhere only.
    """

    commit: str
    dirty: bool = False
    tree: str | None = None

    @property
    def name(self) -> str:
        """As ``git describe --dirty`` writes it: a commit with changes is not that commit."""
        return f"{self.commit}-dirty" if self.dirty else self.commit


def revision_of(package: Path = PACKAGE) -> Revision | None:
    """``None`` where the package is no part of a git checkout (installed, say), or there is no git."""
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None  # an environment inside of somebody's repository is not of that repository
    commit, tree = _git(package, "rev-parse", "HEAD"), _git(package, "rev-parse", "HEAD:./")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--", ".")
    if commit is None or changed is None:
        return None
    return Revision(commit=commit, dirty=bool(changed), tree=tree)


def _git(folder: Path, *words: str) -> str | None:
    """What it says; ``None`` where it fails."""
    try:
        said = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() if said.returncode == 0 else None
