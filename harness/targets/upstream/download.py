"""Let pip download a wheel, take a few files out of it, and throw it away.

A wheel has hundreds of megabytes, the files that matter have a few. The folder that holds them appears by one rename,
so it is whole or not there, and nothing is left of a download that fails or is killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from harness.errors import TargetError

Tell = Callable[[str], None]
MANIFEST = "release.json"
DOWNLOAD_LIMIT = 1800.0
"""Seconds that one download may take."""
PATIENCE = 30
"""Seconds between two lines of progress."""
MORE_ROOM = "free some disk, or set XDG_CACHE_HOME to a folder with room"
_MIB = 2**20
PIP = (sys.executable, "-m", "pip")
_PLATFORMS = ("1", "2014", "_2_24", "_2_28", "_2_31", "_2_34", "_2_35")
_ANY_LINUX = (
    "--implementation=cp",
    "--python-version=3.12",
    *(f"--platform=manylinux{p}_x86_64" for p in _PLATFORMS),
)
"""Sources are the same for every platform: take the wheel that always exists, whatever machine this is."""


def silent(line: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel, the files to take from it (globs; ``*`` crosses folders), and the disk it takes until then."""

    distribution: str
    version: str
    wanted: tuple[str, ...]
    needs_mib: int

    def __str__(self) -> str:
        return f"{self.distribution}=={self.version}"


def fill(folder: Path, wheel: Wheel, tell: Tell = silent, *, pip: Sequence[str] = PIP) -> Path:
    """``folder``, with the wheel's files in it; filled on the first call and only then.

    Raises:
        TargetError: there is no network, no such version, not enough disk, or the wheel is damaged. Nothing is left
            behind then, and the next call starts afresh.
    """
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _alone(folder.parent / f".{folder.name}.lock", tell):
                if not folder.is_dir():
                    _fill(folder, wheel, tell, pip)
    except OSError as error:
        raise TargetError(
            f"cannot keep the files of {wheel} at {folder}: {error.strerror or error}", hint=MORE_ROOM
        ) from None
    return _intact(folder)


def _fill(folder: Path, wheel: Wheel, tell: Tell, pip: Sequence[str]) -> None:
    """Download, unpack beside ``folder``, rename. Called by one process at a time: scratch folders are dead ones'."""
    for dead in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(dead, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free // _MIB
    if free < wheel.needs_mib:
        raise TargetError(
            f"{folder.parent}: saw {free} MiB of free disk, expected {wheel.needs_mib} while {wheel} is unpacked",
            hint=MORE_ROOM,
        )
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        archive = _download(wheel, scratch, tell, pip)
        ready = _unpack(archive, wheel, scratch / "ready")
        archive.unlink()
        ready.rename(folder)


def _download(wheel: Wheel, scratch: Path, tell: Tell, pip: Sequence[str]) -> Path:
    """Let pip bring the wheel into ``scratch``; its own temporary files go there too."""
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", *_ANY_LINUX, "--no-cache-dir"]
    command += [
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar=off",
        "-d",
        str(scratch),
        str(wheel),
    ]
    tell(f"downloading the wheel of {wheel}; its sources are kept, the wheel is not")
    with (scratch / "pip.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        try:
            _wait(process, scratch, wheel, tell)
        finally:
            process.kill()
            process.wait()
    wheels = sorted(scratch.glob("*.whl"))
    if process.returncode or not wheels:
        raise _refused(wheel, (scratch / "pip.log").read_text(errors="replace"))
    return wheels[0]


def _wait(process: subprocess.Popen[bytes], scratch: Path, wheel: Wheel, tell: Tell) -> None:
    started = told = time.monotonic()
    while process.poll() is None:
        time.sleep(0.1)
        now = time.monotonic()
        if now - started > DOWNLOAD_LIMIT:
            raise TargetError(
                f"{wheel}: the download took more than {DOWNLOAD_LIMIT:.0f} s", hint="try again"
            )
        if now - told > PATIENCE:
            told = now
            tell(f"{wheel}: {_size(scratch) // _MIB} MiB so far")


def _size(folder: Path) -> int:
    """Bytes under a folder whose files come and go."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def _refused(what: Wheel, log: str) -> TargetError:
    """What pip said, in one line, and what to do about it."""
    errors = [line.strip() for line in log.splitlines() if line.startswith(("ERROR", "OSError"))]
    reason = (
        errors[0].removeprefix("ERROR: ") if errors else (log.strip().splitlines() or ["no reason given"])[-1]
    )
    if "no space left" in log.lower():
        return TargetError(f"{what}: the disk is full", hint=MORE_ROOM)
    if "Temporary failure" in log or "connection" in log.lower() or "Retrying" in log:
        return TargetError(
            f"{what} is not in the cache and cannot be downloaded: no answer from the package index",
            hint="check the network; a release that was used once stays in the cache and needs none",
        )
    if "from versions:" in log:
        listed = re.search(r"from versions: ([^)]*)\)", log)
        near = ", ".join(listed[1].split(", ")[-6:]) if listed else "none"
        return TargetError(
            f"{what}: the package index has no wheel of this version (newest there: {near})",
            hint="check the version number",
        )
    return TargetError(
        f"{what} cannot be downloaded: {reason[:300]}", hint="run pip download by hand to see more"
    )


def _unpack(archive: Path, wheel: Wheel, folder: Path) -> Path:
    """The wanted files under ``folder``, with a manifest; each file's checksum is compared on the way."""
    damaged = TargetError(
        f"the wheel {archive.name} is damaged: it is no readable archive", hint="try again: nothing was kept"
    )
    sums: dict[str, str] = {}
    try:
        with zipfile.ZipFile(archive) as files:
            for name in sorted(n for n in files.namelist() if _is_wanted(n, wheel.wanted)):
                content = files.read(name)
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                sums[name] = hashlib.sha256(content).hexdigest()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zipfile.zlib.error):  # type: ignore[attr-defined]
        raise damaged from None
    if not sums:
        raise TargetError(
            f"{archive.name} holds none of the files that are looked for ({', '.join(wheel.wanted)})",
            hint="this version is built another way; report it with the output of specharness doctor",
        )
    manifest = {"wheel": archive.name, "files": sums}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return folder


def _is_wanted(name: str, wanted: Sequence[str]) -> bool:
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts
    return inside and (
        path.match("*.dist-info/LICEN[CS]E*") or any(fnmatchcase(name, pattern) for pattern in wanted)
    )


def _intact(folder: Path) -> Path:
    """``folder`` itself; TargetError if a file of it is not what came out of the wheel."""
    try:
        manifest: Mapping[str, Mapping[str, str]] = json.loads(
            (folder / MANIFEST).read_text(encoding="utf-8")
        )
        sums = dict(manifest["files"])
        changed = [n for n, s in sums.items() if hashlib.sha256((folder / n).read_bytes()).hexdigest() != s]
    except (OSError, ValueError, KeyError, TypeError) as error:
        changed = [getattr(error, "filename", None) or f"{folder / MANIFEST}"]
    if changed:
        raise TargetError(
            f"{folder} is no longer what came out of the wheel: {changed[0]} differs",
            hint=f"rm -r {folder}; an edited copy is tested as a checkout, with --target PROJECT:FOLDER",
        )
    return folder


@contextmanager
def _alone(lock: Path, tell: Tell) -> Iterator[None]:
    """One process at a time; a killed one lets go by dying."""
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("another process is downloading the same release: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
