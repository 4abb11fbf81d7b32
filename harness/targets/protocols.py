"""What a target is: something that runs a scenario and leaves a trace.

A target says what it can do; a case says what it needs; the gap is UNSUPPORTED with the reason.
"""

from __future__ import annotations

import enum
from typing import Protocol

from harness.scenario import Scenario
from harness.trace import Trace


class Capability(enum.Enum):
    """What a case can ask of a target."""

    SCRIPT = "scripted steps"
    STATE = "recurrent and convolution state"
    LOGITS = "logits of every position"
    TOKENS = "tokens"
    PADDING = "padded batches"


class EngineTarget(Protocol):
    """A target that runs in this process or in a child of it."""

    @property
    def name(self) -> str:
        """How reports call it, its variant included."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do."""
        ...

    @property
    def setting(self) -> dict[str, str]:
        """What was chosen automatically, with the reason: printed, and kept with the run."""
        ...

    def run(self, scenario: Scenario, *, reverse_rows: bool = False) -> Trace:
        """Run to the end. A death of the suspect is a ``Crash`` in the trace, not an exception.

        ``reverse_rows`` composes every batch in the opposite order; it must change nothing but rounding.
        """
        ...
