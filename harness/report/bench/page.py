"""A benchmark as one self-contained page: what may be believed first, then how fast it was, then single requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.bench.screen import SYNTHETIC, certificate
from harness.report.bench.acceptance import by_position, by_schema
from harness.report.bench.answers import exchanges
from harness.report.bench.benchmark import Benchmark, problems, warnings
from harness.report.bench.busy import against_concurrency
from harness.report.bench.distributions import distributions
from harness.report.bench.forest import forest, of_costs
from harness.report.bench.groups import right
from harness.report.bench.tiles import HEAD, rows, tiles
from harness.report.bench.timeline import timelines
from harness.report.bench.trend import trend
from harness.report.figure import Figure
from harness.report.html import template

STYLES = {0: "pass", 1: "fail", 125: "open"}
PEOPLE = {"base_url": "server", "spec": "drafter", "k": "drafts per step", "loop_lag": "allowed loop lag, ms"}
SHORT = ("load of each cell", "tokens", "started")
"""Of the setting, under the title."""
MOST_TIMELINES = 8
"""A run that compares variants has dozens of cells; each has its records."""


def page(found: Benchmark, folder: Path) -> str:
    """``folder``: of the run; texts that are cut go there whole."""
    groups, setting = right(found.cells), dict(settings(found.run))
    return template("bench.html").render(
        name=found.name,
        found=found,
        conclusion=(found.verdict[:1].upper() + found.verdict[1:], STYLES.get(found.code, "open")),
        synthetic=SYNTHETIC if not found.run.get("setting", {}).get("base_url") else "",
        tiles=list(tiles(found.cells, found.crossed)),
        head=HEAD,
        rows=list(rows(found.cells)),
        costs=found.costs,
        comparison=forest("What the fix costs", of_costs(found.costs)),
        problems=list(problems(found.cells)),
        warnings=list(warnings(found.cells)),
        speeds=_drawn([*distributions(groups), against_concurrency(groups)]),
        drafts=_drawn([by_position(groups), by_schema(groups)]),
        left_out=[one.cell.title for one in found.cells if one.wrong],
        trends=_drawn([trend(one, f"{title}: {one.metric}", wide=False) for title, one in found.trends]),
        timelines=list(timelines(found.cells[:MOST_TIMELINES])),
        exchanges=list(exchanges(found.cells, found.prompt, folder)),
        clients=[(one.cell.title, list(certificate(one.load.health))) for one in found.cells],
        setting=setting,
        short=[setting[key] for key in SHORT if key in setting],
        files=sorted(path.name for path in folder.glob("result-*.json")),
    )


def settings(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What ran, in words."""
    plan = run.get("plan", {})
    load, lengths = plan.get("workload", {}), plan.get("workload", {}).get("lengths", {})
    yield "started", str(run.get("started", "not said")).replace("T", " ")
    if load:
        paced = f"{plan['rate']:g} a second" if plan.get("rate") else f"{load.get('concurrency')} at a time"
        yield "load of each cell", f"{load.get('requests')} requests, {paced}"
        yield "tokens", f"{lengths.get('prompt')} tokens in, at most {lengths.get('output')} out"
        yield "seed", str(plan.get("seed"))
        yield "endpoint", "chat" if plan.get("as_chat") else "completions, with token ids"
    for name, told in run.get("served", {}).items():
        yield f"model, {name}", f"{told.get('model')} at {told.get('url')}"
    for key, value in run.get("setting", {}).items():
        if value not in (None, "", [], (), False):
            yield (
                PEOPLE.get(key, key.replace("_", " ")),
                ", ".join(value) if isinstance(value, list) else str(value),
            )


def _drawn(figures: Sequence[Figure | None]) -> list[Figure]:
    return [one for one in figures if one is not None]
