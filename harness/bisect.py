"""Which release broke it, or repaired it: a bisection over released versions.

The two ends are judged first. What the bad end shows and the good end does not - a symptom of a suspect in a
scenario - is what is searched for; a release is bad if it shows any of it. A release that cannot be judged is
skipped, and its neighbours are tried.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.errors import UsageError
from harness.targets.upstream.metadata_versions import version_key

Symptoms = frozenset[str]
Judge = Callable[[str], Symptoms | None]
"""What a release shows; ``None``: it cannot be judged."""
Tell = Callable[[str], None]

KNOWN = (
    "0.10.2 0.11.0 0.11.1 0.11.2 0.12.0 0.13.0 0.14.0 0.14.1 0.15.0 0.15.1 0.16.0 0.17.0 0.17.1 0.18.0 0.18.1 0.19.0 "
    "0.19.1 0.20.0 0.20.1 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0 0.25.0 0.25.1 0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 "
    "0.30.0 0.31.0 0.32.0 0.33.0"
).split()
"""Releases of vLLM, for when the package index cannot be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Where it changed: ``last`` still is as the older end, ``first`` as the newer one; between them, ``skipped``."""

    last: str
    first: str
    skipped: tuple[str, ...]
    symptoms: Symptoms
    older_is_good: bool

    @property
    def exit_code(self) -> int:
        """0 where two neighbours were told apart, 125 where releases between them could not be judged."""
        return 125 if self.skipped else 0

    def __str__(self) -> str:
        what = "breaks" if self.older_is_good else "repairs"
        if not self.skipped:
            return f"{self.first} {what} it: {self.last} is the last {self._old} release"
        between = ", ".join(self.skipped)
        return (
            f"{self.first} or one of {between} {what} it: those cannot be judged, {self.last} is {self._old}"
        )

    @property
    def _old(self) -> str:
        return "good" if self.older_is_good else "bad"


def bisect(releases: Sequence[str], good: str, bad: str, judge: Judge, tell: Tell) -> Boundary | str:
    """The boundary between two releases, or why there is none to look for. ``releases`` are in any order."""
    ordered = sorted(set(releases), key=version_key)
    for end in (good, bad):
        if end not in ordered:
            near = ", ".join(ordered[-6:])
            raise UsageError(f"saw release {end!r}, expected one that was released, such as {near}")
    if good == bad:
        raise UsageError(f"saw {good} as good and as bad, expected two releases")
    low, high = sorted((ordered.index(good), ordered.index(bad)))
    line = ordered[low : high + 1]
    tell(f"{good} and {bad}: the two ends; {len(line) - 2} releases between them")
    shown_good, shown_bad = judge(good), judge(bad)
    if shown_good is None or shown_bad is None:
        return f"{good if shown_good is None else bad} cannot be judged"
    wanted = shown_bad - shown_good
    if not wanted:
        return f"{bad} shows nothing that {good} does not show too"
    older_is_good = line[0] == good

    def is_old(release: str) -> bool | None:
        shown = judge(release)
        return None if shown is None else bool(shown & wanted) is not older_is_good

    last, first, skipped = _halve(line, is_old, tell)
    return Boundary(
        last=line[last],
        first=line[first],
        skipped=tuple(line[i] for i in sorted(skipped) if last < i < first),
        symptoms=wanted,
        older_is_good=older_is_good,
    )


def _halve(
    line: Sequence[str], is_old: Callable[[str], bool | None], tell: Tell
) -> tuple[int, int, set[int]]:
    """Indices of the last release like the first one and of the first that is not; what lies between was skipped."""
    last, first = 0, len(line) - 1
    skipped: set[int] = set()
    while open_ones := [i for i in range(last + 1, first) if i not in skipped]:
        middle = min(open_ones, key=lambda i: abs(2 * i - last - first))
        tell(f"{line[middle]}: {len(open_ones)} releases left, about {len(open_ones).bit_length()} tries")
        old = is_old(line[middle])
        if old is None:
            skipped.add(middle)
        elif old:
            last = middle
        else:
            first = middle
    return last, first, skipped


def released(project: str, tell: Tell, pip: Sequence[str] = (sys.executable, "-m", "pip")) -> list[str]:
    """The versions that the package index knows; those of our table where it does not answer."""
    command = [*pip, "index", "versions", project, "--disable-pip-version-check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        listed = re.search(r"^Available versions: (.+)$", done.stdout, re.MULTILINE)
    except (OSError, subprocess.TimeoutExpired):
        listed = None
    if listed is None:
        tell(f"the package index gives no list of releases: taking the {len(KNOWN)} that are known here")
        return list(KNOWN)
    return [
        version
        for version in re.split(r",\s*", listed[1].strip())
        if re.fullmatch(r"[0-9.]+(\.post\d+)?", version)
    ]
