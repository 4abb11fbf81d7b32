"""specharness: recreate, catch and name speculative-decoding faults of hybrid models.

What a case file needs, and what a program needs to run one; names load when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.cases import issue as issue
    from harness.errors import HarnessError as HarnessError
    from harness.lab import Lab as Lab
    from harness.lab import Plan as Plan
    from harness.run import Judge as Judge
    from harness.scenario import Documented as Documented
    from harness.scenario import Event as Event
    from harness.scenario import Grammar as Grammar
    from harness.scenario import Request as Request
    from harness.scenario import Sampling as Sampling
    from harness.scenario import Scenario as Scenario
    from harness.scenario import Turn as Turn
    from harness.targets.protocols import Capability as Capability
    from harness.trace import Trace as Trace
    from harness.verdict import Verdict as Verdict

__version__ = "0.1.0"

_HOME = {
    "Capability": "targets.protocols",
    "Documented": "scenario",
    "Event": "scenario",
    "Grammar": "scenario",
    "HarnessError": "errors",
    "Judge": "run",
    "Lab": "lab",
    "Plan": "lab",
    "Request": "scenario",
    "Sampling": "scenario",
    "Scenario": "scenario",
    "Trace": "trace",
    "Turn": "scenario",
    "Verdict": "verdict",
    "issue": "cases",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'harness' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"harness.{_HOME[name]}"), name)
