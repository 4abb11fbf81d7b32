"""Filing a run: all of its cells once they were all right, or none of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.bench.history.dataset import Dataset
from harness.bench.history.results import UNKNOWN, Found, read_all
from harness.errors import UsageError


class Invalid(UsageError):
    """A run that may not be compared was to be filed."""

    usual_hint = "read what is wrong with it, and measure again"


def file_runs(url: str, paths: Iterable[Path], *, series: str) -> dict[str, str]:
    """Append every cell of the run directories to the history -> file of each result.

    Raises Invalid, with nothing filed, where one of them is wrong or client-bound. A second time changes nothing.
    """
    found = [one for cells in read_all(paths, series=series).values() for one in cells]
    require_commits(found)
    bad = [f"{one.cell}: {one.run.validity}" for one in found if not one.run.validity.comparable]
    if bad:
        raise Invalid(f"nothing is filed of a run that is not valid: {' | '.join(bad)}")
    dataset = Dataset(url)
    return {str(one.path): dataset.append(one.run) for one in found}


def require_commits(found: Sequence[Found]) -> None:
    """UsageError for a result that says no commit."""
    for one in found:
        if one.run.commit == UNKNOWN:
            raise UsageError(
                f"{one.path}: says no commit, and a night without one names no suspects",
                hint='--commit "$(git rev-parse HEAD)", or whatever was served',
            )
