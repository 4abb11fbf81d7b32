"""What every test shares: one thread per process, tiny models built once per run, and where case files become tests."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.doctor import find_gpus

SEED = 20240601

# Threads of several workers on few cores wait for each other, so each process has one. Triton reads its switch when it
# is imported. Both are decided here, before any test module is, and children inherit them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "TRITON_INTERPRET" not in os.environ:
    os.environ["TRITON_INTERPRET"] = "0" if find_gpus()[0] else "1"

# A shell starts its background jobs with interruptions ignored, and children inherit that: those that are interrupted
# by a test would go on to their end.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Live and bench cases need a server and have verbs of their own.
collect_ignore = ["cases/live", "cases/bench"]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Case files are not test modules: each becomes one test, which reproduces its issue."""
    if file_path.parent.name != "issues" or file_path.suffix != ".py":
        return None
    collector: pytest.Collector = CaseFile.from_parent(parent, path=file_path)
    return collector


class CaseFile(pytest.File):
    """One file of ``cases/issues``."""

    def collect(self) -> Iterator[pytest.Item]:
        """The one test of the file."""
        yield CaseItem.from_parent(self, name="reproduces")


class CaseItem(pytest.Item):
    """The old behaviour fails as documented and the correct engine passes everything."""

    def runtest(self) -> None:
        """``specharness repro``, as a user runs it."""
        with tempfile.TemporaryDirectory() as reports:
            command = ["repro", self.path.stem, "--reports", reports]
            code, said = self._child(command) if self._compiles else _here(command)
        if code:
            raise NotReproduced(said)

    @property
    def _compiles(self) -> bool:
        """Whether kernels have to be compiled: Triton's interpreter, which the tests run under, cannot."""
        return "most_compilations" in self.path.read_text(encoding="utf-8")

    def _child(self, command: list[str]) -> tuple[int, str]:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        done = subprocess.run(
            [sys.executable, "-m", "harness.cli", *command],
            cwd=self.config.rootpath,
            env=environment,
            capture_output=True,
            text=True,
        )
        return done.returncode, f"{done.stdout}\n{done.stderr}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """What the command printed, instead of a traceback."""
        if isinstance(excinfo.value, NotReproduced):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo, style))

    def reportinfo(self) -> tuple[Path, None, str]:
        """How pytest names the test."""
        return self.path, None, f"{self.path.stem} reproduces"


def _here(command: list[str]) -> tuple[int, str]:
    """In this process, which has imported what a case needs."""
    from harness.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(command)
    return code, said.getvalue()


class NotReproduced(Exception):
    """A case that did not exit with 0; carries what it printed."""


def pytest_report_header() -> str:
    kernels = "interpreted: no GPU" if os.environ["TRITON_INTERPRET"] == "1" else "compiled"
    return f"triton kernels: {kernels}; seed {SEED}; {os.environ['OMP_NUM_THREADS']} thread(s) per process"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this run keeps the models it builds: fresh, so never stale, and shared by its workers."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "models"


@pytest.fixture(scope="session")
def peaked(models: Path) -> Path:
    """A tiny model with clear winners among its logits: high acceptance."""
    from harness.models.tiny import ensure

    return ensure("peaked", 0, models)


@pytest.fixture(scope="session")
def flat(models: Path) -> Path:
    """A tiny model with near ties: low acceptance."""
    from harness.models.tiny import ensure

    return ensure("flat", 0, models)


@pytest.fixture(autouse=True)
def same_dice() -> None:
    """Every test starts from the same seed, whatever ran before it in its process."""
    import numpy as np
    import torch

    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
