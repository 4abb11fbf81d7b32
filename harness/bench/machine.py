"""The machine that measures: its processor, its cores and its GPUs, as a fingerprint names them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from harness.doctor import find_gpus

CPUINFO = Path("/proc/cpuinfo")


def hardware(cpuinfo: Path = CPUINFO) -> str:
    """``Intel(R) Xeon(R) ..., 2 CPUs`` and its GPUs: what has to agree before two runs are compared.

    CPUs are those that this process may use, which in a container are not all.
    """
    gpus, _ = find_gpus()
    parts = [processor(cpuinfo), f"{cores()} CPUs", *_counted(gpus)]
    return ", ".join(parts)


def processor(cpuinfo: Path = CPUINFO) -> str:
    """The processor's own name; its architecture where the system does not tell."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return " ".join(next(named, platform.processor()).split()) or platform.machine()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _counted(gpus: tuple[str, ...]) -> list[str]:
    """Eight equal GPUs in one part."""
    return [name if (n := gpus.count(name)) == 1 else f"{n} x {name}" for name in dict.fromkeys(gpus)]
