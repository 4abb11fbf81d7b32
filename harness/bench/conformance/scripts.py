"""Every script. Sources: bench.md d.6 and traps 1, 2, 3, 9, 11, 13 and 15, with their neighbours."""

from __future__ import annotations

from harness.bench.conformance.broken import broken
from harness.bench.conformance.framed import framed
from harness.bench.conformance.of_chat import of_chat
from harness.bench.conformance.script import Script
from harness.bench.conformance.whole import whole


def every_script() -> dict[tuple[str, str], Script]:
    """By name and path."""
    told = [
        *whole(False),
        *whole(True),
        *framed(False),
        *framed(True),
        *broken(False),
        *broken(True),
        *of_chat(),
    ]
    return {(each.name, each.path): each for each in told}
