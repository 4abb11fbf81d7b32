"""What this machine has, and what is missing for which verb.

Standard library only: it also runs as a plain file (``python -P harness/doctor.py``) where packages are missing or
broken. What a verb needs is read from the project's own requirements.
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
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

OLDEST_PYTHON = (3, 11)
ENOUGH_DISK = 2 * 2**30  # bytes: models, traces and reports of a long night; an environment is another 3 GB

VERBS: dict[str, tuple[str, ...]] = {  # verb -> groups of requirements: "" is the core, the others are extras
    **dict.fromkeys(("repro", "matrix", "explore", "gpu-bench", "sanitize"), ("",)),
    **dict.fromkeys(("test", "test-browser", "micro", "fuzz", "soak"), ("", "dev")),
    **dict(zip(("lint", "gpu-gate"), (("dev",), ("", "gate")), strict=True)),
    **dict.fromkeys(("serve", "live", "live-vllm"), ("", "live")),
    **dict.fromkeys(("bench", "nightly"), ("", "live", "bench")),
    **dict.fromkeys(("compare", "calibrate", "gate", "history"), ("", "bench")),
}
NECESSARY = ("repro", "test")  # when these can run, the doctor is content
ON_A_GPU = ("gpu-bench", "gpu-gate", "sanitize")
ABSENT, SANITIZER = "not installed", "nvidia-cuda-sanitizer-api"
IMPORTED_AS = {"pytest-xdist": "xdist", "vl-convert-python": "vl_convert", "nvidia-ml-py": "pynvml"}
IMPORTED_AS[SANITIZER] = "nvidia"
Table = tuple[Sequence[str], Sequence[Sequence[str]]]  # heads and rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What was found of one package: ``problem`` is ``None`` when it is there, new enough and imports."""

    name: str
    groups: tuple[str, ...]
    version: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Everything that was looked at. ``missing`` maps each verb to what keeps it from running (empty: it can)."""

    python: str
    platform: str
    cores: int
    free_bytes: int
    compiler: str | None
    torch_build: str | None
    gpus: tuple[str, ...]
    driver: str
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
    packages = tuple(p if p.problem else _imported(p, load) for p in _packages())
    gpus, driver = find_gpus()
    cache, cache_bytes = _model_cache()
    examination = Examination(
        python=platform.python_version(),
        platform=platform.platform(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        free_bytes=shutil.disk_usage(Path(__file__).parent).free,
        compiler=next(filter(None, map(shutil.which, ("gcc", "clang", "cc"))), None),
        torch_build=_torch_build(packages),
        gpus=gpus,
        driver=driver,
        model_cache=cache,
        model_cache_bytes=cache_bytes,
        packages=packages,
    )
    examination.missing.update({verb: _lacks(verb, examination) for verb in VERBS})
    return examination


def lacking(verb: str) -> list[str]:
    """What ``verb`` lacks by the installed versions alone: nothing is imported, so it answers at once."""
    return _problems(verb, _packages())


def find_gpus() -> tuple[tuple[str, ...], str]:
    """The GPUs that the NVIDIA driver lists, and its version or why there is none. Starts no CUDA context."""
    query = ["nvidia-smi", "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return (), f"nvidia-smi does not run: {_one_line(error)}"
    rows = [line.split(", ", 1) for line in answer.stdout.splitlines() if ", " in line]
    if answer.returncode or not rows:
        return (), f"nvidia-smi ends with {answer.returncode} and lists no GPU"
    return tuple(gpu for _, gpu in rows), f"driver {rows[0][0]}"


def render(examination: Examination, console: Any = None) -> None:
    """Prints the examination: as tables on a ``rich`` console that is a terminal, otherwise as aligned lines."""
    draw = _draw_table if console is not None and console.is_terminal else _print_lines
    for table in _tables(examination):
        draw(table, console)


def main(argv: Sequence[str] | None = None) -> int:
    """``doctor`` prints everything; ``doctor --for VERB`` speaks only when that verb lacks a package."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["--for"] and arguments[-1] in VERBS:
        return _say_what_is_lacking(arguments[-1])
    examination = examine()
    if "--json" not in arguments:
        render(examination, console())
    print(json.dumps(examination.as_dict()))
    return examination.exit_code


def _say_what_is_lacking(verb: str) -> int:
    if not (missing := lacking(verb)):
        return 0
    next_ = "\n  next: install that, or run `make doctor` for the whole picture"
    print(f"{sys.executable} cannot run `{verb}`: {'; '.join(missing)}{next_}", file=sys.stderr)
    print(json.dumps({"verb": verb, "exit": 2, "missing": missing}))
    return 2


