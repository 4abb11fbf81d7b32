"""What the verbs ``index`` and ``history page`` do once their arguments are known."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.cases import find_root
from harness.console import console_of
from harness.errors import CaseError, UsageError
from harness.judging import require_writable, written
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


def history_page(args: argparse.Namespace) -> dict[str, Any]:
    """The trends of every setting of a history, with their changes of level."""
    from harness.bench.stats.of_result import GATED
    from harness.history_verbs import acknowledged, opened
    from harness.report.bench.series import Series, series_of
    from harness.report.bench.verdicts import history

    require_writable(args.out)
    known, metrics = acknowledged(args), args.metric or list(GATED)
    settings: dict[str, tuple[Mapping[str, str], list[Series]]] = {}
    with opened(args.url) as past:
        for setting in past.settings():
            series = list(series_of(past, setting.fingerprint, args.series, metrics, known))
            if series:
                settings[setting.id] = setting.fingerprint, series
    written(args.out, history(f"{args.series} of {args.url}", settings))
    console_of(args).print(f"report: {args.out}", soft_wrap=True, highlight=False)
    found = {
        name: {one.metric: [change.state.value for change in one.changes] for one in series}
        for name, (_, series) in settings.items()
    }
    return {"verb": "history page", "path": str(args.out), "settings": found, "exit": 0}


def _reports() -> Path:
    try:
        return find_root() / "reports"
    except CaseError:
        return Path.cwd() / "reports"
