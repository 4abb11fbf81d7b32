"""A Chromium for the tests: one that is here, or Debian's headless shell unpacked into the project's own folder.

    python -m cases.browser.chromium

prints where it is. Nothing is installed on the machine and no root is needed: packages that are missing are downloaded
with the machine's own apt and unpacked beside the environment. Exit code 125: there is none and none can be had.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
PACKAGES = ("chromium-headless-shell", "chromium")
"""Of Debian: the first one that is known."""
HELP = "install one (apt-get install chromium, brew install chromium), or say CHROMIUM=/path/to/chrome"
UNDECIDED = 125
OURS = Path(__file__).resolve().parents[2] / ".venv" / "chromium"
FONTS = """<?xml version="1.0"?>
<fontconfig><dir>{root}/usr/share/fonts</dir><cachedir>{root}/fontcache</cachedir>
<include ignore_missing="yes">{root}/etc/fonts/conf.d</include></fontconfig>
"""
"""For a machine that has no fonts."""


class NoBrowser(Exception):
    """There is none; the message says what was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chromium:
    """``environment``: what it needs besides ours, to find its own libraries and fonts."""

    path: str
    environment: Mapping[str, str] = field(default_factory=dict)


def chromium() -> Chromium:
    """The one of $CHROMIUM, one of ours, one of this machine, or a new one of ours.

    Raises:
        NoBrowser: there is none, and none can be had.
    """
    if named := os.environ.get("CHROMIUM"):
        if not (found := shutil.which(named)):
            raise NoBrowser(f"CHROMIUM={named}: is no program; {HELP}")
        return Chromium(path=found)
    folder = OURS
    if not (folder / "ready").exists():
        for name in NAMES:
            if (found := shutil.which(name)) and _runs(Chromium(path=found)):
                return Chromium(path=found)
        _unpack(folder)
    found = _unpacked(folder / "root")
    if not _runs(found):
        raise NoBrowser(f"{found.path}: was unpacked and does not start; {HELP}")
    return found


def _runs(found: Chromium) -> bool:
    """Whether it answers: a machine may have a stub that wants to be installed."""
    asked = [found.path, "--version"]
    try:
        own = {**os.environ, **found.environment}
        return subprocess.run(asked, env=own, capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _unpacked(root: Path) -> Chromium:
    programs = [root / "usr/lib/chromium" / name for name in PACKAGES]
    program = next((path for path in programs if path.exists()), programs[0])
    libraries = ":".join(sorted({str(path.parent) for path in root.rglob("*.so*")}))
    environment = {"LD_LIBRARY_PATH": libraries}
    if not Path("/etc/fonts/fonts.conf").exists():
        conf = root / "fonts.conf"
        conf.write_text(FONTS.format(root=root))
        environment["FONTCONFIG_FILE"] = str(conf)
    return Chromium(path=str(program), environment=environment)


def _unpack(folder: Path) -> None:
    """Download the packages that this machine lacks, and unpack them."""
    if not all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        raise NoBrowser(f"saw no Chromium ({', '.join(NAMES[:5])}) and no apt to fetch one; {HELP}")
    print("fetching Chromium: half a minute, this once", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    root, debs = folder / "root", folder / "debs"
    try:
        for path in (root, debs, folder / "lists/partial", folder / "cache/archives/partial"):
            path.mkdir(parents=True)
    except OSError as error:
        raise NoBrowser(f"{folder}: cannot be made: {error.strerror}; {HELP}") from None
    own = [f"Dir::State::Lists={folder}/lists", f"Dir::Cache={folder}/cache", "APT::Sandbox::User="]
    apt = ["apt-get", "-q", *(part for option in own for part in ("-o", option))]
    _said([*apt, "update"], debs)
    missing = next(filter(None, (_missing(apt, name, debs) for name in PACKAGES)), None)
    if not missing:
        raise NoBrowser(f"saw no Chromium, and apt knows no {' or '.join(PACKAGES)}; {HELP}")
    _said([*apt, "download", *missing], debs)
    for deb in debs.glob("*.deb"):
        _said(["dpkg-deb", "-x", str(deb), str(root)], debs)
    for part in ("debs", "lists", "cache"):
        shutil.rmtree(folder / part)
    (folder / "ready").touch()


def _missing(apt: list[str], package: str, where: Path) -> list[str]:
    """What installing a package would bring, itself among it; nothing where apt does not know it."""
    plan = [*apt, "install", "--simulate", "--no-install-recommends", package]
    told = subprocess.run(plan, cwd=where, capture_output=True, text=True, check=False)
    return re.findall(r"^Inst (\S+)", told.stdout, re.MULTILINE) if told.returncode == 0 else []


def _said(command: list[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise NoBrowser(f"no Chromium is here, and {command[0]} fetches none: {last}; {HELP}")


def _lines() -> Iterator[str]:
    found = chromium()
    yield found.path
    yield from (f"{key}={value}" for key, value in found.environment.items())


if __name__ == "__main__":
    try:
        print("\n".join(_lines()))
    except NoBrowser as error:
        print(f"specharness: {error}", file=sys.stderr)
        sys.exit(UNDECIDED)
