"""``gpu-bench`` without a GPU: what it refuses, what it counts as needed bytes, and the page it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness.bench.gpu.report import Report
from harness.bench.gpu.steps import Decoded, Prefilled
from harness.bench.gpu.verify import Verified
from harness.bench.gpu.work import Rows, Tokens

ROOT = Path(__file__).parents[2]
STATE = 32 * 128 * 128 * 4
TOKEN = 2 * (2 * 2048 + 4096) + 8 * 32  # q, k, v in bfloat16 and the gates
OUTPUT = 2 * 4096
LOGGED = 2 * 2048 + 4 * 4096 + 4 * 32  # keys in bfloat16, what they wrote, and decays


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parts", "verify,speed"], "saw part 'speed'"),
        (["--drafts", "1,x"], "saw '1,x', expected numbers such as 1,3,5"),
        (["--batches", "-4"], "expected no negative number"),
        pytest.param(
            [],
            "times kernels on a GPU, and torch sees none",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
def test_what_cannot_be_timed_is_a_usage_error(arguments, said):
    command = [sys.executable, "-m", "harness.cli", "gpu-bench", *arguments]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    last = json.loads(child.stdout.splitlines()[-1])
    assert (child.returncode, last["exit"]) == (2, 2)
    assert said in last["error"]
    assert "Traceback" not in child.stderr


def test_needed_bytes_are_the_states_and_tokens_that_a_layout_moves():
    empty = torch.zeros(0)
    rows = Rows(
        lengths=(4, 2),
        accepted=(1, 3),
        drafts=3,
        tokens=Tokens(x=empty, g=empty, beta=empty),
        state=torch.zeros(1, dtype=torch.float32),
        slots=(),
        query_start_loc=empty,
        num_accepted_tokens=empty,
    )
    assert rows.bytes_needed("slots") == 6 * (TOKEN + OUTPUT) + (2 + 6) * STATE
    assert rows.bytes_needed("replay") == 6 * (TOKEN + OUTPUT) + 2 * 2 * STATE + (6 + 4) * LOGGED


def test_the_page_gives_ratios_and_shares_of_what_was_measured():
    line = Verified(
        what="uniform rows",
        drafts=3,
        batch=64,
        vllm=200.0,
        slots=180.0,
        replay=80.0,
        slots_bytes=360_000_000,
        replay_bytes=240_000_000,
    )
    report = Report(command="specharness gpu-bench", bandwidth=4e12)
    report.uniform.append(line)
    report.mixed.append((line, line))
    report.decodes.append(Decoded(1, 1.0, 5.0, 2.0, 10.0, 6.0))
    report.prefills += [Prefilled("fla-core", 2000, 4e-3, 3e-3), Prefilled("ours", 1500, 3e-3, 2e-3)]
    page = report.markdown("a card").splitlines()
    assert "| uniform rows | 3 | 64 | 200.0 | 180.0 | 0.90 | 50 % | 80.0 | 0.40 | 75 % |" in page
    assert "| 3 | 64 | 180.0 | 1.00 | 80.0 | 1.00 |" in page
    assert "| 1 | 1.0 | 5.0 | 2.0 | 10.0 | 6.0 | 0.75 | 0.60 |" in page
    assert "| ours | 1500 | 0.75 | 3.0e-03 | 2.0e-03 |" in page
    assert "    line [80]" in page
