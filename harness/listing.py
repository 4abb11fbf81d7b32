"""``specharness list``: what exists, by name."""

from __future__ import annotations

import argparse
from itertools import groupby
from typing import Any

from rich.console import Console

from harness.cases import find_root, load_cases
from harness.console import console_of

GROUPS = {
    "A": "verify rows of unequal length",
    "B": "the state of a request that changes its path",
    "C": "batches that mix kinds of rows",
    "D": "padding, idle ranks, numbers of drafts that change",
    "E": "accepted counts, placeholders, preemption",
    "F": "grammars",
    "G": "prefix caching",
    "H": "numbers that are not quite right",
    "S": "ends inside an accepted run",
}
"""Groups of the catalogue by their letters."""


def listing(args: argparse.Namespace) -> dict[str, Any]:
    """List issues, faults, variants or events."""
    console = console_of(args)
    if args.what == "faults":
        return _faults(console)
    if args.what == "issues":
        cases = sorted(load_cases(args.cases or find_root()), key=lambda case: case.ref.casefold())
        found = {case.ref: case.title for case in cases}
    elif args.what == "variants":
        from harness.engine.variants import VARIANTS

        found = {name: policy.story for name, policy in VARIANTS.items()}
    else:
        from harness.check.observe import EVENTS

        found = dict.fromkeys(EVENTS, "may be demanded by must_observe")
    width = max(map(len, found), default=0)
    for name, text in found.items():
        console.print(f"{name:<{width}}  {text}", soft_wrap=True, highlight=False)
    return {"verb": "list", args.what: list(found), "exit": 0}


def _faults(console: Console) -> dict[str, Any]:
    """Faults by group, then the rows of the catalogue of which none was made."""
    from harness.engine.faults import faults
    from harness.engine.faults.not_injected import NOT_INJECTED

    found = faults()
    for letter, group in groupby(found.values(), key=lambda fault: fault.group):
        console.print(f"\n{letter}: {GROUPS[letter]}", style="bold", highlight=False)
        for fault in group:
            refs = ", ".join(fault.refs)
            console.print(f"{fault.row:<4} {fault.name}  ({refs})", soft_wrap=True, highlight=False)
            console.print(f"     {fault.story}", soft_wrap=True, highlight=False)
    console.print("\nRows of the catalogue that are no fault here", style="bold", highlight=False)
    for row, reason in NOT_INJECTED.items():
        console.print(f"{row:<4} {reason}", soft_wrap=True, highlight=False)
    return {"verb": "list", "faults": list(found), "not_injected": NOT_INJECTED, "exit": 0}
