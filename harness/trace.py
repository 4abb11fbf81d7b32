"""What happened: everything a check may look at, with no reference to how the engine works inside.

Arrays are numpy on the CPU, bf16 as float32. ``L`` counts the linear layers in model order.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from harness.errors import UsageError

Array = npt.NDArray[Any]
VERSION = 2
"""Version of the npz form; a file of another version is refused."""
_AGAIN = "run the scenario beside it again: specharness run SCENARIO.json"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Coordinate:
    """Where: the step, the request, the model layer, the tensor (``conv``, ``recurrent``, ``logits`` ...), the head.

    Ordered as a run unfolds, so the least coordinate is the earliest. Unknown parts are -1 or empty.
    """

    step: int
    layer: int = -1
    tensor: str = ""
    request: str = ""
    head: int = -1

    def __str__(self) -> str:
        parts = [f"step {self.step}"]
        parts += [f"request {self.request}"] if self.request else []
        parts += [f"layer {self.layer}"] if self.layer >= 0 else []
        parts += [self.tensor] if self.tensor else []
        parts += [f"head {self.head}"] if self.head >= 0 else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """The live state of one request over all linear layers, after ``tokens_included`` of its tokens."""

    conv: Array  # [L, W - 1, D], oldest input first
    recurrent: Array  # [L, HV, V, K]
    tokens_included: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTrace:
    """One request's tokens in one step.

    ``proposed`` are the drafts before any trim, ``kept`` those in the row (-1 for a placeholder), ``committed`` the
    tokens the step added (none for a prompt chunk that does not end its prompt), ``num_computed`` the tokens in cache
    after the step. A request that was preempted feeds all its tokens again, as a prompt.
    """

    request: str
    prompt_tokens: int  # prompt tokens fed by this row
    kept: tuple[int, ...]
    committed: tuple[int, ...]
    num_computed: int
    previous_accepted: int  # a of the request's previous step, as the engine used it
    proposed: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()  # the request's state slots
    blocks: tuple[int, ...] = ()  # the request's KV blocks
    cached: int = 0  # tokens that the prefix cache had, just before this row
    resumed: bool = False  # the first row after a preemption
    discarded: bool = False  # the row ran, but its request was over or preempted: nothing of it counts
    grammar_kept: int | None = None  # drafts left by the grammar, before budget and length
    matcher_tokens: int | None = None  # tokens the engine's matcher has consumed
    finish_reason: str | None = None
    logits: Array | None = None  # [n + 1, vocab], before the grammar mask
    mask: Array | None = None  # [n + 1, ceil(vocab / 32)] int32
    routing: Array | None = None  # [qlen, layers, top_k] expert ids
    state: LayerState | None = None

    @property
    def accepted(self) -> int:
        """a: tokens committed by this step."""
        return len(self.committed)

    @property
    def tokens(self) -> int:
        """qlen: tokens of the row."""
        return self.prompt_tokens + len(self.kept) + (0 if self.prompt_tokens else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """Places whose content a step changed, in any layer. State slot and KV block 0 are nobody's; a place outside the
    pool, below 0 or from its size on, lies in the guards around it."""

    conv: tuple[int, ...] = ()
    recurrent: tuple[int, ...] = ()
    kv: tuple[int, ...] = ()
    snapshots: tuple[int, ...] = ()  # state slots that the prefix cache says it wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """One engine step: its rows in batch order, the padding of a captured step, and what happened around it.

    ``replayed`` says that the step was the replay of a captured graph, not only padded like one. A dummy step has no
    rows. ``preempted`` and ``aborted`` lost their memory before the step; ``moved`` rows took the place of a row that
    was vacated.
    """

    index: int
    rows: tuple[RowTrace, ...]
    padded_rows: int = 0
    padded_tokens: int = 0
    replayed: bool = False
    k: int | None = None  # most drafts a row could have; None: the scenario's
    preempted: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    writes: Writes | None = None  # None: the target does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The suspect died: in which step, on which line of its code, with which words."""

    step: int
    kind: str
    message: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a request's user got."""

    tokens: tuple[int, ...]
    finish_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A whole run of one target over one scenario."""

    scenario: str
    target: str
    steps: tuple[StepTrace, ...]
    completions: dict[str, Completion]
    linear_layers: tuple[int, ...]  # model layer of each of the L linear layers
    crash: Crash | None = None
    compilations: dict[str, int] = field(default_factory=dict)  # compiled variants by kernel, where counted
    counters: dict[str, int] = field(default_factory=dict)  # the engine's own metrics, by name
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def has_graphs(self) -> bool:
        """Whether the target replays graphs where it pads to a captured size (its note ``graphs`` begins with on)."""
        return self.notes.get("graphs", "").startswith("on")

    def save(self, path: Path) -> None:
        """Write one compressed npz: the arrays, and everything else as JSON under the name ``trace``."""
        arrays: dict[str, Array] = {}
        text = json.dumps({"version": VERSION, **_strip(self, "", arrays)})
        np.savez_compressed(path, trace=np.frombuffer(text.encode(), dtype=np.uint8), **arrays)  # type: ignore[arg-type]

    @staticmethod
    def load(path: Path) -> Trace:
        """Read what ``save`` wrote; UsageError if the file is no trace, or one of another version."""
        try:
            with np.load(path) as arrays:
                return _trace(json.loads(bytes(arrays["trace"]).decode()), arrays, path)
        except (AttributeError, EOFError, KeyError, OSError, TypeError, ValueError, BadZipFile) as error:
            raise UsageError(f"{path}: is no readable trace: {error}", hint=_AGAIN) from None


def _trace(data: dict[str, Any], arrays: Any, path: Path) -> Trace:
    if data.get("version") != VERSION:
        raise UsageError(
            f"{path}: saw a trace of version {data.get('version')!r}, expected {VERSION}", hint=_AGAIN
        )
    return Trace(
        scenario=data["scenario"],
        target=data["target"],
        steps=tuple(_step(step, arrays) for step in data["steps"]),
        completions={
            name: Completion(tokens=tuple(done["tokens"]), finish_reason=done["finish_reason"])
            for name, done in data["completions"].items()
        },
        linear_layers=tuple(data["linear_layers"]),
        crash=Crash(**data["crash"]) if data["crash"] else None,
        compilations=data["compilations"],
        counters=data["counters"],
        notes=data["notes"],
    )


def _strip(value: Any, name: str, arrays: dict[str, Array]) -> Any:
    """``value`` for JSON; arrays move into ``arrays`` under their path."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {f.name: _strip(getattr(value, f.name), f"{name}.{f.name}", arrays) for f in fields}
    if isinstance(value, dict):
        return {key: _strip(item, f"{name}.{key}", arrays) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_strip(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]
    return value


def _step(data: dict[str, Any], arrays: Any) -> StepTrace:
    step: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}
    step["rows"] = tuple(_row(row, arrays) for row in data["rows"])
    if step["writes"] is not None:
        step["writes"] = Writes(**{key: tuple(places) for key, places in step["writes"].items()})
    return StepTrace(**step)


def _row(data: dict[str, Any], arrays: Any) -> RowTrace:
    def restore(value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {"array"}:
            return arrays[value["array"]]
        return tuple(value) if isinstance(value, list) else value

    row = {key: restore(value) for key, value in data.items()}
    if row["state"] is not None:
        row["state"] = LayerState(**{key: restore(value) for key, value in row["state"].items()})
    return RowTrace(**row)
