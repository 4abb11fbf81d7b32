"""The jobs of the gate: everything of this repository that means something else on a GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from harness.cases import load_cases
from harness.gpu import sanitizer
from harness.gpu.jobs import Job
from harness.gpu.judges import of_pytest, of_verb
from harness.rundir import program

USUAL = ("recompile", "kernels", "cases")
"""What runs where nothing else is asked for: five minutes of one GPU."""
LAYOUTS = ("slots", "replay")
MARKED = "mark.gpu"
NATIVE = {"TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def plan(parts: Sequence[str], root: Path, folder: Path, seed: int, batches: int) -> list[Job]:
    """The jobs of these parts, what takes longest first; Unsupported where a sanitizer is asked for, and lacks."""
    jobs: list[Job] = []
    if "matrix" in parts:
        jobs += _matrix(root, folder, seed)
    if "kernels" in parts:
        jobs += _kernels(root, folder)
    if "recompile" in parts:
        jobs.append(_recompile(batches, seed))
    if "sanitize" in parts:
        jobs += sanitizer.jobs(sanitizer.find(os.environ), folder)
    if "cases" in parts:
        jobs += _cases(root, folder, seed)
    return jobs


def _recompile(batches: int, seed: int) -> Job:
    arguments = ["-m", "harness.gpu.recompile", "--batches", str(batches), "--seed", str(seed)]
    return Job(
        name="recompile",
        part="recompile",
        command=(sys.executable, *arguments),
        judge=partial(of_verb, file="harness/engine/kernels/warmup.py"),
        again=" ".join(["python", *arguments]),
        seconds=240,
        environment=NATIVE,
    )


def _kernels(root: Path, folder: Path) -> Iterator[Job]:
    """Test files with tests that need a GPU: all of their tests, for the rest run on the GPU as well where one is."""
    workers = max(2, (os.cpu_count() or 4) // 4)
    for path in sorted((root / "cases" / "selfcheck").glob("test_*.py")):
        if MARKED not in path.read_text(encoding="utf-8"):
            continue
        name = f"kernels-{path.stem.removeprefix('test_')}"
        file = str(path.relative_to(root))
        options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers), "--dist", "worksteal"]
        report = ["-o", "junit_family=xunit1", f"--junitxml={folder / name / 'junit.xml'}"]
        yield Job(
            name=name,
            part="kernels",
            command=(sys.executable, *options, *report, f"--rootdir={root}", str(path)),
            judge=of_pytest,
            again=f"TRITON_INTERPRET=0 python -m pytest {file}",
            seconds=270,
            environment=NATIVE,
        )


def _cases(root: Path, folder: Path, seed: int) -> Iterator[Job]:
    for case in load_cases(root):
        for layout in LAYOUTS:
            words = ["repro", case.path.stem, "--device", "cuda", "--layout", layout, "--seed", str(seed)]
            name = f"{case.path.stem}-{layout}"
            places = ["--json", "--cases", str(root), "--reports", str(folder / name)]
            yield Job(
                name=name,
                part=f"cases, {layout}",
                command=(sys.executable, "-m", "harness.cli", *words, *places),
                judge=partial(of_verb, file=str(case.path.relative_to(root))),
                again=" ".join([program(), *words]),
                seconds=150,
                environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )


def _matrix(root: Path, folder: Path, seed: int) -> Iterator[Job]:
    """Each fault on scenarios of its own until one kills it, and some generated ones that must stay clean."""
    for layout in LAYOUTS:
        name = f"matrix-{layout}"
        words = [
            "matrix",
            "--quick",
            "--device",
            "cuda",
            "--layout",
            layout,
            "--seed",
            str(seed),
            "--clean",
            "60",
        ]
        places = ["--json", "--cases", str(root), "--reports", str(folder / name)]
        workers = ["--workers", str(max(2, (os.cpu_count() or 4) // 4))]
        yield Job(
            name=name,
            part="matrix",
            command=(sys.executable, "-m", "harness.cli", *words, *workers, *places),
            judge=partial(of_verb, file="harness/engine/faults/__init__.py"),
            again=" ".join([program(), *words]),
            seconds=280,
            environment=NATIVE,
        )
