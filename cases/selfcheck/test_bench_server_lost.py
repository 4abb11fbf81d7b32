"""A server that ends in the middle of a benchmark: what was measured is kept, the rest is asked of the next one."""

from __future__ import annotations

import json
import os
import socket
from datetime import datetime
from pathlib import Path

import pytest

from cases.selfcheck.benching import shifted, stream
from cases.selfcheck.mortal import serving
from harness.bench.history.results import read_all
from harness.bench.load.lost import ServerLost, lost
from harness.bench.load.store import read_records
from harness.bench.record import Outcome
from harness.bench_serving import own
from harness.cli import main
from harness.models.tiny import default_cache, ensure
from harness.rundir import RunDir


def test_a_run_whose_server_ends_goes_on_with_the_next_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = ensure("peaked", cache=default_cache(os.environ))
    where = ["--base-url", f"http://127.0.0.1:{port}", "--tokenizer", str(model), "--reports", str(tmp_path)]
    small = [
        "--requests",
        "3",
        "--concurrency",
        "1",
        "--output-tokens",
        "4",
        "--loop-lag",
        "5000",
        "--no-page",
    ]
    with serving(port, dies_at=4):  # behind one for the warm-up and two that are measured
        assert main(["bench", *small, *where]) == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    (run_dir,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert "free: the server was lost, 2 of 3 requests measured" in told["error"]
    assert f"bench --resume {run_dir}" in told["error"]
    first = read_records(run_dir / "records/free").records
    assert [one.outcome for one in first] == [Outcome.COMPLETE] * 2

    with serving(port):
        main(["bench", "--resume", str(run_dir), "--no-page"])
    shown = capsys.readouterr().out
    assert json.loads(shown.splitlines()[-1])["cells"]["free"]["streams"] == {"complete": 3}
    assert "the server was lost 1 x, and 1 requests were asked again" in shown
    assert read_records(run_dir / "records/free").records[:2] == first
    nights = [read_all([run_dir])[cell][0].run.time for cell in ("free", "guided")]
    assert set(nights) == {datetime.fromisoformat(json.loads((run_dir / "run.json").read_text())["time"])}
    assert len((run_dir / "records/free/lost-0.jsonl").read_text().splitlines()) == 1


def test_of_two_servers_only_the_one_that_was_lost_is_told_of(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path, "bench", {})
    with (
        pytest.raises(ServerLost) as told,
        own(run_dir, "off", ["--preset", "peaked"]) as lost_one,
        own(run_dir, "mtp", ["--preset", "peaked"]),
    ):
        raise ServerLost("gone", url=lost_one.url)
    log = f"{run_dir.path}/server-off.log"
    assert told.value.args[0] == f"gone; the process is still there, its log is {log}"


def test_what_a_living_server_cut_was_measured() -> None:
    good, cut = stream(id="a", outcome=Outcome.COMPLETE), stream(id="b", outcome=Outcome.CUT)
    refused = stream(id="c", outcome=Outcome.NO_CONNECTION)
    assert lost([cut, shifted(good, 1)]) == ()
    left = [shifted(cut, 3), shifted(refused, 4)]
    assert list(lost([cut, shifted(good, 1), *left])) == left