def _packages() -> list[Package]:
    """Every package that the project asks for, with its groups; installed or not, but not yet imported."""
    wanted: dict[str, str] = {}
    groups: dict[str, list[str]] = {}
    for line, group in _requirements():
        if not (match := re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line)):
            raise ValueError(f"requirement {line!r}: expected `name>=version`")
        name, version = match.groups()
        wanted[name] = max(version, wanted.get(name, "0"), key=_release)
        groups.setdefault(name, []).append(group)
    return [_installed(name, wanted[name], tuple(groups[name])) for name in wanted]


def _requirements() -> list[tuple[str, str]]:
    """Requirement and group, from pyproject.toml in a clone and otherwise from the installed package."""
    project = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if project.is_file():
        table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        groups = {"": table["dependencies"], **table["optional-dependencies"]}
        return [(line, group) for group, lines in groups.items() for line in lines]
    lines = metadata.requires("specharness") or []
    extras = [re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line) for line in lines]
    return [(line, extra[1] if extra else "") for line, extra in zip(lines, extras, strict=True)]


def _installed(name: str, wanted: str, groups: tuple[str, ...]) -> Package:
    try:
        version = metadata.version(name)
        problem = f"{wanted} or newer wanted" if _release(version) < _release(wanted) else None
    except metadata.PackageNotFoundError:
        version, problem = None, ABSENT
    except Exception as error:  # noqa: BLE001  an installation torn half-way
        version, problem = "?", f"unreadable: {_one_line(error)}"
    return Package(name=name, groups=groups, version=version, problem=problem)


def _imported(package: Package, load: Callable[[str], object]) -> Package:
    """Imports the package; whatever that raises becomes its problem."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            load(IMPORTED_AS.get(package.name, package.name.replace("-", "_")))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  a broken package may raise anything, even SystemExit
        return replace(package, problem=f"import raises {type(error).__name__}: {_one_line(error)}")
    return package


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3])


def _lacks(verb: str, examination: Examination) -> list[str]:
    missing = _problems(verb, examination.packages)
    if sys.version_info < OLDEST_PYTHON:
        missing.append(f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    if examination.gpus and not examination.compiler:
        missing.append("a C compiler (Triton builds its launchers with one)")
    missing += ["a GPU"] if verb in ON_A_GPU and not examination.gpus else []
    wheel = any(p.name == SANITIZER and not p.problem for p in examination.packages)
    if verb == "sanitize" and not (wheel or shutil.which("compute-sanitizer") or "CUDA_HOME" in os.environ):
        missing.append("compute-sanitizer, from CUDA or from specharness[sanitize]")
    if examination.free_bytes < ENOUGH_DISK:
        missing.append(f"disk: {_gib(examination.free_bytes)} free, {_gib(ENOUGH_DISK)} wanted")
    return missing


def _problems(verb: str, packages: Sequence[Package]) -> list[str]:
    packages = [p for p in packages if set(p.groups) & set(VERBS[verb])]
    absent = [p.name for p in packages if p.problem == ABSENT]
    broken = [f"{p.name} {p.version}: {p.problem}" for p in packages if p.problem not in (None, ABSENT)]
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


def _model_cache() -> tuple[str | None, int]:
    """The folder of built models and the bytes in it."""
    try:
        folder = Path(importlib.import_module("harness.models.tiny").default_cache())
        return str(folder), sum(path.lstat().st_size for path in folder.rglob("*"))
    except Exception:  # noqa: BLE001  its own imports may be what is broken, or a build may be going on
        return None, 0


def _tables(examination: Examination) -> list[Table]:
    size = f"{examination.model_cache_bytes / 2**20:.1f} MiB"
    machine = [
        ("python", f"{examination.python} ({sys.executable})"),
        ("machine", f"{examination.platform}, {examination.cores} cores"),
        ("gpu", f"{'; '.join(examination.gpus) or 'none'} ({examination.driver})"),
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
    heads = ("what", "found"), ("package", "version", "needed by", "state"), ("verb", "what it lacks")
    return list(zip(heads, (machine, packages, verbs), strict=True))


def _print_lines(table: Table, _console: Any) -> None:
    lines = [table[0], *table[1]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()


def _draw_table(table: Table, console: Any) -> None:
    import rich.table
    from rich.markup import escape

    drawn = rich.table.Table(*table[0])
    for row in table[1]:
        drawn.add_row(*map(escape, row))
    console.print(drawn)


def console() -> Any:
    """A rich console, or ``None`` where rich is broken."""
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
