"""How well an open schedule is kept: ``python cases/bench/dispatch.py``.

One-token replies from a server on another core, Poisson arrivals at a few rates; of several rounds the best is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from clients import calls_for
from load_cost import prioritise

from harness.bench.load.arrivals import poisson
from harness.bench.load.run import LoadPlan, LoadResult, run_load
from harness.bench.load.shape import Open
from harness.bench.load.transport import Endpoint
from harness.bench.record import Outcome

HERE = Path(__file__).parent


def main() -> int:
    """Measure each rate, print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[50.0, 500.0, 1500.0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, nargs=2, default=(0, 1), metavar=("SERVER", "CLIENT"))
    parser.add_argument(
        "--priority", type=int, help="niceness of both, below 0 as root: on a machine that is shared"
    )
    told = parser.parse_args()
    prioritise(told.priority)
    print("| offered/s | achieved/s | dispatch lag P99 ms | client CPU | failed |\n|---|---|---|---|---|")
    table = {rate: min((measure(rate, told) for _ in range(told.rounds)), key=_lag) for rate in told.rates}
    for row in table.values():
        print(
            f"| {row['offered']:.1f} | {row['achieved']:.1f} | {row['dispatch_lag_p99_ms']:.2f} "
            f"| {row['cpu_share']:.0%} | {row['failed']} |"
        )
    failed = sum(row["failed"] for row in table.values())
    print(json.dumps({"verb": "dispatch", "table": table, "exit": int(bool(failed))}))
    return int(bool(failed))


def measure(rate: float, told: argparse.Namespace) -> dict[str, Any]:
    """One rate against a fresh server."""
    times = poisson(rate, int(rate * told.seconds), np.random.default_rng(0))
    server = subprocess.Popen(
        [sys.executable, str(HERE / "ticking.py"), str(told.cores[0])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.sched_setaffinity(0, {told.cores[1]})
    try:
        assert server.stdout is not None
        plan = LoadPlan(
            endpoint=Endpoint(url=f"http://127.0.0.1:{int(server.stdout.readline())}"),
            calls=tuple(calls_for([1] * len(times))),
            shape=Open(times=times),
        )
        with TemporaryDirectory() as folder:
            return figures(run_load(plan, Path(folder)))
    finally:
        server.kill()
        server.wait()


def figures(result: LoadResult) -> dict[str, Any]:
    """Milliseconds, requests per second."""
    health, records = result.health, result.records
    return {
        "offered": health.offered_rate,
        "achieved": health.achieved_rate,
        "dispatch_lag_p99_ms": (health.dispatch_lag_p99 or 0.0) * 1e3,
        "cpu_share": health.cpu_share,
        "failed": sum(record.outcome is not Outcome.COMPLETE for record in records),
    }


def _lag(row: dict[str, Any]) -> float:
    return float(row["dispatch_lag_p99_ms"])


if __name__ == "__main__":
    sys.exit(main())
