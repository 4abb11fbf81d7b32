"""The state of a live vLLM, from the start of a server to the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.oracle.model import Oracle
from harness.vllm_cpu.environment import Tell
from harness.vllm_cpu.recording import Recording, record
from harness.vllm_cpu.server import VllmServer, serving_vllm
from harness.vllm_cpu.states import Finding, judge, judge_plain, judge_power, measure
from harness.vllm_cpu.traffic import mixed

_SHIFT_AFTER = 20  # steps


def run_states(folder: Path, tell: Tell) -> list[Finding]:
    """Records the same requests without speculation, with MTP and our plugin, and with a count shifted on purpose.

    Logs stay in ``folder``. Raises HarnessError where vLLM cannot be installed, started or asked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with serving_vllm(False, False, folder / "vllm-states-off.log", tell) as server:
        plain = record_plain(server, folder, tell)
    with serving_vllm(True, True, folder / "vllm-states-mtp.log", tell) as server:
        drafted = record_drafted(server, folder, tell)
        model = server.folder
    return findings({"plain": plain} | drafted, Oracle.load(model), tell)


def record_plain(server: VllmServer, folder: Path, tell: Tell, *, every: int = 1) -> Recording:
    """What noise is measured on; the server must not speculate."""
    return _record(server, folder, tell, name="plain", every=every)


def record_drafted(server: VllmServer, folder: Path, tell: Tell, *, every: int = 1) -> dict[str, Recording]:
    """What is judged, and a second run that must fail; the server must have drafts and our plugin."""
    return {
        "drafted": _record(server, folder, tell, name="drafted", every=every),
        "shifted": _record(server, folder, tell, name="shifted", every=every, shift_after=_SHIFT_AFTER),
    }


def findings(recordings: Mapping[str, Recording], oracle: Oracle, tell: Tell) -> list[Finding]:
    """Verdicts over the recordings ``plain``, ``drafted`` and ``shifted``, in this order."""
    tell("comparing the recorded states with the oracle")
    gauges = measure(recordings["plain"], oracle)
    return [
        judge_plain(gauges),
        judge(recordings["drafted"], gauges, oracle),
        judge_power(recordings["shifted"], gauges, oracle),
    ]


def _record(
    server: VllmServer, folder: Path, tell: Tell, *, name: str, every: int, shift_after: int | None = None
) -> Recording:
    tell(f"recording states: {name}")
    path = folder / f"states-{name}.npz"
    try:
        return record(server, mixed(), path, every=every, shift_after=shift_after)
    finally:
        path.unlink(missing_ok=True)  # up to 400 MB, and all of it in memory by now
