"""Other people's tools against the scripts: what a tool claims of a request, held against what the server did.

A tool is a command with holes: ``{url}`` is the server, ``{script}`` the model to ask for, ``{path}`` the API's path
and ``{result}`` a file for its result, read with the keys that vLLM and SGLang write (``completed``, ...).
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.bench.conformance.score import Score, truth_log
from harness.bench.conformance.script import Script
from harness.bench.record import Outcome
from harness.errors import UsageError

LONGEST_RUN = 120.0
"""Seconds that a tool may take for one script; most of them import for ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a tool says. Seconds; ``None``: it does not say."""

    is_success: bool
    ttft: float | None = None
    tpot: float | None = None
    tokens: int | None = None


def claim_of(result: Mapping[str, Any]) -> Claim:
    """A result in vLLM's or SGLang's form, of one request."""
    return Claim(
        is_success=bool(result.get("completed")),
        ttft=_seconds(result.get("mean_ttft_ms")),
        tpot=_seconds(result.get("mean_tpot_ms")),
        tokens=result.get("total_output_tokens"),
    )


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def judged_claim(script: Script, claim: Claim, entry: Mapping[str, Any], tolerance: float) -> Score:
    """A claim against the script; times only of a success, and against when the server really wrote."""
    truth, faults = script.truth, []
    is_whole = truth.outcome is Outcome.COMPLETE
    if claim.is_success and not is_whole:
        faults.append(f"a success, although the stream ended with: {truth.outcome.value}")
    elif is_whole and not claim.is_success:
        faults.append("a failure, although the stream was whole")
    elif is_whole:
        for what, seen, right in (
            ("TTFT", claim.ttft, _ttft(script, entry)),
            ("TPOT", claim.tpot, truth.tpot),
        ):
            if seen is not None and right is not None and abs(seen - right) > tolerance:
                faults.append(f"{what} {seen * 1e3:.1f} ms, expected {right * 1e3:.1f} ms")
        if claim.tokens is not None and claim.tokens != truth.completion_tokens:
            faults.append(f"{claim.tokens} tokens, expected {truth.completion_tokens}")
    return Score(
        name=script.name,
        path=script.path,
        expected=truth.outcome,
        saw=Outcome.COMPLETE if claim.is_success else Outcome.CUT,
        faults=tuple(faults),
    )


def _ttft(script: Script, entry: Mapping[str, Any]) -> float | None:
    """From when the server read the request to its first write with a token."""
    moments = [write.at for write in script.writes]
    if script.truth.ttft is None or len(entry.get("written", ())) < len(moments):
        return script.truth.ttft
    return float(entry["written"][moments.index(script.truth.ttft)] - entry["received"])


def score_tool(command: str, url: str, scripts: Sequence[Script], *, tolerance: float = 0.02) -> list[Score]:
    """Run a tool once for each script.

    Raises:
        UsageError: the command has no ``{url}``, ``{script}`` and ``{result}``, cannot be run, or never gave a result.
    """
    missing = [hole for hole in ("{url}", "{script}", "{result}") if hole not in command]
    if missing:
        raise UsageError(
            f"saw the command {command!r}, expected {', '.join(missing)} in it",
            hint="for example 'vllm bench serve --base-url {url} --model {script} --result-filename {result} ...'",
        )
    scores, said = [], ""
    for script in scripts:
        claim, last = _run(command, url, script)
        said = said or last
        entries = [entry for entry in truth_log(url).values() if entry["script"] == script.name]
        told = claim or Claim(is_success=False)
        scores.append((claim, judged_claim(script, told, entries[-1] if entries else {}, tolerance)))
    if all(claim is None for claim, _ in scores):
        raise UsageError(f"the tool wrote no result for any script, and said: {said}", hint="run it by hand")
    return [score for _, score in scores]


def _run(command: str, url: str, script: Script) -> tuple[Claim | None, str]:
    """What it claims, and its last words where it claims nothing."""
    with TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        holes = {"url": url, "script": script.name, "path": script.path, "result": str(result)}
        words = [word.format(**holes) for word in shlex.split(command)]
        said = f"nothing within {LONGEST_RUN:g} s"
        try:
            tool = subprocess.run(words, capture_output=True, timeout=LONGEST_RUN, cwd=folder)
            said = (tool.stderr or tool.stdout).decode(errors="replace").strip().rpartition("\n")[2]
        except subprocess.TimeoutExpired:
            pass  # a tool that hangs has claimed nothing
        except OSError as error:
            raise UsageError(f"cannot run {words[0]!r}: {error.strerror}", hint="check the command") from None
        try:
            return claim_of(json.loads(result.read_text(encoding="utf-8"))), ""
        except (OSError, ValueError):
            return None, said
