"""What the engine's layout changes in a case: reports are about states in slots, and some faults exist there alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from harness.cases import REFERENCE_VARIANT, Case
from harness.engine.faults import faults
from harness.errors import Unsupported
from harness.scenario import Scenario


def variants_in(layout: str, case: Case) -> tuple[str, ...]:
    """A case's variants that can act in this layout; Unsupported where none but the correct one is left."""
    elsewhere = {fault.name for fault in faults().values() if fault.layout not in (None, layout)}
    left = tuple(name for name in case.variants if name not in elsewhere)
    if left == (REFERENCE_VARIANT,) != case.variants:
        raise Unsupported(
            f"{case.ref}: {', '.join(elsewhere.intersection(case.variants))} cannot act in layout {layout}",
            hint="leave --layout out",
        )
    return left


def require_in(layout: str, variants: Iterable[str]) -> None:
    """Unsupported where a variant that was asked for by name is a fault of another layout: it could not be found."""
    for name in variants:
        fault = faults().get(name)
        if fault is not None and fault.layout not in (None, layout):
            raise Unsupported(
                f"{name} cannot act in layout {layout}, only in {fault.layout}",
                hint=f"--layout {fault.layout}",
            )


def scenario_in(layout: str, scenario: Scenario) -> Scenario:
    """A scenario as far as it holds in this layout.

    A row that leaves the speculative path loses nothing in layout ``slots`` if one token was accepted before it; in
    layout ``replay`` it loses that token. So only the correct engine must pass what a faulty one passes there.
    """
    return scenario if layout == "slots" else replace(scenario, passes=())
