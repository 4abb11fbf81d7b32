"""What the verbs ``index`` and ``history page`` do once their arguments are known."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.cases import find_root
from harness.console import console_of
from harness.errors import CaseError, UsageError
from harness.report.index import write_index


def index(args: argparse.Namespace) -> dict[str, Any]:
    """The page of all runs."""
    folder = args.reports or _reports()
    if not folder.is_dir():
        raise UsageError(f"{folder}: is no folder", hint="make bench, or make repro ISSUE=24881, makes a run")
    try:
        path = write_index(folder)
    except OSError as error:
        raise UsageError(
            f"{folder}/index.html: cannot be written: {error.strerror}", hint="name a folder you may write"
        ) from None
    console_of(args).print(f"report: {path}", soft_wrap=True, highlight=False)
    return {"verb": "index", "path": str(path), "exit": 0}


def _reports() -> Path:
    try:
        return find_root() / "reports"
    except CaseError:
        return Path.cwd() / "reports"
