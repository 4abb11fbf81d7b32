"""A cell that was measured, and judged: its figures, its answers, its client, and whether it may be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any

from harness.bench.cells import Cell, drafts_of
from harness.bench.data.ask import Ask
from harness.bench.equality import Equality
from harness.bench.load.lost import times_lost
from harness.bench.load.run import LoadResult
from harness.bench.metrics.compat import CHAT, COMPLETIONS
from harness.bench.metrics.summary import Summary, summarise
from harness.bench.plan import Plan
from harness.bench.record import Outcome, RequestRecord
from harness.bench.result import Setting, result, write_result
from harness.bench.tables import write_part, write_run
from harness.bench.validity import Validities, Validity, validate

WRONG = (Validity.INVALID_JSON, Validity.VIOLATION, Validity.ENDED_EARLY)
"""Classes of answers that a right server never gives; the length may cut any answer."""

MOST_TOLD = 300
"""Characters of what a server said when it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """``notes``: what a reader has to know besides. ``equality``: with the cell without speculation, if compared."""

    cell: Cell
    load: LoadResult
    summary: Summary
    validity: Validities | None
    notes: tuple[str, ...] = ()
    equality: Equality | None = None

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """Of the run, without its warm-up."""
        return self.load.records

    @property
    def wrong(self) -> tuple[str, ...]:
        """Why its speed means nothing, whatever the client was like."""
        reasons = list(self.summary.trust.reasons)
        if self.validity is not None:
            counts = self.validity.counts
            bad = [f"{counts[kind]} {kind.value}" for kind in WRONG if counts.get(kind)]
            reasons += [f"guided answers are wrong: {', '.join(bad)}"] if bad else []
        if self.equality is not None and self.equality.holds is False:
            differ = len(self.equality.divergences)
            reasons.append(
                f"{differ} of {self.equality.compared} greedy answers differ from those without speculation"
            )
        return tuple(reasons)

    @property
    def comparable(self) -> bool:
        """Right answers, and the server rather than the client was measured."""
        return not self.wrong and not self.load.health.is_client_bound

    @property
    def output(self) -> float | None:
        """Output tokens per second; ``None`` where it may not be compared."""
        return self.summary.throughput.output if self.comparable else None

    def beside(self, equality: Equality) -> Measured:
        """The same, with its answers compared."""
        return replace(self, equality=equality)

    def noting(self, lines: Sequence[str]) -> Measured:
        """The same with more to say."""
        return replace(self, notes=(*self.notes, *lines))


def judged(cell: Cell, asks: Sequence[Ask], load: LoadResult, folder: Path) -> Measured:
    """Everything that follows from a cell's records."""
    guides = {ask.guide.name: ask.guide for ask in asks if ask.guide is not None}
    validity = validate(load.records, guides.values()) if guides else None
    drafts, note = drafts_of(folder)
    summary = summarise(
        load.records, speculation=drafts, invalid=validity.invalid if validity is not None else None
    )
    failed = next((r for r in load.records if r.outcome is not Outcome.COMPLETE and r.detail), None)
    first = "" if failed is None else f"first failure, {failed.id}: {failed.detail[:MOST_TOLD]}"
    times, again = times_lost(folder)
    gone = (
        f"the server was lost {times} x, and {again} requests were asked again: lost-*.jsonl" if times else ""
    )
    notes = tuple(filter(None, [gone, note, first]))
    return Measured(cell=cell, load=load, summary=summary, validity=validity, notes=notes)


def kept(
    measured: Measured,
    plan: Plan,
    folder: Path,
    *,
    model: str,
    tokenizer: str,
    fingerprint: Mapping[str, str],
    revision: Mapping[str, Any] | None = None,
    time: datetime | None = None,
    night: str | None = None,
) -> dict[str, Any]:
    """Write ``result-CELL.json`` and the cell's tables; returns the result.

    ``revision``: commit and dirty; ``time``: local, now where not given; ``night``: ISO 8601 with its zone, the same of
    all cells of a run, whatever midnight or hand turned the clock between them.
    """
    found = result(
        Setting(
            model_id=model,
            tokenizer_id=tokenizer,
            backend="openai-chat" if plan.as_chat else "openai",
            label=measured.cell.name,
            num_prompts=plan.workload.requests,
            max_concurrency=plan.workload.concurrency if plan.rate is None else plan.most_in_flight,
            request_rate=inf if plan.rate is None else plan.rate,
            date=time,
        ),
        measured.records,
        measured.summary,
        dialect=CHAT if plan.as_chat else COMPLETIONS,
        validity=measured.validity,
        equality=measured.equality,
        extra={
            "cell": measured.cell.name,
            "plan": plan.as_dict(),
            "fingerprint": dict(fingerprint),
            "commit": revision and revision["commit"],
            "dirty": revision and revision["dirty"],
            "time": night,
            "valid": not measured.wrong,
            "invalid_because": list(measured.wrong),
            "notes": list(measured.notes),
            "transport": measured.load.transport,
            "health": json.loads(json.dumps(asdict(measured.load.health)))
            | {"client_bound": measured.load.health.is_client_bound},
        },
    )
    write_result(found, folder / f"result-{measured.cell.name}.json")
    write_part(folder / "tables", measured.cell.name, 0, measured.records)
    write_run(folder / "tables", measured.cell.name, found)
    return found
