"""What a benchmark says on the screen: blocks, the client's certificate, and the two by two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from harness.bench.block import ABSENT, block
from harness.bench.cells import KINDS
from harness.bench.load.health import Health
from harness.bench.measured import Measured
from harness.bench.metrics.crossed import RATIOS, Crossed
from harness.bench.metrics.scatter import half_width
from harness.bench.own_block import own_block

SYNTHETIC = "figures of a synthetic model on this machine: ratios of this engine, not of yours"


def blocks(found: Measured, result: Mapping[str, Any], style: str) -> Iterator[str]:
    """A cell: the block of `vllm bench serve`, ours, and whether the client may be trusted."""
    yield f"\n{found.cell.title}"
    yield block(result, style)
    yield own_block(found.summary, found.validity, found.equality)
    yield from (f"note: {line}" for line in found.notes)
    yield from (f"WRONG: {line}" for line in found.wrong if line not in found.summary.trust.reasons)
    yield from certificate(found.load.health)


def certificate(health: Health) -> Iterator[str]:
    """What the client measured of itself, and what follows."""
    figures = (
        ("loop lag P99", health.loop_lag_p99, 1e3, "ms"),
        ("dispatch lag P99", health.dispatch_lag_p99, 1e3, "ms"),
        ("chunks in one read with others", health.coalesced_share, 100, "%"),
        ("CPU", health.cpu_share, 100, "% of a core"),
        ("longest GC pause", health.gc_pause_max, 1e3, "ms"),
        ("sent", health.achieved_rate, 1, "req/s"),
    )
    told = [f"{name} {value * by:.3g} {unit}" for name, value, by, unit in figures if value is not None]
    yield f"client: {', '.join(told)}"
    if health.is_client_bound:
        yield f"CLIENT-BOUND, do not compare: {'; '.join(health.because)}"
    else:
        yield "client: healthy, these are the server's figures"


def crossed(cells: Sequence[Measured], off: str, on: str, at_a_time: int | None = None) -> Crossed:
    """Output rates of the four cells; what may not be compared is ``None``.

    ``at_a_time``: requests that run together, for the intervals; left out: there are none.
    """
    rates = {(one.cell.speculation, one.cell.guided): one.output for one in cells}
    names = {
        (drafts, guided): f"{_kind(guided)}_{way}"
        for drafts, way in ((off, "off"), (on, "on"))
        for guided in KINDS
    }
    records = {
        names[one.cell.speculation, one.cell.guided]: one.records
        for one in cells
        if one.comparable and (one.cell.speculation, one.cell.guided) in names
    }
    halves = None
    if at_a_time is not None:
        halves = {name: half_width(records, signs, at_a_time=at_a_time) for name, signs in RATIOS.items()}
    return Crossed(
        halves=halves,
        free_off=rates.get((off, False)),
        free_on=rates.get((on, False)),
        guided_off=rates.get((off, True)),
        guided_on=rates.get((on, True)),
    )


COLUMNS = (
    "cell",
    "output tok/s",
    "TPOT ms",
    "TTFT P50 ms",
    "tokens per step",
    "accepted",
    "valid",
    "equal",
    "may be compared",
)
"""Heads of the table of cells, wherever it stands; ``figures`` are those between the first and the last."""


def figures(one: Measured) -> tuple[str | None, ...]:
    """A cell in figures, as ``COLUMNS`` has them; a wrong one has no speed, and ``None`` is not measured."""
    drafts, same, right = one.summary.acceptance, one.equality, not one.wrong
    tpot, ttft = one.summary.clocks["tpot"], one.summary.clocks["ttft"]
    return (
        _shown(one.summary.throughput.output if right else None, ".1f"),
        _shown(tpot.mean * 1e3 if tpot and right else None, ".2f"),
        _shown(ttft.median * 1e3 if ttft and right else None, ".1f"),
        _shown(drafts.length if drafts else None, ".2f"),
        _shown(drafts.rate if drafts else None, ".1%"),
        _shown(one.validity.valid_share if one.validity else None, ".0%"),
        f"{same.equal} of {same.compared}" if same else None,
    )


def may_be_compared(one: Measured) -> str:
    """``yes``, or why not."""
    return "yes" if one.comparable else "no: wrong" if one.wrong else "no: client-bound"


def table(cells: Sequence[Measured], title: str) -> Table:
    """A row for each cell."""
    grid = Table(title=title, title_justify="left")
    for place, head in enumerate(COLUMNS):
        grid.add_column(head, justify="right" if place else "left")
    for one in cells:
        told = (ABSENT if value is None else value for value in figures(one))
        grid.add_row(one.cell.title, *told, may_be_compared(one))
    return grid


def ratios(found: Crossed) -> Iterator[str]:
    """The speed-ups, how far they are known, and how much of one survives the grammar."""
    yield f"speculation on / off, free:    {_times(found, 'speedup_free')}"
    yield f"speculation on / off, guided:  {_times(found, 'speedup_guided')}"
    yield f"interaction (guided / free):   {_times(found, 'interaction')}"
    if found.kept is not None and found.kept >= 0:
        yield f"of the gain in speed {found.kept:.0%} survives the grammar"
    elif found.kept is not None:
        yield "none of the gain in speed survives the grammar: with it, speculation costs"
    elif found.speedup_free is not None and not found.is_shown("speedup_free"):
        yield "whether speculation gains anything without a grammar is not shown, so nor what is kept of it"
    elif found.speedup_free is not None and found.speedup_free <= 1:
        yield "speculation gains nothing without a grammar here, so there is no gain to keep"
    yield (
        f"what a grammar leaves of the rate: {_times(found, 'cost_off')} without speculation, "
        f"{_times(found, 'cost_on')} with it"
    )
    if found.halves is not None:
        yield (
            "intervals: 95 %, of these requests; cells of a closed loop take turns, and what slowed one of them alone "
            "is in none: see --compare"
        )


def _times(found: Crossed, name: str) -> str:
    ratio = getattr(found, name)
    if ratio is None:
        return "n/a: a cell may not be compared"
    return f"{ratio:.2f} x{known(found, name)}"


def known(found: Crossed, name: str) -> str:
    """How far a ratio is, in brackets; nothing where nobody asked."""
    if found.halves is None:
        return ""
    if (interval := found.interval(name)) is None:
        return " (too few requests to say how far: four times those at a time are needed)"
    low, high = interval
    return f" ({low:.2f} to {high:.2f}{'' if found.is_shown(name) else ', no difference shown'})"


def _kind(guided: bool) -> str:
    return "guided" if guided else "free"


def _shown(value: float | None, how: str) -> str | None:
    return None if value is None else format(value, how)
