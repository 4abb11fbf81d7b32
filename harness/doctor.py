"""What this machine has, and what is missing for which verb.

Standard library only, and nothing of the harness: it also runs as a plain file (``python -P harness/doctor.py``)
where every package is missing or broken. What a verb needs is read from the project's own requirements.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

OLDEST_PYTHON = (3, 11)
ENOUGH_DISK = 2 * 2**30  # bytes: models, traces and reports of a long night; an environment is another 3 GB

VERBS: dict[str, tuple[str, ...]] = {
    "repro": ("",),
    "test": ("", "dev"),
    "lint": ("dev",),
    "matrix": ("",),
    "explore": ("", "dev"),
    "gate": ("", "dev"),
    "serve": ("", "live"),
    "live": ("", "live"),
    "bench": ("", "live", "bench"),
    "report": ("",),
    "nightly": ("", "dev", "live", "bench"),
}
"""Which groups of requirements a verb needs: ``""`` is the core, the others are extras."""

NECESSARY = ("repro", "test")
"""The verbs that must be able to run for the doctor to be content."""

ABSENT = "not installed"
IMPORTED_AS = {"pytest-xdist": "xdist", "vl-convert-python": "vl_convert", "nvidia-ml-py": "pynvml"}


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that a group asks for, at this version or newer."""

    name: str
    at_least: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What was found of one package: ``problem`` is ``None`` when it is there, new enough and imports."""

    name: str
    groups: tuple[str, ...]
    version: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as its driver names it."""

    name: str
    driver: str
    memory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Everything that was looked at. ``missing`` maps each verb to what keeps it from running (empty: it can)."""

    python: str
    platform: str
    cores: int
    free_bytes: int
    compiler: str | None
    torch_build: str | None
    gpus: tuple[Gpu, ...]
    gpu_note: str
    model_cache: str | None
    model_cache_bytes: int
    packages: tuple[Package, ...]
    missing: dict[str, list[str]] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 when the necessary verbs can run, otherwise 1."""
        return int(any(self.missing[verb] for verb in NECESSARY))

    def as_dict(self) -> dict[str, Any]:
        """For machines: the last line of standard output."""
        return {"verb": "doctor", "exit": self.exit_code, **asdict(self)}


def examine(load: Callable[[str], object] = importlib.import_module) -> Examination:
    """Looks at this machine and imports every package that some verb needs. Takes seconds; never raises."""
    requirements = _requirements()
    packages = tuple(_package(group, load) for group in _by_name(requirements))
    gpus, gpu_note = find_gpus()
    cache = _model_cache()
    examination = Examination(
        python=platform.python_version(),
        platform=platform.platform(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        free_bytes=shutil.disk_usage(Path.cwd()).free,
        compiler=next(filter(None, map(shutil.which, ("gcc", "clang", "cc"))), None),
        torch_build=_torch_build(packages),
        gpus=gpus,
        gpu_note=gpu_note,
        model_cache=str(cache) if cache else None,
        model_cache_bytes=_size(cache) if cache else 0,
        packages=packages,
    )
    examination.missing.update({verb: _lacks(verb, examination) for verb in VERBS})
    return examination


def lacking(verb: str) -> list[str]:
    """What ``verb`` lacks by the installed versions alone: nothing is imported, so it answers at once."""
    groups = VERBS.get(verb, ("",))
    found = _by_name(r for r in _requirements() if r.group in groups)
    return _problems(map(_installed, found))


def find_gpus() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that the NVIDIA driver lists, and how that is known. Imports nothing and starts no CUDA context."""
    if not (tool := shutil.which("nvidia-smi")):
        return (), "no nvidia-smi on the path"
    query = [tool, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
        return tuple(
            Gpu(name=name, driver=driver, memory=memory) for name, driver, memory in rows
        ), "nvidia-smi"
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return (), f"nvidia-smi failed: {_one_line(error)}"


def render(examination: Examination, console: Any = None) -> None:
    """Prints the examination: as tables on a ``rich`` console that is a terminal, otherwise as aligned lines."""
    pretty = console is not None and console.is_terminal
    for heads, rows in _tables(examination):
        if pretty:
            from rich.table import Table

            table = Table(*heads)
            for row in rows:
                table.add_row(*row)
            console.print(table)
        else:
            widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
            for row in (heads, *rows):
                print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
            print()


def main(argv: Sequence[str] | None = None) -> int:
    """``doctor`` prints everything; ``doctor --for VERB`` speaks only when that verb lacks a package."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--for"] and len(arguments) == 2:
        if not (missing := lacking(arguments[1])):
            return 0
        print(f"{sys.executable} cannot run `{arguments[1]}`: {'; '.join(missing)}", file=sys.stderr)
        print("  next: install that, or ask `doctor` for the whole picture", file=sys.stderr)
        print(json.dumps({"verb": arguments[1], "exit": 2, "missing": missing}))
        return 2
    examination = examine()
    if "--json" not in arguments:
        render(examination, _console())
    print(json.dumps(examination.as_dict()))
    return examination.exit_code


