"""A real `vllm serve` on the CPU, on a tiny model: started, watched, stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import HarnessError
from harness.models.tiny import default_cache, ensure
from harness.vllm_cpu import environment
from harness.vllm_cpu.client import is_healthy, post
from harness.vllm_cpu.environment import Tell

MODEL = "tiny"
K = 3
SITE = Path(__file__).with_name("site")
"""What vLLM's processes find on their path besides vLLM: our plugin, our recorder, and metadata of both."""
_PATIENCE = 600.0  # seconds until the server must be healthy; 30 to 90 on two idle cores
_CAUSE = re.compile(r"\((?:Worker|EngineCore)[^)]*\) ERROR [^\]]*\] (\w+(?:Error|Exception): .*)")


class VllmServer:
    """One running server. ``folder`` holds the model with its tokenizer and config."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, folder: Path, log: Path) -> None:
        self._process, self.port, self.folder, self.log = process, port, folder, log
        self.url, self.model, self.k = f"http://127.0.0.1:{port}", MODEL, K

    @property
    def alive(self) -> bool:
        """Whether its first process still runs; vLLM ends it soon after the engine died."""
        return self._process.poll() is None

    def log_tail(self, lines: int = 20) -> list[str]:
        """The last lines of its log."""
        return self._log_lines()[-lines:]

    def cause(self) -> str | None:
        """The first error that its engine or worker logged: the last lines only tell what followed from it."""
        found = (_CAUSE.search(line) for line in self._log_lines())
        return next((match[1] for match in found if match), None)

    def _log_lines(self) -> list[str]:
        return self.log.read_text("utf-8", "replace").splitlines() if self.log.exists() else []

    def wait(self, tell: Tell) -> None:
        """Until it is healthy and has answered once: the first answer alone takes 15 s. Raises HarnessError."""
        start = told = time.monotonic()
        while not is_healthy(self.port):
            now = time.monotonic()
            if not self.alive or now - start > _PATIENCE:
                what = "ended" if not self.alive else f"is not healthy after {_PATIENCE:.0f} s"
                words = "\n  ".join([f"cause: {self.cause()}", *self.log_tail()])
                raise HarnessError(f"vLLM {what} at its start:\n  {words}", hint=f"read {self.log}")
            if now - told > 15:
                told = now
                tell(f"vLLM is starting: {now - start:.0f} s (half a minute to two)")
            time.sleep(0.5)
        post(
            self.port, "/v1/completions", {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 8}, timeout=300
        )
        tell(f"vLLM is ready after {time.monotonic() - start:.0f} s")

    def stop(self) -> None:
        """Ends all its processes: asks the first, which ends the others, and kills what is left of its group."""
        if self.alive:
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        if self.alive:
            self._process.kill()
            self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
            for _ in range(100):
                os.killpg(self._process.pid, 0)  # until nobody is left
                time.sleep(0.05)


@contextmanager
def serving_vllm(
    plugin: bool, speculate: bool, log: Path, tell: Tell, *, folder: Path | None = None
) -> Iterator[VllmServer]:
    """A server on the tiny model ``peaked``, or on the one in ``folder``, with MTP drafts or without speculation.

    ``plugin`` loads the work-around for rows of unequal length; without it vLLM is as released. Its environment is
    made where it is missing. Raises HarnessError where it does not start.
    """
    cache = default_cache(os.environ)
    python = environment.ensure(environment.default_folder(cache), tell)
    model = folder or ensure("peaked", cache=cache)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tell(f"starting vLLM {environment.VERSION}: {_described(plugin, speculate)}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(python), "-m", "vllm.entrypoints.cli.main", *_arguments(model, port, speculate)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_surroundings(plugin),
            start_new_session=True,  # a process group of its own, so that nothing of it outlives stop()
        )
    server = VllmServer(process, port, model, log)
    try:
        server.wait(tell)
        yield server
    finally:
        server.stop()


def _described(plugin: bool, speculate: bool) -> str:
    return f"{f'MTP, k={K}' if speculate else 'no speculation'}, {'with our plugin' if plugin else 'as released'}"


def _arguments(model: Path, port: int, speculate: bool) -> list[str]:
    grammar = {"backend": "xgrammar", "disable_any_whitespace": True}
    drafts = {"method": "mtp", "num_speculative_tokens": K}
    return [
        *("serve", str(model), "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", "2048", "--enforce-eager", "--no-enable-prefix-caching", "--max-logprobs", "-1"),
        *("--structured-outputs-config", json.dumps(grammar)),
        *("--worker-extension-cls", "specharness_vllm.recorder.StateRecorder"),
        *(("--speculative-config", json.dumps(drafts)) if speculate else ()),
    ]


def _surroundings(plugin: bool) -> dict[str, str]:
    """Ours, without what would change vLLM's behaviour behind our back."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "PYTHON"))
    }
    return inherited | {
        "PYTHONPATH": str(SITE),
        "SPECHARNESS_WORKAROUND": str(int(plugin)),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # /collective_rpc
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",  # with two, waiting threads take both cores from each other
    }
