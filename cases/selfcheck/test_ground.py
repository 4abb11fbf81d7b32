"""The ground others stand on: the lock, the Makefile's set-up, the doctor, the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from harness import doctor

ROOT = Path(__file__).resolve().parents[2]
LOCK = dict(
    line.split("==")
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if line and line[0] != "#"
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Stands in for Python in the Makefile: says what it was asked, makes an environment out of itself, installs nothing.
FAKE_PYTHON = """#!/bin/sh
echo "python $*" >>"$FAKE_LOG"
case "$1 $2" in
  "-c "*) exit "${FAKE_TOO_OLD:-0}" ;;
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "-m pip") exit "${FAKE_PIP_FAILS:-0}" ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what the Makefile reads, and `python` as the stand-in."""
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    fake = tmp_path / "python"
    fake.write_text(FAKE_PYTHON)
    fake.chmod(0o755)
    return tmp_path


def make(clone: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-C", str(clone), f"PYTHON={clone}/python", *words],
        env={"PATH": os.environ["PATH"], "FAKE_LOG": str(clone / "log"), **environment},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def asked(clone: Path) -> list[str]:
    """What the stand-in was asked since the last look."""
    log = clone / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def test_first_verb_makes_the_environment_and_the_second_skips_it(clone: Path) -> None:
    first = make(clone, "repro", "ISSUE=24881")
    assert first.returncode == 0, first.stderr
    assert "this once" in first.stderr
    assert [line for line in asked(clone) if "-e .[dev]" in line]
    second = make(clone, "repro", "ISSUE=24881")
    assert second.stderr == ""
    assert asked(clone) == ["python -m harness.cli repro 24881"]


def test_an_interrupted_install_starts_again_from_nothing(clone: Path) -> None:
    assert make(clone, "repro", "ISSUE=1", FAKE_PIP_FAILS="1").returncode == 2
    assert not (clone / ".venv/.ready").exists()
    (clone / ".venv/half-written").touch()
    again = make(clone, "repro", "ISSUE=1")
    assert again.returncode == 0
    assert "interrupted" in again.stderr
    assert not (clone / ".venv/half-written").exists()


def test_two_installs_at_once_do_not_tread_on_each_other(clone: Path) -> None:
    (clone / ".venv").mkdir()
    (clone / ".venv/.unfinished").write_text(str(os.getpid()))
    answer = make(clone, "repro", "ISSUE=1")
    assert answer.returncode == 2
    assert f"process {os.getpid()}" in answer.stderr
    assert (clone / ".venv/.unfinished").exists()


def test_an_environment_made_by_hand_is_kept(clone: Path) -> None:
    (clone / ".venv").mkdir()
    (clone / ".venv/mine").touch()
    assert make(clone, "repro", "ISSUE=1").returncode == 0
    assert (clone / ".venv/mine").exists()


def test_a_changed_lock_renews_the_environment(clone: Path) -> None:
    make(clone, "repro", "ISSUE=1")
    asked(clone)
    later = (clone / ".venv/.ready").stat().st_mtime + 10
    os.utime(clone / "requirements.lock", (later, later))
    make(clone, "repro", "ISSUE=1")
    assert [line for line in asked(clone) if "-m pip" in line]


def test_an_old_python_gets_one_clear_line(clone: Path) -> None:
    for words in (["repro", "ISSUE=1"], ["repro", "ISSUE=1", "VENV=none"]):
        answer = make(clone, *words, FAKE_TOO_OLD="1")
        assert answer.returncode == 2
        said = [line for line in answer.stderr.splitlines() if not line.startswith("make: ")]
        assert len(said) == 1
        assert "needs Python 3.11 or newer" in said[0]
    assert not (clone / ".venv").exists()


def test_torch_index_serves_torch_and_nothing_else(clone: Path) -> None:
    make(clone, "repro", "ISSUE=1", "TORCH_INDEX=https://wheels.example/cpu")
    pips = [line for line in asked(clone) if "-m pip" in line]
    assert len(pips) == 2
    assert pips[0].endswith("--no-deps --index-url https://wheels.example/cpu torch")
    assert "--index-url" not in pips[1]


def test_venv_none_installs_nothing(clone: Path) -> None:
    assert make(clone, "repro", "ISSUE=1", "VENV=none").returncode == 0
    assert not [line for line in asked(clone) if "pip" in line or "venv" in line]
    assert not (clone / ".venv").exists()


def test_variables_reach_the_command(clone: Path) -> None:
    make(
        clone,
        "repro",
        "PR=24957",
        "TARGET=upstream:v0.10.2",
        "VARIANT=fixed",
        "SEED=7",
        "ARGS=--json --bisect",
    )
    wanted = (
        "python -m harness.cli repro 24957 --target upstream:v0.10.2 --variant fixed --seed 7 --json --bisect"
    )
    assert asked(clone)[-1] == wanted


def test_make_alone_lists_the_verbs(clone: Path) -> None:
    verbs = [line.split()[0] for line in make(clone).stdout.splitlines() if not line.startswith("make")]
    assert verbs[:3] == ["help", "repro", "test"]
    assert asked(clone) == []


def test_lock_fits_both_builds_of_torch() -> None:
    assert not [name for name in LOCK if name.startswith("nvidia-") or "cuda" in name]
    assert not [version for version in LOCK.values() if "+" in version]
    assert (LOCK["torch"], LOCK["triton"]) == ("2.13.0", "3.7.1")


def test_lock_pins_everything_that_is_asked_for() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["dev"], *extras["live"], *extras["bench"]]
    pinned = {name.lower().replace("_", "-") for name in LOCK}  # one name (PEP 503)
    missing = {re.split("[>=<~!]", line)[0] for line in wanted} - pinned
    assert not missing


def test_doctor_reports_a_package_whose_import_raises() -> None:
    class Panic(BaseException):
        """What a package written in another language may raise."""

    def load(module: str) -> object:
        if module == "xgrammar":
            raise Panic("undefined symbol: _ZN3c105")
        return object()

    examination = doctor.examine(load)
    assert examination.exit_code == 1
    assert any("xgrammar" in line and "undefined symbol" in line for line in examination.missing["repro"])
    assert not any("xgrammar" in line for line in examination.missing["lint"])


def test_doctor_survives_an_empty_python_and_a_torn_package(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = [sys.executable, "-S", "-P", str(ROOT / "harness/doctor.py")]
    answer = subprocess.run(bare, capture_output=True, text=True)
    assert answer.returncode == 1, answer.stderr
    last = json.loads(answer.stdout.splitlines()[-1])
    assert last["exit"] == 1
    assert "torch" in last["missing"]["repro"][0]

    def torn(name: str) -> str:
        raise KeyError("Version")

    monkeypatch.setattr(doctor.metadata, "version", torn)
    assert all(package.problem for package in doctor.examine().packages)


def test_doctor_speaks_for_one_verb_only_when_it_lacks_something() -> None:
    command = ["-P", str(ROOT / "harness/doctor.py"), "--for", "test"]
    content = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    assert (content.returncode, content.stdout, content.stderr) == (0, "", "")
    lacking = subprocess.run([sys.executable, "-S", *command], capture_output=True, text=True)
    assert lacking.returncode == 2
    assert "cannot run `test`: not installed: " in lacking.stderr
    assert json.loads(lacking.stdout)["exit"] == 2


def test_doctor_knows_gpus_from_their_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    tool.write_text("#!/bin/sh\necho '580.95, NVIDIA H200, 143771 MiB'\n")
    tool.chmod(0o755)
    assert doctor.find_gpus() == (("NVIDIA H200, 143771 MiB",), "driver 580.95")
    tool.write_text("#!/bin/sh\necho 'cannot talk to the driver, sorry'; exit 9\n")
    assert doctor.find_gpus() == ((), "nvidia-smi ends with 9 and lists no GPU")
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert doctor.find_gpus()[0] == ()


def test_doctor_draws_tables_only_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    examination = doctor.examine(lambda _: None)
    for terminal in (True, False):
        doctor.render(examination, Console(force_terminal=terminal, width=100))
        assert ("┃" in capsys.readouterr().out) is terminal


def test_wheel_holds_the_harness_its_data_and_the_license(tmp_path: Path) -> None:
    wheel = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    built = subprocess.run(wheel, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"specharness-{PROJECT['version']}.dist-info/METADATA").decode()
    assert {name.split("/")[0] for name in names} == {
        "harness",
        f"specharness-{PROJECT['version']}.dist-info",
    }
    assert "License-Expression: Apache-2.0" in metadata
    assert [name for name in names if name.endswith("LICENSE")]
    files = [
        path for path in (ROOT / "harness").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert {str(path.relative_to(ROOT)) for path in files} <= names