def _requirements() -> list[Requirement]:
    """The project's requirements: from pyproject.toml in a clone, otherwise from the installed package."""
    project = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if project.is_file():
        import tomllib

        table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        groups = {"": table["dependencies"], **table["optional-dependencies"]}
        return [_parse(line, group) for group, lines in groups.items() for line in lines]
    lines = metadata.requires("specharness") or []
    return [_parse(line, _group(line)) for line in lines]


def _parse(line: str, group: str) -> Requirement:
    if not (match := re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line)):
        raise ValueError(f"requirement {line!r}: expected `name>=version`")
    return Requirement(match[1], match[2], group)


def _group(line: str) -> str:
    return match[1] if (match := re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)) else ""


def _by_name(requirements: Iterable[Requirement]) -> list[list[Requirement]]:
    names: dict[str, list[Requirement]] = {}
    for requirement in requirements:
        names.setdefault(requirement.name, []).append(requirement)
    return list(names.values())


def _package(requirements: list[Requirement], load: Callable[[str], object]) -> Package:
    """Looks the package up and imports it; whatever its import raises becomes its problem."""
    package = _installed(requirements)
    if package.problem:
        return package
    module = IMPORTED_AS.get(package.name, package.name.replace("-", "_"))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            load(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  a broken package may raise anything, even SystemExit
        return Package(
            name=package.name,
            groups=package.groups,
            version=package.version,
            problem=f"import {module} raises {type(error).__name__}: {_one_line(error)}",
        )
    return package


def _installed(requirements: list[Requirement]) -> Package:
    name, groups = requirements[0].name, tuple(r.group for r in requirements)
    wanted = max((r.at_least for r in requirements), key=_release)
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Package(name=name, groups=groups, version=None, problem=ABSENT)
    old = _release(version) < _release(wanted)
    return Package(
        name=name, groups=groups, version=version, problem=f"{wanted} or newer wanted" if old else None
    )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def _lacks(verb: str, examination: Examination) -> list[str]:
    missing = _problems(p for p in examination.packages if set(p.groups) & set(VERBS[verb]))
    if sys.version_info < OLDEST_PYTHON:
        missing.append(f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    if examination.gpus and not examination.compiler:
        missing.append("a C compiler (Triton builds its launchers with one)")
    if examination.free_bytes < ENOUGH_DISK:
        missing.append(f"disk: {_gib(examination.free_bytes)} free, {_gib(ENOUGH_DISK)} wanted")
    return missing


def _problems(packages: Iterable[Package]) -> list[str]:
    troubled = [package for package in packages if package.problem]
    absent = [package.name for package in troubled if package.version is None]
    broken = [
        f"{package.name} {package.version}: {package.problem}" for package in troubled if package.version
    ]
    return [f"{ABSENT}: {', '.join(absent)}", *broken] if absent else broken


def _torch_build(packages: tuple[Package, ...]) -> str | None:
    """What torch was built for and whether it sees a GPU; only if it was imported without a problem."""
    torch = sys.modules.get("torch")
    if torch is None or any(package.problem for package in packages if package.name == "torch"):
        return None
    try:
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
        return f"{build} build, sees {torch.cuda.device_count()} GPU(s)"
    except Exception as error:  # noqa: BLE001  a half-broken driver must not stop the doctor
        return f"unknown: {_one_line(error)}"


def _model_cache() -> Path | None:
    try:
        return Path(importlib.import_module("harness.models.tiny").default_cache())
    except Exception:  # noqa: BLE001  its own imports may be what is broken
        return None


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def _tables(examination: Examination) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """The three tables: heads and rows."""
    gpus = "; ".join(f"{gpu.name}, {gpu.memory}, driver {gpu.driver}" for gpu in examination.gpus)
    size = f"{examination.model_cache_bytes / 2**20:.1f} MiB"
    found = [
        ("python", f"{examination.python} ({sys.executable})"),
        ("machine", f"{examination.platform}, {examination.cores} cores"),
        ("gpu", gpus or f"none ({examination.gpu_note})"),
        ("torch build", examination.torch_build or "unknown"),
        ("C compiler", examination.compiler or "none"),
        ("model cache", f"{examination.model_cache}, {size}" if examination.model_cache else "unknown"),
        ("free disk", _gib(examination.free_bytes)),
    ]
    packages = [
        (p.name, p.version or "-", ", ".join(group or "core" for group in p.groups), p.problem or "ok")
        for p in examination.packages
    ]
    verbs = [(verb, "; ".join(missing) or "nothing") for verb, missing in examination.missing.items()]
    return [
        (("what", "found"), found),
        (("package", "version", "needed by", "state"), packages),
        (("verb", "what it lacks"), verbs),
    ]


def _console() -> Any:
    try:
        from rich.console import Console
    except Exception:  # noqa: BLE001  rich itself may be the broken package
        return None
    return Console()


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


if __name__ == "__main__":
    sys.exit(main())
