"""Cells take turns: a slow minute of the machine is in all of them, and in their intervals."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from cases.selfcheck.serving import MODEL, serving
from harness.bench.cells import OFF, cells_of, drafts_of, early_shares, measure
from harness.bench.data.drawn import Lengths
from harness.bench.data.vocabulary import Vocabulary
from harness.bench.metrics.counters import acceptance_of, between, counters
from harness.bench.plan import USUAL, Plan
from harness.bench.served import Served


def test_cells_take_turns_and_none_is_always_first() -> None:
    cells = cells_of([OFF, "mtp"])
    asked = list(early_shares(cells, 4))
    assert [share for _, share in asked] == [Fraction(1, 4)] * 4 + [Fraction(2, 4)] * 4 + [Fraction(3, 4)] * 4
    turns = [tuple(cell for cell, _ in asked[at : at + 4]) for at in (0, 4, 8)]
    assert turns == [cells[::-1], cells, cells[::-1]]  # and forwards for the last share
    assert not list(early_shares(cells, 1))


@pytest.mark.parametrize(
    ("requests", "concurrency", "turns"), [(48, 4, 4), (16, 4, 2), (12, 4, 1), (3, 4, 1), (1000, 8, 4)]
)
def test_a_share_holds_twice_the_requests_that_run_at_a_time(
    requests: int, concurrency: int, turns: int
) -> None:
    plan = Plan(workload=replace(USUAL, requests=requests, concurrency=concurrency))
    assert plan.turns == turns
    assert replace(plan, rate=5.0).turns == 1  # arrivals of an open loop have their times


def test_a_cell_is_asked_in_shares_and_nothing_twice(peaked: Path, tmp_path: Path) -> None:
    plan = Plan(workload=replace(USUAL, requests=6, concurrency=2, lengths=Lengths(prompt=8, output=4)))
    asks = plan.asks(Vocabulary(peaked), guided=False)
    with serving(peaked) as server:
        served = Served(url=server.url, model=MODEL)
        first = measure(plan, asks, served, tmp_path, until=3)
        assert [record.id for record in sorted(first.records, key=lambda r: r.id)] == [
            ask.id for ask in asks[:3]
        ]
        assert measure(plan, asks, served, tmp_path, until=3).records == first.records
        whole = measure(plan, asks, served, tmp_path)
    assert len(whole.records) == 6
    assert all(record in whole.records for record in first.records)
    assert whole.health.parts == 2
    assert max(record.closed for record in first.records) < min(
        record.sent for record in whole.records if record not in first.records
    )
    found, note = drafts_of(tmp_path)
    spans = [
        between(
            *(counters((tmp_path / f"metrics-{part}-{when}.txt").read_text()) for when in ("before", "after"))
        )
        for part in (0, 1)
    ]
    assert (found, note) == (acceptance_of(spans), "")
