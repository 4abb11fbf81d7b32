"""The source files of a version of an engine: a release, or a local checkout.

release = release_files("vllm", "0.10.2", cache)          # out of its wheel, once; offline afterwards
release = release_files("vllm", "./my-fork", cache)       # the same files of a checkout
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from harness.errors import TargetError
from harness.targets.upstream.download import Tell, Wheel, fill, silent

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What to take from a project's wheel: see ``Wheel``."""

    distribution: str
    package: str
    wanted: tuple[str, ...]
    needs_mib: int


PROJECTS = {
    "vllm": Project(
        distribution="vllm",
        package="vllm",
        wanted=(
            "vllm/model_executor/layers/fla/*.py",
            "vllm/model_executor/layers/mamba/*.py",
            "vllm/model_executor/models/qwen3_next.py",
            "vllm/third_party/flash_linear_attention/*.py",
            "vllm/utils/*.py",
            "vllm/v1/attention/*.py",
            "vllm/v1/kv_cache*.py",
            "vllm/v1/spec_decode/*.py",
            "vllm/v1/worker/*.py",
        ),
        needs_mib=1200,
    ),
    "sglang": Project(
        distribution="sglang",
        package="sglang",
        wanted=("sglang/srt/layers/attention/*.py", "sglang/srt/mem_cache/*.py"),
        needs_mib=200,
    ),
    "fla": Project(distribution="fla-core", package="fla", wanted=("fla/*.py",), needs_mib=100),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Source files of one version. ``root`` holds the package's folder; ``version`` is ``None`` where nothing tells."""

    project: str
    version: str | None
    root: Path

    @property
    def name(self) -> str:
        """How reports call it: ``vllm 0.10.2``, or ``vllm at FOLDER``."""
        return f"{self.project} {self.version}" if self.version else f"{self.project} at {self.root}"

    def source(self, path: str) -> Path | None:
        """A file by its path from ``root``; ``None`` where this version has none."""
        found = self.root / path
        return found if found.is_file() else None


def release_files(project: str, version_or_path: str, cache: Path, tell: Tell = silent) -> Release:
    """The sources of a release (``0.10.2``) or of a checkout (a folder); TargetError where there are none."""
    if project not in PROJECTS:
        raise TargetError(f"saw project {project!r}, expected one of {', '.join(PROJECTS)}")
    if _VERSION.fullmatch(version_or_path):
        source = PROJECTS[project]
        wheel = Wheel(
            distribution=source.distribution,
            version=version_or_path,
            wanted=source.wanted,
            needs_mib=source.needs_mib,
        )
        root = fill(cache / "upstream" / f"{project}-{version_or_path}", wheel, tell)
        return Release(project=project, version=version_or_path, root=root)
    return _checkout(project, Path(version_or_path).expanduser())


def _checkout(project: str, folder: Path) -> Release:
    """A folder that holds the project's package, or ``src/`` or ``python/`` with it."""
    package = PROJECTS[project].package
    for root in (folder, folder / "python", folder / "src"):
        if (root / package).is_dir():
            return Release(project=project, version=None, root=root.resolve())
    raise TargetError(
        f"{folder}: saw no folder {package}/ in it, expected a checkout of {project}",
        hint=f"--target {project}==0.11.0 takes a release, --target {project}:FOLDER a checkout",
    )
