"""The class of a crash, from its words alone: engines die of few things, and say them in many ways."""

from __future__ import annotations

import re

from harness.trace import Crash

CAUSES = (
    ("stalled", r"stalled|timed? ?out|deadlock|no progress"),
    ("out of memory", r"out of memory|OutOfMemory|cannot allocate"),
    ("pool exhausted", r"asks for \d+, \d+ are free|no free (block|slot)|exhausted|pool is empty"),
    (
        "nothing legal to commit",
        r"no token to (give|draw)|best logit|probability tensor contains|law has mass",
    ),
    (
        "grammar refused a scheduled draft",
        r"grammar refuses draft|failed to advance|not accepted by the grammar",
    ),
    ("matcher rolled back too far", r"roll\w* .*back|rollback"),
    ("matcher asked after its end", r"terminated"),
    ("mask rows miscounted", r"mask row|bitmask"),
    ("accepted count against this row", r"exceeds? varlen segment"),
    ("more committed than drafted", r"the script commits|accepted tokens? exceed"),
    ("rows and drafts disagree", r"drafts need|num_decodes|num_spec_decodes"),
    ("missing entry", r"KeyError|not found in|is not in (list|deque)|pop from an empty"),
    ("empty batch", r"reduction dim|of an empty|empty (tensor|sequence)|argument is empty"),
    (
        "index out of range",
        r"lies outside|out of range|out of bounds|illegal (memory )?access|IndexError|must lie in|index -?\d+ is",
    ),
    (
        "shape mismatch",
        r"shape|sizes? of tensor|size mismatch|must match|invalid for input of size|expanded size|broadcast"
        r"|cannot be multiplied|expected size|argument \d+ is (longer|shorter)|number of elements",
    ),
    ("nothing where a value was expected", r"NoneType"),
    ("assertion", r"AssertionError"),
)
"""(cause, how it reads), the more particular first."""


def cause_of_crash(crash: Crash) -> tuple[str, str]:
    """The class of a crash (``crash`` where its words fit none), and a sentence."""
    said = f"{crash.kind}: {crash.message}"
    cause = next((cause for cause, words in CAUSES if re.search(words, said, re.IGNORECASE)), "crash")
    return cause, f"{cause}: {crash.kind} in {crash.where or 'an unknown place'}"
