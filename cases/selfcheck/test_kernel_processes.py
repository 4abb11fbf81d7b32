"""Interpreted and compiled kernels cannot share a process: TRITON_INTERPRET is read when Triton is imported.

Where the kernels are interpreted, the tests that compile run in a child. On a GPU nothing is interpreted: there the
kernels themselves run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.engine.kernels import NaiveKernels, select
from harness.errors import UsageError

HERE = Path(__file__).parent
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def run_tests(*names: str, interpret: bool, at_least: int) -> None:
    """Run test files in a child process; they must pass, and must not have skipped themselves."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        + [str(HERE / name) for name in names],
        env=inherited | {"TRITON_INTERPRET": "1" if interpret else "0", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert child.returncode == 0, child.stdout[-6000:] + child.stderr[-2000:]
    passed = re.search(r"(\d+) passed", child.stdout)
    assert passed, child.stdout
    assert int(passed[1]) >= at_least, child.stdout


@pytest.mark.skipif(not INTERPRETED, reason="this process compiles itself")
def test_every_kernel_compiles_and_needs_what_the_warm_up_lists():
    run_tests("test_kernel_compile.py", "test_kernel_warmup.py", interpret=False, at_least=23)


def test_triton_on_a_cpu_without_its_interpreter_is_a_usage_error_with_a_hint():
    code = "from harness.engine.kernels import select; select('triton', 'cpu')"
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert f"{UsageError.__name__}: Triton kernels on cpu need Triton's interpreter" in child.stderr
    assert "next: set TRITON_INTERPRET=1 before the process starts" in child.stderr


def test_the_choice_of_kernels_states_its_reason():
    choice = select("auto", "cpu")
    assert isinstance(choice.kernels, NaiveKernels)
    assert choice.reason == "naive kernels: Triton has no cpu back end"
    with pytest.raises(UsageError, match="unknown kernels 'fast'"):
        select("fast", "cpu")
