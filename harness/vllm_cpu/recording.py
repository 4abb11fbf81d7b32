"""What the recorder inside vLLM saw: states of the linear layers, row by row, just before each step read them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from harness.errors import HarnessError, UsageError
from harness.trace import Array
from harness.vllm_cpu.client import post
from harness.vllm_cpu.server import VllmServer
from harness.vllm_cpu.traffic import Answer, Ask, ask_all

CAPACITY = 2000
"""Rows that the worker keeps at most: 200 kB each with the tiny model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request in one step: what it feeds, and the state that it starts from."""

    step: int
    request: str
    computed: int  # tokens in cache before the step
    prompt: int  # tokens of the prompt
    tokens: int  # of the row
    speculative: bool
    accepted: int  # a of the request's previous step, as the layers were told
    conv: Array  # [L, (W - 1) D / every]
    recurrent: Array  # [L, HV, V K / every]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The rows of one run in the order of its steps, and all tokens of the requests they belong to."""

    rows: tuple[Row, ...]
    histories: Mapping[str, tuple[int, ...]]  # by the engine's name for a request
    layers: tuple[int, ...]
    every: int  # each so-many-th number of a layer's history, and of a head's state, is there
    dropped: int = 0  # rows that found no room
    shifted: int | None = None  # the step in which an accepted count was shifted on purpose

    def by_request(self) -> dict[str, list[Row]]:
        """Its rows by request, each in order."""
        rows = defaultdict(list)
        for row in self.rows:
            rows[row.request].append(row)
        return dict(rows)


def record(
    server: VllmServer, asks: Sequence[Ask], path: Path, *, every: int = 1, shift_after: int | None = None
) -> Recording:
    """Sends ``asks`` and records the rows they make; ``path`` is where the worker leaves its file.

    ``shift_after`` breaks the engine on purpose: after so many steps one row is told an accepted count that is one too
    small. Raises HarnessError where the server does not answer, or nothing was recorded.
    """

    def call(method: str, *args: Any) -> Any:
        body = {"method": f"specharness_{method}", "args": list(args)}
        return post(server.port, "/collective_rpc", body, timeout=120)["results"][0]

    call("watch", CAPACITY, every)
    if shift_after is not None:
        call("shift", shift_after)
    answers = ask_all(server, asks)
    call("save", str(path.absolute()))
    return _of_worker(path, answers)


def _of_worker(path: Path, answers: Sequence[Answer]) -> Recording:
    """The worker's file, with the answers that belong to it."""
    about, conv, recurrent = _read(path, "")
    names = dict.fromkeys(row["request"] for row in about["rows"])
    owners = {name: next((a for a in answers if name.startswith(a.name)), None) for name in names}
    known = {name: answer.history for name, answer in owners.items() if answer is not None}
    rows = [
        _row(row, conv[i], recurrent[i]) for i, row in enumerate(about["rows"]) if row["request"] in known
    ]
    if not rows:
        raise HarnessError(f"{path}: the recorder saw no row of our requests", hint="read the server's log")
    return _recording(about, rows, known)


def save(path: Path, recordings: Mapping[str, Recording]) -> None:
    """Several recordings in one compressed npz, to be judged again without a vLLM."""
    arrays: dict[str, Array] = {}
    for name, recording in recordings.items():
        about = {
            "layers": recording.layers,
            "every": recording.every,
            "dropped": recording.dropped,
            "shifted": recording.shifted,
            "histories": recording.histories,
            "rows": [{key: getattr(row, key) for key in _SCALARS} for row in recording.rows],
        }
        arrays[f"{name}.about"] = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        arrays[f"{name}.conv"] = np.stack([row.conv for row in recording.rows])
        arrays[f"{name}.recurrent"] = np.stack([row.recurrent for row in recording.rows])
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load(path: Path, name: str) -> Recording:
    """One recording of a file that ``save`` wrote. Raises UsageError where it is none."""
    about, conv, recurrent = _read(path, f"{name}.")
    try:
        rows = [_row(row, conv[i], recurrent[i]) for i, row in enumerate(about["rows"])]
        return _recording(about, rows, {key: tuple(tokens) for key, tokens in about["histories"].items()})
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: is no recording of states: {error!r}", hint="record it again") from None


_SCALARS = ("step", "request", "computed", "prompt", "tokens", "speculative", "accepted")


def _read(path: Path, prefix: str) -> tuple[dict[str, Any], Array, Array]:
    try:
        with np.load(path) as arrays:
            about = json.loads(bytes(arrays[f"{prefix}about"]).decode())
            return about, arrays[f"{prefix}conv"], arrays[f"{prefix}recurrent"]
    except (EOFError, KeyError, OSError, ValueError, BadZipFile) as error:
        raise UsageError(f"{path}: is no recording of states: {error}", hint="record it again") from None


def _row(about: Mapping[str, Any], conv: Array, recurrent: Array) -> Row:
    return Row(**{key: about[key] for key in _SCALARS}, conv=conv, recurrent=recurrent)


def _recording(
    about: Mapping[str, Any], rows: Sequence[Row], histories: Mapping[str, tuple[int, ...]]
) -> Recording:
    return Recording(
        rows=tuple(rows),
        histories=histories,
        layers=tuple(about["layers"]),
        every=about["every"],
        dropped=about["dropped"],
        shifted=about["shifted"],
    )
