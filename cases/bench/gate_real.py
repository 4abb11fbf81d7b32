"""A/A on the embedded server: the gate, ten times, where nothing changed; and once where the server does more work.

    python -m cases.bench.gate_real --gates 10

Baseline and candidate are two processes of the same server with the same arguments, measured in turn. Where there are
two cores the servers have one (only one of them is asked at a time) and the client has the other: moving from core to
core makes noise. A run takes 3 to 4 seconds on idle cores, a gate 4 pairs of runs at least (half a minute), 16 at most.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from harness.bench.load.call import Call, completion, warm_up_calls
from harness.bench.load.health import Bounds
from harness.bench.load.run import LoadPlan, run_load
from harness.bench.load.shape import Closed
from harness.bench.load.transport import Endpoint
from harness.bench.metrics.summary import summarise
from harness.bench.result import Setting, result
from harness.bench.stats.calibrate import calibrate
from harness.bench.stats.design import Design
from harness.bench.stats.gate import gate
from harness.bench.stats.judge import Call as Verdict
from harness.bench.stats.of_result import GATED, run_of
from harness.bench.stats.run import Run
from harness.live.own_server import OwnServer, own_server

CONCURRENCY = 4


def measured(server: OwnServer, calls: list[Call], number: int, folder: Path, loop_lag: float) -> Run:
    """One run of the workload against a server, after a warm-up of its own shapes."""
    plan = LoadPlan(
        endpoint=Endpoint(url=server.url),
        calls=tuple(calls),
        shape=Closed(concurrency=CONCURRENCY),
        warm_up=tuple(warm_up_calls(calls, CONCURRENCY, random.Random(number))),
    )
    load = run_load(plan, folder / f"run-{number}", bounds=Bounds(loop_lag_p99=loop_lag))
    found = result(Setting(model_id=server.model), load.records, summarise(load.records))
    return run_of(
        found,
        fingerprint={"server": "embedded", "model": server.model},
        commit="0" * 40,
        time=datetime.now(UTC),
        series="compare",
        client_bound="; ".join(load.health.because),
    )


def apart(*servers: OwnServer) -> None:
    """Servers on one core, this client on another; nothing where there is only one, or the system has no such call."""
    if not hasattr(os, "sched_setaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        return
    for server in servers:
        for task in Path(f"/proc/{server.process.pid}/task").iterdir():  # a process is moved thread by thread
            os.sched_setaffinity(int(task.name), {cores[0]})
    os.sched_setaffinity(0, {cores[-1]})


def workload(model: str, requests: int, tokens: int) -> list[Call]:
    """Random token ids, the same in every run."""
    rng = random.Random(1)
    return [
        completion(
            str(at),
            model,
            [rng.randrange(10, 250) for _ in range(32)],
            tokens,
            temperature=0,
            ignore_eos=True,
        )
        for at in range(requests)
    ]


def pairs(baseline: Callable[[], Run], candidate: Callable[[], Run]) -> Callable[[bool], tuple[Run, Run]]:
    """The gate's callback."""

    def pair(baseline_first: bool) -> tuple[Run, Run]:
        if baseline_first:
            left = baseline()
            return left, candidate()
        right = candidate()
        return baseline(), right

    return pair


def main() -> None:
    """Print a table of the gates."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gates", type=int, default=10)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument(
        "--loop-lag", type=float, default=0.010, help="P99 that makes a run client-bound, s (0.01)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=500,
        help="begin no further gate after this; the last one is always run (500)",
    )
    parser.add_argument("--calibration", type=int, default=10, help="A/A runs before the gates (10)")
    parser.add_argument(
        "--trim", type=float, default=0.0, help="0.2 where something stalls a run now and then (0)"
    )
    asked = parser.parse_args()
    design, began, seen = Design(effects=GATED, trim=asked.trim), time.monotonic(), Counter[str]()
    with (
        tempfile.TemporaryDirectory() as scratch,
        own_server([], Path(scratch) / "baseline.log") as one,
        own_server([], Path(scratch) / "candidate.log") as other,
    ):
        folder, count = Path(scratch), iter(range(10**6))
        apart(one, other)
        calls = workload(one.model, asked.requests, asked.tokens)

        def of(server: OwnServer, work: list[Call]) -> Callable[[], Run]:
            return lambda: measured(server, work, next(count), folder, asked.loop_lag)

        for server in (one, other):
            measured(
                server, calls, next(count), folder, asked.loop_lag
            )  # compiled and cached before anything counts
        floors = calibrate([of(one, calls)() for _ in range(asked.calibration)], design)
        for name, floor in floors.floors.items():
            if name in GATED:
                print(f"{name}: {floor.sd:.1%} from run to run, {floor.smallest:.0%} detectable", flush=True)
        print(f"calibrated after {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)
        print(
            "\n| gate | candidate | call | pairs | seconds | load | why |\n|---:|---|---|---:|---:|---:|---|",
            flush=True,
        )
        longer = workload(one.model, asked.requests, round(asked.tokens * 1.3))
        for number in range(asked.gates + 1):
            start = time.monotonic()
            if number < asked.gates and start - began > asked.seconds:
                continue
            work = calls if number < asked.gates else longer
            measure = pairs(of(one, calls), of(other, work))
            report = gate([of(other, work)()], [], design, floors, measure)
            label = "the same" if number < asked.gates else "answers 1.3 x as long"
            why = "" if report.call is Verdict.PASS else report.why
            cells = [
                number + 1,
                label,
                report.call.value,
                report.pairs,
                f"{time.monotonic() - start:.0f}",
                f"{os.getloadavg()[0]:.1f}",
                why,
            ]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            seen[f"{label}: {report.call.value}"] += 1
        told = ", ".join(f"{name} {times}" for name, times in seen.items())
        print(f"\n{told}; {time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
