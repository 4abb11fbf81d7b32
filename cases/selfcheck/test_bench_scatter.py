"""How far a ratio of two cells is known: right as often as it says, and silent about a handful of requests."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest

from cases.selfcheck.benching import said, scaled
from harness.bench.metrics.crossed import RATIOS, Crossed
from harness.bench.metrics.scatter import half_width
from harness.bench.record import Outcome, RequestRecord
from harness.bench.screen import ratios

SIGNS = {"on": 1, "off": -1}


def cell(rng: np.random.Generator, count: int, at_a_time: int, *, faster: float = 1.0) -> list[RequestRecord]:
    """Requests of which those that run together are slow together."""
    together = np.repeat(rng.normal(0, 0.1, -(-count // at_a_time)), at_a_time)[:count]
    alone = rng.normal(0, 0.05, count)
    one = said([10 * at for at in range(1, 9)])
    return [
        replace(scaled(one, float(np.exp(slow)) / faster), id=f"r{place:03d}")
        for place, slow in enumerate(together + alone)
    ]


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng, tries = np.random.default_rng(5), 150
    held = 0
    for _ in range(tries):
        cells = {"on": cell(rng, 24, 4, faster=1.5), "off": cell(rng, 24, 4)}
        rates = {name: sum(8 for _ in some) / sum(one.closed for one in some) for name, some in cells.items()}
        half = half_width(cells, SIGNS, at_a_time=4)
        assert half is not None
        held += abs(log(rates["on"] / rates["off"]) - log(1.5)) <= half
    assert 0.91 <= held / tries <= 0.99


def test_too_few_requests_have_no_interval() -> None:
    rng = np.random.default_rng(0)
    for count, known in ((15, False), (16, True), (12, False)):
        cells = {"on": cell(rng, count, 4), "off": cell(rng, count, 4)}
        assert (half_width(cells, SIGNS, at_a_time=4) is not None) is known
    assert half_width({"on": cell(rng, 48, 4)}, SIGNS, at_a_time=4) is None
    failed = [replace(one, outcome=Outcome.CUT) for one in cell(rng, 48, 4)]
    assert half_width({"on": cell(rng, 48, 4), "off": failed}, SIGNS, at_a_time=4) is None


@pytest.mark.parametrize(
    ("half", "free", "kept"),
    [
        (None, "2.00 x (too few requests", None),
        (0.1, "2.00 x (1.81 to 2.21)", 0.5),
        (1.0, "2.00 x (0.74 to 5.44, no difference shown)", None),
    ],
)
def test_a_ratio_is_told_with_how_far_it_is_known(half: float | None, free: str, kept: float | None) -> None:
    found = Crossed(
        free_off=100, free_on=200, guided_off=100, guided_on=150, halves=dict.fromkeys(RATIOS, half)
    )
    told = "\n".join(ratios(found))
    assert f"free:    {free}" in told
    assert found.kept == kept
    assert ("survives" in told) is (kept is not None)
    assert ("is not shown, so nor" in told) is (kept is None)
