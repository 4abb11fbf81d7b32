"""A target in a process of its own: a release's code, or a user's kernel, inside our engine.

One child serves many scenarios, so that its imports are paid for once. It has a time limit; what it dies of, a signal
included, is a crash of the suspect.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from harness.errors import TargetError, Unsupported
from harness.scenario import Scenario
from harness.targets.protocols import Capability
from harness.targets.upstream.order import Order
from harness.trace import Completion, Crash, Trace

START_LIMIT, RUN_LIMIT = 120.0, 600.0
"""Seconds until a child must have loaded its suspect, and until it must have run a scenario."""
CAPABILITIES = frozenset(Capability) - {Capability.PADDING}

UNCOMPILED = "CompilationError"
"""How Triton says that it refuses a kernel's source. Releases come with a Triton of their own, which is not here."""


class Died(Exception):
    """The child ended without an answer."""


class UpstreamTarget:
    """One suspect. The child starts with the first question and ends with this object."""

    capabilities = CAPABILITIES

    def __init__(self, order: Order, *, run_limit: float = RUN_LIMIT) -> None:
        self.name = order.title
        self._order = order
        self._run_limit = run_limit
        self._child: Child | None = None
        self._setting: dict[str, str] = {}

    @property
    def setting(self) -> dict[str, str]:
        """Where the suspect comes from, what of it was typed again, and how it runs. Unsupported where it does not."""
        self._started()
        return self._setting

    def run(self, scenario: Scenario, *, reverse_rows: bool = False) -> Trace:
        """Run a scenario in the child.

        Raises:
            Unsupported: the suspect cannot do this, gave no answer in time, or is a release that does not compile.
        """
        with tempfile.TemporaryDirectory(prefix="specharness-") as folder:
            path = Path(folder) / "trace.npz"
            question = {"scenario": scenario.to_json(), "reverse_rows": reverse_rows, "trace": str(path)}
            try:
                _told(self._started().ask(question, self._run_limit), self.name)
            except Died as death:
                self.close()
                return self._dead(scenario, str(death))
            trace = replace(Trace.load(path), target=self.name, notes=self._setting)
        if self._order.project is not None and trace.crash and trace.crash.kind == UNCOMPILED:
            said = trace.crash.message.strip().splitlines()[-1]
            raise Unsupported(f"{self.name}: the Triton here, not its own, does not compile it: {said}")
        return trace

    def contract(self) -> list[str]:
        """What is wrong with the suspect's verify recurrence alone; nothing, if it keeps the contract."""
        try:
            findings: list[str] = _told(self._started().ask({"contract": True}, self._run_limit), self.name)[
                "findings"
            ]
        except Died as death:
            self.close()
            return [str(death)]
        return findings

    def close(self) -> None:
        """End the child; the next question starts another."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def __del__(self) -> None:
        self.close()

    def _started(self) -> Child:
        if self._child is None:
            child = Child(interpret=self._order.device == "cpu")
            try:
                answer = _told(child.ask({"order": asdict(self._order)}, START_LIMIT), self.name)
            except BaseException as error:
                child.end()
                if isinstance(error, Died):
                    raise TargetError(f"{self.name}: {error}", hint="specharness doctor") from None
                raise
            self._child, self._setting = child, answer["setting"]
        return self._child

    def _dead(self, scenario: Scenario, message: str) -> Trace:
        return Trace(
            scenario=scenario.name,
            target=self.name,
            steps=(),
            completions={r.id: Completion(tokens=(), finish_reason=None) for r in scenario.requests},
            linear_layers=(),
            crash=Crash(step=0, kind="ProcessDied", message=message, where="child process"),
            notes=self._setting,
        )


def _told(answer: dict[str, Any], name: str) -> dict[str, Any]:
    if "unsupported" in answer:
        raise Unsupported(f"{name}: {answer['unsupported']}")
    if "usage" in answer:
        raise TargetError(f"{name}: {answer['usage']}")
    return answer


class Child:
    """The process and the way to talk to it."""

    def __init__(self, *, interpret: bool) -> None:
        home = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join([home, os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        environment.pop("TRITON_INTERPRET", None)
        if interpret:
            environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the child
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.targets.upstream.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self._buffer = b""

    def ask(self, question: dict[str, Any], limit: float) -> dict[str, Any]:
        """One question, one answer. Died if the child ends; Unsupported if it takes longer than ``limit`` seconds."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer will say why
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line(limit))
        return answer

    def _line(self, limit: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not ready.select(limit):
                    self.end()
                    raise Unsupported(
                        f"no answer within {limit:.0f} s; it was ended", hint="try a smaller scenario"
                    )
                piece = os.read(self._process.stdout.fileno(), 65536)
                if not piece:
                    raise Died(self._last_words())
                self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with {how}: {' | '.join(lines[-3:]) or 'no last words'}"

    def end(self) -> None:
        """Kill the process, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def under_each_suspect(
    make_order: Callable[[str], Order],
) -> Callable[[str], UpstreamTarget]:
    """A function from a suspect's column to its target, one target (and child) per column."""
    opened: dict[str, UpstreamTarget] = {}

    def under(column: str) -> UpstreamTarget:
        if column not in opened:
            opened[column] = UpstreamTarget(make_order(column))
        return opened[column]

    return under
