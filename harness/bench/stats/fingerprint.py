"""What must agree before two runs are compared, and a refusal that lists what does not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from harness.bench.stats.run import Run
from harness.errors import UsageError


class Incomparable(UsageError):
    """Runs of different fingerprints were to be compared (tt-xla#5486: yesterday's run was of another device)."""

    usual_hint = "compare runs of one setting; name with --across what is meant to differ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key on which two fingerprints do not agree; ``None``: one of them lacks it."""

    key: str
    left: str | None
    right: str | None

    def __str__(self) -> str:
        shown = ["(absent)" if value is None else value for value in (self.left, self.right)]
        return f"{self.key}: {shown[0]} | {shown[1]}"


def identity(fingerprint: Mapping[str, str]) -> str:
    """16 hex digits that two fingerprints share exactly where they agree on every key, in any order."""
    text = json.dumps(dict(fingerprint), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(
    left: Mapping[str, str], right: Mapping[str, str], across: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Every key that does not agree, in the order of ``left``, save those in ``across``, which are meant to differ."""
    keys = [*left, *(key for key in right if key not in left)]
    return tuple(
        Difference(key=key, left=left.get(key), right=right.get(key))
        for key in keys
        if key not in across and left.get(key) != right.get(key)
    )


def require_same(runs: Iterable[Run], across: Collection[str] = ()) -> None:
    """Raise Incomparable, listing what differs, unless all fingerprints agree."""
    first: Run | None = None
    for run in runs:
        first = first or run
        found = differences(first.fingerprint, run.fingerprint, across)
        if found:
            listed = "".join(f"\n  {difference}" for difference in found)
            raise Incomparable(f"runs {first.id} and {run.id} are not of one setting; these differ:{listed}")
