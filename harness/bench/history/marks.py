"""What became of a night: the gate's call for its commit, kept beside the runs. From it comes the next baseline."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from harness.bench.history.dataset import Dataset
from harness.bench.stats.fingerprint import identity
from harness.bench.stats.judge import Call
from harness.bench.stats.run import Run
from harness.bench.stats.states import Change, State
from harness.errors import UsageError

SCHEMA = 1
DIRTY = "-dirty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """``settings``: ids of the fingerprints that were judged; ``call``: the worst of them."""

    time: datetime
    commit: str
    series: str
    settings: tuple[str, ...]
    call: Call
    schema: int = SCHEMA

    @property
    def is_good(self) -> bool:
        """Nothing got worse that night, and it was shown."""
        return self.call.exit_code == 0


def keep(dataset: Dataset, mark: Mark) -> str:
    """Write a mark; returns its file's name within the history."""
    time = mark.time.astimezone(UTC)
    name = f"gates/month={time:%Y-%m}/{time:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:16]}.json"
    dataset.write(name, msgspec.json.encode(mark))
    return name


def marks(dataset: Dataset, series: str) -> tuple[Mark, ...]:
    """Every mark of a series, oldest first; UsageError for a file that holds none."""
    found = []
    for name in dataset.names("gates/month=*/*.json"):
        try:
            mark = msgspec.json.decode(dataset.content(name), type=Mark)
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"history {dataset.url}: {name} holds no gate's call: {error}",
                hint="move it out of the history",
            ) from None
        if mark.schema != SCHEMA:
            raise UsageError(
                f"history {dataset.url}: {name} is of schema {mark.schema}, expected {SCHEMA}",
                hint="read it with the version that wrote it, or upgrade this one",
            )
        found.append(mark)
    return tuple(sorted((mark for mark in found if mark.series == series), key=lambda mark: mark.time))


def last_good(
    runs: Sequence[Run],
    found: Sequence[Mark],
    settings: Collection[str],
    before: datetime,
    known: Sequence[Change] = (),
) -> str | None:
    """The commit that a night of these settings is to be held against; ``None``: there is none yet.

    That of the newest night before it whose gate passed. A change for the worse that somebody acknowledged since
    then is wanted: then the first commit with it. Where no gate ever passed: the newest night's. ``runs``: the
    history's, oldest first. A tree with changes is no commit.
    """
    nights = [
        run
        for run in runs
        if run.time < before and identity(run.fingerprint) in settings and run.validity.comparable
    ]
    good = [
        mark for mark in found if mark.is_good and mark.time < before and set(settings) <= set(mark.settings)
    ]
    wanted = max(
        (change for change in known if change.state is State.KNOWN), key=lambda one: one.time, default=None
    )
    if wanted is not None:
        good = [mark for mark in good if mark.time >= wanted.time]
    clean = [mark.commit for mark in good if not mark.commit.endswith(DIRTY)]
    if clean:
        return clean[-1]
    if wanted is not None and not wanted.bad.endswith(DIRTY):
        return wanted.bad
    commits = [run.commit for run in nights if not run.commit.endswith(DIRTY)]
    return commits[-1] if commits else None
