"""What a benchmark says on the screen: blocks, the client's certificate, and the two by two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from harness.bench.block import ABSENT, block
from harness.bench.load.health import Health
from harness.bench.measured import Measured
from harness.bench.metrics.crossed import Crossed
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


def crossed(cells: Sequence[Measured], off: str, on: str) -> Crossed:
    """Output rates of the four cells; what may not be compared is ``None``."""
    rates = {(one.cell.speculation, one.cell.guided): one.output for one in cells}
    return Crossed(
        free_off=rates.get((off, False)),
        free_on=rates.get((on, False)),
        guided_off=rates.get((off, True)),
        guided_on=rates.get((on, True)),
    )


def table(cells: Sequence[Measured], title: str) -> Table:
    """A row for each cell; a wrong one has no speed."""
    grid = Table(title=title, title_justify="left")
    grid.add_column("cell")
    for head in (
        "output tok/s",
        "TPOT ms",
        "TTFT P50 ms",
        "tokens per step",
        "accepted",
        "valid",
        "equal",
        "may be compared",
    ):
        grid.add_column(head, justify="right")
    for one in cells:
        drafts, rate = one.summary.acceptance, one.summary.throughput.output
        tpot, ttft = one.summary.clocks["tpot"], one.summary.clocks["ttft"]
        if one.wrong:
            tpot = ttft = rate = None
        same = one.equality
        grid.add_row(
            one.cell.title,
            _shown(rate, ".1f"),
            _shown(tpot.mean * 1e3 if tpot else None, ".2f"),
            _shown(ttft.median * 1e3 if ttft else None, ".1f"),
            _shown(drafts.length if drafts else None, ".2f"),
            _shown(drafts.rate if drafts else None, ".1%"),
            _shown(one.validity.valid_share if one.validity else None, ".0%"),
            f"{same.equal} of {same.compared}" if same else "",
            "yes" if one.comparable else "no: wrong" if one.wrong else "no: client-bound",
        )
    return grid


def ratios(found: Crossed) -> Iterator[str]:
    """The speed-ups, and how much of one survives the grammar."""
    yield f"speculation on / off, free:    {_times(found.speedup_free)}"
    yield f"speculation on / off, guided:  {_times(found.speedup_guided)}"
    yield f"interaction (guided / free):   {_times(found.interaction)}"
    if found.kept is not None and found.kept >= 0:
        yield f"of the gain in speed {found.kept:.0%} survives the grammar"
    elif found.kept is not None:
        yield "none of the gain in speed survives the grammar: with it, speculation costs"
    elif found.speedup_free is not None and found.speedup_free <= 1:
        yield "speculation gains nothing without a grammar here, so there is no gain to keep"
    yield (
        f"what a grammar leaves of the rate: {_times(found.cost_off)} without speculation, "
        f"{_times(found.cost_on)} with it"
    )


def _times(ratio: float | None) -> str:
    return "n/a: a cell may not be compared" if ratio is None else f"{ratio:.2f} x"


def _shown(value: float | None, how: str) -> str:
    return ABSENT if value is None else format(value, how)
