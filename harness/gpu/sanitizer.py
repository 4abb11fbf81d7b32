"""Where NVIDIA's compute-sanitizer is, and the jobs that watch our kernels with it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path

from harness.errors import Unsupported
from harness.gpu.jobs import Job
from harness.gpu.judges import of_sanitizer

WHEEL = "nvidia-cuda-sanitizer-api"
PROGRAM = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
SOUND = ("float32", "bfloat16", "bfloat16-states", "prefill")
PLANTED = {"memcheck": "planted-out-of-bounds", "racecheck": "planted-shared-race"}
USUAL = ("--target-processes", "application-only", "--print-limit", "20", "--launch-timeout", "0")
"""No launch timeout: a program that imports torch beside fifteen others does not answer within the usual 10 s, and the
job has a limit of its own."""
OPTIONS = {
    # what an allocation lacks must not be its neighbour; torch asks the driver things that it may refuse
    "memcheck": ("--padding", "64", "--report-api-errors", "no"),
    "racecheck": (),
}
MORE: dict[str, tuple[str, ...]] = {"memcheck": (), "racecheck": ("--exact",)}
SECONDS = 280.0
"""Of one part under one tool."""


def find(environment: Mapping[str, str]) -> Path:
    """The program: from PATH, from CUDA_HOME, or from its wheel. Raises Unsupported where there is none."""
    if found := shutil.which(PROGRAM, path=environment.get("PATH")):
        return Path(found)
    for home in ("CUDA_HOME", "CUDA_PATH"):
        if (folder := environment.get(home)) and (path := Path(folder) / "bin" / PROGRAM).is_file():
            return path
    if wheel := of_wheel():
        return wheel
    raise Unsupported(
        f"no {PROGRAM} on PATH, in CUDA_HOME, or from a wheel", hint="pip install 'specharness[sanitize]'"
    )


def of_wheel() -> Path | None:
    """The program of the installed wheel, which keeps it in a folder of its own."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.match(f"bin/{PROGRAM}")), None)


def jobs(program: Path, folder: Path) -> Iterator[Job]:
    """Every part under every tool, and for each tool the mistake that it has to find."""
    for tool in TOOLS:
        for part in (*SOUND, PLANTED[tool]):
            name = f"{tool}-{part}"
            python = (sys.executable, "-m", "harness.gpu.kernel_cases", part, *MORE[tool])
            options = ("--tool", tool, *USUAL, *OPTIONS[tool])
            log = folder / name / "sanitizer.txt"
            yield Job(
                name=name,
                part="sanitize",
                command=(str(program), *options, "--log-file", str(log), *python),
                judge=partial(of_sanitizer, tool=tool, planted=part not in SOUND),
                again=" ".join((PROGRAM, "--tool", tool, "python", *python[1:])),
                seconds=SECONDS,
                # torch's allocator keeps blocks larger than what was asked for: beyond a tensor it would see nothing
                environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TRITON_INTERPRET": "0"},
            )
