"""A/A runs: how much each metric moves when nothing changes, and the smallest change that can be seen through it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import exp, sqrt
from pathlib import Path

import msgspec
import numpy as np
from scipy import special

from harness.bench.stats.design import Design
from harness.bench.stats.estimate import centre
from harness.bench.stats.fingerprint import Incomparable, differences, require_same
from harness.bench.stats.run import Run
from harness.errors import UsageError

SCHEMA = 1
FEWEST = 4
SUSPICIOUS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Noise of one metric: standard deviation of its logarithm from run to run, and the 95 % upper bound of that.

    ``smallest``: the change (share) that the gate finds with the design's power after all its pairs. ``drift``: the
    p-value of a trend over the order of the runs; a small one says that they were not equal runs.
    """

    sd: float
    sd_high: float
    smallest: float
    runs: int
    drift: float

    @property
    def drifts(self) -> bool:
        """Whether the runs have a trend, so that the noise is not noise alone."""
        return self.drift < SUSPICIOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Noise floors of one setting; ``skipped`` names the metrics that have none, and why."""

    schema: int
    fingerprint: Mapping[str, str]
    time: datetime
    floors: Mapping[str, Floor]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def floor_of(self, metric: str) -> float:
        """The standard deviation that one run has at least; 0 where none was measured."""
        return self.floors[metric].sd if metric in self.floors else 0.0

    def smallest_of(self, metric: str) -> float:
        """The smallest detectable change as a share; 0 where none is known."""
        return self.floors[metric].smallest if metric in self.floors else 0.0

    def require_fits(self, run: Run, across: Collection[str] = ()) -> None:
        """Raise Incomparable, listing what differs, where this is the noise of another setting."""
        found = differences(self.fingerprint, run.fingerprint, across)
        if found:
            listed = "".join(f"\n  {difference}" for difference in found)
            raise Incomparable(
                f"the noise floors are of another setting than run {run.id}; these differ:{listed}",
                hint="calibrate this setting",
            )

    def save(self, path: Path) -> None:
        """Write it as JSON, whole or not at all; UsageError if it cannot be written."""
        beside = path.with_name(f"{path.name}.{os.getpid()}.new")
        try:
            beside.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))
            beside.replace(path)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror}") from None

    @staticmethod
    def load(path: Path) -> Calibration:
        """Read what ``save`` wrote; UsageError naming the place that is wrong."""
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Calibration)
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be read: {error.strerror}", hint="make one with: specharness calibrate"
            ) from None
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path}: holds no noise floors: {error}", hint="calibrate again") from None
        if found.schema != SCHEMA:
            raise UsageError(
                f"{path}: saw schema {found.schema}, expected {SCHEMA}",
                hint="calibrate again with this version",
            )
        return found


def calibrate(runs: Sequence[Run], design: Design) -> Calibration:
    """Noise floors from at least four valid runs of one setting and one commit, in the order they were made."""
    valid = [run for run in runs if run.validity.comparable]
    if len(valid) < FEWEST:
        raise UsageError(
            f"calibrate: saw {len(valid)} valid runs of {len(runs)}, expected {FEWEST} at least{_invalid(runs)}",
            hint="repeat the benchmark; 10 runs know their noise to about a quarter",
        )
    require_same(valid)
    if len(commits := {run.commit for run in valid}) > 1:
        raise UsageError(f"calibrate: saw runs of {len(commits)} commits, expected one: {sorted(commits)}")
    floors, skipped = {}, {}
    for name in dict.fromkeys(name for run in valid for name in run.values):
        numbers = [run.number(name) for run in valid]
        known = np.asarray([number for number in numbers if number is not None], dtype=np.float64)
        if len(known) < len(valid):
            skipped[name] = f"not measured in {len(valid) - len(known)} of {len(valid)} runs"
        elif known.min() <= 0:
            skipped[name] = f"saw {known.min():g}, which has no logarithm"
        else:
            floors[name] = _floor(np.log(known), design)
    return Calibration(
        schema=SCHEMA,
        fingerprint=dict(valid[0].fingerprint),
        time=valid[-1].time,
        floors=floors,
        skipped=skipped,
    )


def smallest_detectable(sd: float, design: Design) -> float:
    """The change (share) found with the design's power at its last look, for runs with this standard deviation.

    Two t quantiles times the standard error of a difference of ``max_pairs`` runs each: the usual sample-size formula
    (Lachin 1981), at the level of a metric that Holm weighs last.
    """
    pairs = design.max_pairs
    df = 2 * (pairs - 2 * int(design.trim * pairs)) - 2
    level = design.alpha_at(pairs) / max(1, len(design.effects))
    reach = special.stdtrit(df, 1 - level) + special.stdtrit(df, design.power)
    return exp(float(reach) * sd * sqrt(2 / pairs)) - 1


def _invalid(runs: Sequence[Run]) -> str:
    return "".join(f"\n  run {run.id}: {run.validity}" for run in runs if not run.validity.comparable)


def _floor(logs: np.ndarray, design: Design) -> Floor:
    from scipy import stats  # takes a second to import, and only calibrations need it

    runs, sd = len(logs), centre(logs, design.trim).sd
    constant = sd < 1e-12  # a trend of equal numbers has no p-value
    return Floor(
        sd=sd,
        sd_high=sd * sqrt((runs - 1) / float(special.chdtri(runs - 1, 0.95))),
        smallest=smallest_detectable(sd, design),
        runs=runs,
        drift=1.0 if constant else float(stats.spearmanr(np.arange(runs), logs).pvalue),
    )
