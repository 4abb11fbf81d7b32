"""``bench --compare A,B,C``: what a fix costs. Variants in turn, so that a slow minute is everybody's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from harness.bench.cells import KINDS, OFF, Cell
from harness.bench.costs import Cost, cost
from harness.bench.measured import Measured
from harness.bench.screen import SYNTHETIC, table
from harness.bench.served import Served
from harness.bench.stats.of_result import run_of
from harness.bench.stats.run import Run
from harness.bench_asked import server_arguments
from harness.bench_pages import write_pages
from harness.bench_serving import own
from harness.bench_session import Session

RIGHT = "fixed"
"""Whose answers without speculation are everybody's."""
CONCLUSIONS = {
    0: "the price of {} is known",
    1: "{} is wrong, and what is wrong has no price",
    125: "the price of {} is not known well enough",
}


def compare(session: Session) -> dict[str, Any]:
    """Every variant as often as ``--rounds``; speed is told only of those whose answers are right."""
    variants, rounds = session.args.compare, session.args.rounds
    with ExitStack() as stack:
        servers = {
            variant: stack.enter_context(_server(session, variant, session.args.spec)) for variant in variants
        }
        with _server(session, RIGHT, OFF) as plain:
            right = {
                guided: session.measure(Cell(speculation=OFF, guided=guided), plain)[0] for guided in KINDS
            }
        runs: dict[tuple[str, bool], list[Run]] = {}
        for guided in KINDS:  # all free ones first: a variant may die of its first grammar
            for number in range(rounds):
                order = variants if number % 2 == 0 else tuple(reversed(variants))
                for variant in order:
                    found, run = _run(session, variant, guided, number, servers[variant], right[guided])
                    runs.setdefault((variant, guided), []).append(run)
                    session.say(f"{found.cell.title}: {_in_short(found)}")
    costs = [
        cost(runs[old, guided], runs[variants[-1], guided], old=old, new=variants[-1], guided=guided)
        for old in variants[:-1]
        for guided in KINDS
    ]
    return _told(session, right, costs)


def _server(session: Session, variant: str, speculation: str) -> Any:
    arguments = server_arguments(session.args, session.plan, speculation, variant)
    return own(session.run_dir, f"{variant}-{speculation}", arguments)


def _run(
    session: Session, variant: str, guided: bool, number: int, served: Served, plain: Measured
) -> tuple[Measured, Run]:
    cell = Cell(speculation=session.args.spec, guided=guided, variant=variant, number=number)
    found, result = session.measure(cell, served, plain=plain)
    run = run_of(
        result,
        fingerprint=result["specharness"]["fingerprint"],
        commit=variant,
        time=datetime.now(UTC),
        series="compare",
        client_bound="; ".join(found.load.health.because),
    )
    return found, run


def _in_short(found: Measured) -> str:
    if found.wrong:
        return f"WRONG: {'; '.join((*found.wrong, *found.notes[:1]))}"
    if found.load.health.is_client_bound:
        return f"client-bound: {'; '.join(found.load.health.because)}"
    return f"right, {found.summary.throughput.output or 0:.1f} tok/s"


def _told(session: Session, right: dict[bool, Measured], costs: Sequence[Cost]) -> dict[str, Any]:
    session.say("")
    session.console.print(table(list(right.values()), f"without speculation; {SYNTHETIC}"))
    session.console.print(_table(costs))
    for one in costs:
        session.say(str(one))
    codes = {one.exit_code for one in costs}
    code = 1 if 1 in codes else max(codes)
    result = {"compared": [one.as_dict() for one in costs], "synthetic": True}
    session.run_dir.run["result"] = result
    session.run_dir.save()
    write_pages(session, CONCLUSIONS[code].format(session.args.compare[-1]), code, costs=costs)
    session.say(f"results: {session.run_dir.path}")
    return {"verb": "bench", **result, "run_dir": str(session.run_dir.path), "exit": code}


def _table(costs: Sequence[Cost]) -> Table:
    grid = Table(title="what the fix costs", title_justify="left")
    for head in ("requests", "from", "to", "metric", "before", "after", "worse by", "95 % interval", "call"):
        grid.add_column(head)
    for one in costs:
        for row in one.rows:
            grid.add_row("guided" if one.guided else "free", one.old, one.new, *row)
    return grid
