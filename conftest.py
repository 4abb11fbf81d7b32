"""What every test shares: one thread per process, tiny models built once per run, and where case files become tests."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from harness.doctor import find_gpus

SEED = 20240601

# Threads of several workers on few cores wait for each other, so each process has one. Triton reads its switch when it
# is imported. Both are decided here, before any test module is, and children inherit them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "TRITON_INTERPRET" not in os.environ:
    os.environ["TRITON_INTERPRET"] = "0" if find_gpus()[0] else "1"

# Case files are not test modules: they become tests, one for each scenario and variant, through `harness.cases`.
# Live and bench cases need a server and have verbs of their own.
collect_ignore = ["cases/issues", "cases/live", "cases/bench"]


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
