"""Sources of releases: whole or not there, offline once they are there, and one clear error for every way to fail.

A program of a few lines stands in for pip: it writes what a test wants into the folder it is given.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import TargetError
from harness.targets.upstream import download
from harness.targets.upstream.download import Wheel, fill
from harness.targets.upstream.wheel import release_files

WHEEL = Wheel(distribution="thing", version="1.0", wanted=("thing/ops/*.py",), needs_mib=1)
NO_PIP = (sys.executable, "-c", "raise SystemExit('the network was asked')")


def wheel_file(folder: Path) -> Path:
    path = folder / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in (
            "thing/ops/conv.py",
            "thing/ops/deep/rule.py",
            "thing/other.py",
            "thing-1.0.dist-info/LICENSE",
        ):
            archive.writestr(name, f"# {name}\n" * 50)
    return path


def pip_that(tmp_path: Path, does: str) -> Sequence[str]:
    """A pip that runs the lines ``does``; ``folder`` is where the wheel is wanted."""
    script = tmp_path / "pip.py"
    head = "import sys, time\nfrom pathlib import Path\nfolder = Path(sys.argv[sys.argv.index('-d') + 1])\n"
    script.write_text(head + textwrap.dedent(does))
    return (sys.executable, str(script))


def pip_that_brings(tmp_path: Path, wheel: Path) -> Sequence[str]:
    return pip_that(tmp_path, f"(folder / {wheel.name!r}).write_bytes(Path({str(wheel)!r}).read_bytes())")


def left(cache: Path) -> list[str]:
    """What is in the cache, locks aside."""
    return sorted(p.name for p in cache.iterdir() if p.suffix != ".lock") if cache.exists() else []


def test_only_the_wanted_files_are_kept_and_the_wheel_is_not(tmp_path: Path) -> None:
    folder = fill(
        tmp_path / "cache" / "thing-1.0", WHEEL, pip=pip_that_brings(tmp_path, wheel_file(tmp_path))
    )
    kept = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    assert kept == [
        "release.json",
        "thing-1.0.dist-info/LICENSE",
        "thing/ops/conv.py",
        "thing/ops/deep/rule.py",
    ]
    assert left(tmp_path / "cache") == ["thing-1.0"]


def test_a_filled_cache_needs_no_network(tmp_path: Path) -> None:
    folder = fill(
        tmp_path / "cache" / "thing-1.0", WHEEL, pip=pip_that_brings(tmp_path, wheel_file(tmp_path))
    )
    assert fill(folder, WHEEL, pip=NO_PIP) == folder


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("WARNING: Retrying (Retry(total=0)) after connection broken", "no answer from the package index"),
        (
            "ERROR: Could not find a version (from versions: 0.9, 1.1)",
            "no wheel of this version (newest there: 0.9, 1.1)",
        ),
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: something else", "something else"),
    ],
)
def test_what_pip_dies_of_is_one_line_and_leaves_nothing(tmp_path: Path, log: str, said: str) -> None:
    pip = pip_that(tmp_path, f"(folder / 'half.whl.part').write_bytes(b'x')\nprint({log!r})\nsys.exit(1)")
    with pytest.raises(TargetError) as caught:
        fill(tmp_path / "cache" / "thing-1.0", WHEEL, pip=pip)
    assert said in str(caught.value)
    assert caught.value.hint
    assert caught.value.exit_code == 2
    assert left(tmp_path / "cache") == []


@pytest.mark.parametrize(
    "damage", ["cut in half", "one byte of a file", "no archive at all", "none of the files"]
)
def test_a_damaged_wheel_is_refused_and_the_next_try_is_whole(tmp_path: Path, damage: str) -> None:
    good = wheel_file(tmp_path)
    content = good.read_bytes()
    (tmp_path / "bad").mkdir()
    bad = tmp_path / "bad" / good.name
    if damage == "none of the files":
        with zipfile.ZipFile(bad, "w") as archive:
            archive.writestr("thing/elsewhere.py", "")
    else:
        at = content.index(b"# thing/ops/conv.py")
        changed = content[:at] + b"%" + content[at + 1 :]
        bad.write_bytes(
            {"cut in half": content[: len(content) // 2], "no archive at all": b"<html>"}.get(damage, changed)
        )
    with pytest.raises(TargetError, match=r"damaged|holds none"):
        fill(tmp_path / "cache" / "thing-1.0", WHEEL, pip=pip_that_brings(tmp_path, bad))
    assert left(tmp_path / "cache") == []
    assert fill(tmp_path / "cache" / "thing-1.0", WHEEL, pip=pip_that_brings(tmp_path, good)).is_dir()


def test_too_little_disk_is_said_before_anything_is_downloaded(tmp_path: Path) -> None:
    greedy = Wheel(distribution="thing", version="1.0", wanted=("*",), needs_mib=2**40)
    with pytest.raises(TargetError, match="MiB of free disk, expected"):
        fill(tmp_path / "cache" / "thing-1.0", greedy, pip=NO_PIP)


def test_a_cache_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file stands in the way")
    with pytest.raises(TargetError, match=r"cannot keep the files of thing==1\.0"):
        fill(tmp_path / "cache" / "thing-1.0", WHEEL, pip=NO_PIP)


def test_a_changed_file_in_the_cache_is_noticed(tmp_path: Path) -> None:
    folder = fill(
        tmp_path / "cache" / "thing-1.0", WHEEL, pip=pip_that_brings(tmp_path, wheel_file(tmp_path))
    )
    (folder / "thing/ops/conv.py").write_text("edited")
    with pytest.raises(TargetError, match=r"thing/ops/conv\.py differs"):
        fill(folder, WHEEL, pip=NO_PIP)


def test_a_download_killed_half_way_leaves_a_cache_that_works(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    pip = pip_that(tmp_path, "(folder / 'half').write_bytes(b'x' * 1000)\ntime.sleep(60)")
    program = f"""
        from pathlib import Path
        from harness.targets.upstream.download import Wheel, fill
        fill(Path({str(cache / "thing-1.0")!r}), {WHEEL!r}, pip={tuple(pip)!r})
    """
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], env=environment)
    deadline = time.monotonic() + 60
    while not [*cache.glob(".thing-1.0-*/half")]:
        assert time.monotonic() < deadline, "the download never began"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (cache / "thing-1.0").exists()
    folder = fill(cache / "thing-1.0", WHEEL, pip=pip_that_brings(tmp_path, wheel_file(tmp_path)))
    assert folder.is_dir()
    assert left(cache) == ["thing-1.0"]


def test_a_download_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "DOWNLOAD_LIMIT", 0.2)
    with pytest.raises(TargetError, match="took more than"):
        fill(tmp_path / "cache" / "thing-1.0", WHEEL, pip=pip_that(tmp_path, "time.sleep(60)"))
    assert left(tmp_path / "cache") == []


def test_a_wheel_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("thing/ops/conv.py", "")
        archive.writestr("thing/ops/../../../escaped.py", "")
    fill(tmp_path / "cache" / "thing-1.0", WHEEL, pip=pip_that_brings(tmp_path, path))
    assert not [*tmp_path.rglob("escaped.py")]


def test_a_checkout_is_read_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "fork" / "vllm").mkdir(parents=True)
    release = release_files("vllm", str(tmp_path / "fork"), tmp_path / "cache")
    assert (release.root, release.version) == (tmp_path / "fork", None)
    assert not (tmp_path / "cache").exists()


def test_a_folder_without_the_package_is_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="saw no folder vllm/"):
        release_files("vllm", str(tmp_path), tmp_path / "cache")


@pytest.mark.parametrize(
    "platform", ["manylinux_2_24_x86_64", "manylinux_2_31_x86_64", "manylinux2014_x86_64"]
)
def test_every_platform_that_a_release_was_built_for_is_asked_for(tmp_path: Path, platform: str) -> None:
    """0.21.0 of vLLM is there for manylinux_2_24 alone, and pip takes no neighbour."""
    wheel = wheel_file(tmp_path)
    picky = pip_that(
        tmp_path,
        f"""
        if {f"--platform={platform}"!r} not in sys.argv:
            print("ERROR: No matching distribution found")
            sys.exit(1)
        (folder / {wheel.name!r}).write_bytes(Path({str(wheel)!r}).read_bytes())
        """,
    )
    assert fill(tmp_path / "cache" / "thing-1.0", WHEEL, pip=picky).is_dir()
