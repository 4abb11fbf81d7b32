"""What to do: the intent of a run (requests, grammars, arrivals), and perhaps a script (drafts and accepted counts).

A scenario without a script is *natural*: drafter and sampler decide. With a script it is *forced*: the script
proposes the drafts and commits the tokens, the engine's logits and states are recorded but decide nothing, so a
faulty engine cannot drift off the script. Grammar, budget and length trims are never scripted: they are the
engine's own work, judged against the oracle.

    Scenario(name="two-rows", k=2, requests=(Request(id="r0", prompt=(5, 6, 7), max_tokens=8), ...),
             script={"r0": (Turn(token=9), Turn(drafts=(10, 11), accepted=3, token=12), ...)})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

from harness.codec import decode, encode
from harness.errors import ScenarioError

VERSION = 1
"""Version of the JSON form; a file of another version is refused."""

GrammarKind = Literal["json_schema", "regex", "ebnf", "choice"]
Drafter = Literal["mtp", "ngram"]
Regime = Literal["trim", "placeholder"]
"""``trim``: refused drafts are cut, so rows are unequal. ``placeholder``: steps are scheduled before the results of the
step before are known (asynchronous scheduling), so refused drafts become -1 and rows stay full."""
FailureKind = Literal[
    "crash",
    "state",
    "logits",
    "ledger",
    "memory",
    "grammar",
    "tokens",
    "finish",
    "drafts",
    "recompile",
]
EventKind = Literal["preempt", "abort", "dummy", "draft length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A constraint on the generated text; ``text`` is the schema, the pattern, the EBNF, or a JSON list of choices."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is drawn; temperature 0 is greedy, top_k 0 and top_p 1 switch their cut off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: it arrives at ``arrival`` (a step), and ends at ``max_tokens`` or at an end token."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    arrival: int = 0
    grammar: Grammar | None = None
    sampling: Sampling = Sampling()
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()  # further tokens that end the answer, themselves included
    stop: tuple[str, ...] = ()  # texts that end the answer with the token that completes them
    reasoning_end: int | None = None  # the grammar rules from behind this token on; None: from the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happens to the engine just before it schedules a step, whatever the requests do.

    ``preempt`` takes a running request's memory away (it is computed again later), ``abort`` ends it, ``draft length``
    sets k to ``k``, at most the scenario's, and ``dummy`` has a step without requests follow, as an idle rank of a
    data-parallel group runs. An event that names a request which does not run then is void.
    """

    step: int
    what: EventKind
    request: str = ""
    k: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One step of one request in a forced run.

    ``drafts`` are proposed (the engine may trim them), ``accepted`` is a, the number of tokens that the step
    commits: the first a - 1 drafts, then ``token`` (recovered on rejection, else bonus). A request's first turn
    belongs to the step that ends its prompt and has no drafts. Where a step has no room for what its turn commits
    (the request was preempted and ends its prompt again, k fell), it commits as much of it as fits.
    """

    token: int
    drafts: tuple[int, ...] = ()
    accepted: int = 1

    @property
    def committed(self) -> tuple[int, ...]:
        """The a tokens that the turn adds to the request's text."""
        return (*self.drafts[: self.accepted - 1], self.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """How a variant is known to fail here; a reproduction counts only if it fails in this way.

    ``message`` must occur in the crash; ``tensor`` and ``layer`` are those of the first divergence. A kernel that
    checks its indices dies where another reads or writes beyond: ``otherwise`` is how that one is found.
    """

    failure: FailureKind
    otherwise: FailureKind | None = None
    message: str | None = None
    tensor: str | None = None
    layer: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        parts = [f"step {self.step}"] if self.step is not None else []
        parts += [f"layer {self.layer}"] if self.layer is not None else []
        parts += [self.tensor] if self.tensor else []
        parts += [repr(self.message)] if self.message else []
        return f"{self.failure} at {', '.join(parts)}" if parts else self.failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Requests, the engine's setting, perhaps a script, and what must be observed for a PASS to mean anything."""

    name: str
    requests: tuple[Request, ...]
    title: str = ""
    k: int = 3
    drafter: Drafter = "mtp"
    sample_drafts: bool = False
    script: Mapping[str, tuple[Turn, ...]] | None = None
    token_budget: int = 512
    max_model_len: int = 512
    max_num_seqs: int = 64
    regime: Regime = "trim"
    events: tuple[Event, ...] = ()
    prefix_caching: bool = False
    block_size: int = 16
    kv_blocks: int | None = None  # blocks of the pool; None: enough for every request at full length
    capture_sizes: tuple[int, ...] = ()
    reverse_rows: bool = False  # compose every batch in the opposite order: prompts before verify rows
    most_compilations: int | None = None  # compiled variants a kernel may need; None: not counted
    must_observe: Mapping[str, int] = field(default_factory=dict)
    documented: Mapping[str, Documented] = field(default_factory=dict)
    passes: tuple[str, ...] = ()  # variants that must pass here, besides the correct one

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def forced(self) -> bool:
        """Whether a script decides."""
        return self.script is not None

    def request(self, request_id: str) -> Request:
        """The request with this id; KeyError if there is none."""
        for request in self.requests:
            if request.id == request_id:
                return request
        raise KeyError(request_id)

    def to_json(self) -> str:
        """The scenario as JSON text; ``from_json`` gives it back equal."""
        return json.dumps({"version": VERSION, "scenario": encode(self)}, indent=1)

    @staticmethod
    def from_json(text: str, where: str = "scenario") -> Scenario:
        """Parse the JSON form; ScenarioError names the place and what was expected."""
        try:
            data: Any = json.loads(text)
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, nested by thousands
            raise ScenarioError(f"{where}: not JSON: {error}") from None
        if not isinstance(data, dict) or data.get("version") != VERSION:
            seen = data.get("version") if isinstance(data, dict) else type(data).__name__
            raise ScenarioError(f"{where}: saw version {seen!r}, expected {VERSION}")
        return decode(Scenario, data.get("scenario"), where)

    @staticmethod
    def read(path: Path) -> Scenario:
        """Read a scenario file; ScenarioError if it cannot be read or does not parse."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ScenarioError(f"{path}: cannot be read: {error}") from None
        return Scenario.from_json(text, where=str(path))


MOST = {
    "block_size": 4096,
    "kv_blocks": 10**5,
    "max_num_seqs": 1024,
    "max_model_len": 10**6,
    "token_budget": 10**6,
}
"""Largest values that a scenario may ask for: beyond them no tiny model's memory goes, and no run ends."""
MOST_CAPTURED = 10**5
MOST_EVENTS = 1000
MOST_NAME = 200
"""Characters of a name, an id, a stop text."""


def _validate(scenario: Scenario) -> None:
    def refuse(what: str) -> None:
        raise ScenarioError(f"scenario {scenario.name[:MOST_NAME]!r}: {what}")

    stops = (text for request in scenario.requests for text in request.stop)
    for text in (scenario.name, *(request.id for request in scenario.requests), *stops):
        if len(text) > MOST_NAME or text.encode(errors="replace").decode() != text:
            refuse(f"saw {text[:40]!r}, expected at most {MOST_NAME} characters that UTF-8 can write")
    for name, most in MOST.items():
        if (getattr(scenario, name) or 0) > most:
            refuse(f"saw {name}={getattr(scenario, name)}, expected at most {most}")
    if max(scenario.capture_sizes, default=0) > MOST_CAPTURED or len(scenario.events) > MOST_EVENTS:
        refuse(f"expected capture sizes of at most {MOST_CAPTURED} and at most {MOST_EVENTS} events")
    ids = [request.id for request in scenario.requests]
    if not ids:
        refuse("saw no request, expected at least one")
    if len(set(ids)) != len(ids):
        refuse(f"saw request ids {ids}, expected them to differ")
    if not 0 <= scenario.k <= 8:
        refuse(f"saw k={scenario.k}, expected 0 to 8")
    if scenario.token_budget < 1 or scenario.max_num_seqs < 1:
        refuse("expected a token budget and a number of sequences of at least 1")
    if scenario.kv_blocks is not None and scenario.kv_blocks < 2:
        refuse(f"saw kv_blocks={scenario.kv_blocks}, expected at least 2: block 0 is nobody's")
    if scenario.block_size < 1 or min(scenario.capture_sizes, default=1) < 1:
        refuse("expected a block size and capture sizes of at least 1")
    for event in scenario.events:
        if event.step < 0 or not 0 <= event.k <= scenario.k:
            refuse(f"saw {event}, expected a step from 0 on and k of 0 to {scenario.k}")
        if (event.what in ("preempt", "abort")) != (event.request in ids):
            refuse(f"saw {event}, expected a request for preempt and abort, and none otherwise")
    for request in scenario.requests:
        if not request.id or not all(request.stop):
            refuse("expected request ids and stop texts that are not empty")
        if not request.prompt or request.max_tokens < 1 or request.arrival < 0:
            refuse(
                f"request {request.id!r}: expected a prompt, max_tokens of at least 1 and an arrival from 0 on"
            )
        if min(request.prompt) < 0:
            refuse(f"request {request.id!r}: saw a negative token id in the prompt")
        how = request.sampling
        if (
            not 0 <= how.temperature < inf
            or not 0 < how.top_p <= 1
            or how.top_k < 0
            or not 0 <= how.seed < 2**63
        ):
            refuse(
                f"request {request.id!r}: saw {how}, expected a finite temperature from 0 on, top_p in (0, 1], "
                "top_k from 0 on and a seed from 0 on"
            )
        if len(request.prompt) >= scenario.max_model_len:
            refuse(
                f"request {request.id!r}: saw a prompt of {len(request.prompt)} tokens, "
                f"expected fewer than max_model_len={scenario.max_model_len}"
            )
    for request_id, turns in (scenario.script or {}).items():
        if request_id not in ids:
            refuse(f"the script names request {request_id!r}, expected one of {ids}")
        if not turns:
            refuse(f"script of {request_id!r}: saw no turn, expected at least the one that ends the prompt")
        if turns[0].drafts:
            refuse(f"script of {request_id!r}: its first turn ends the prompt and cannot have drafts")
        for i, turn in enumerate(turns):
            if not 1 <= turn.accepted <= len(turn.drafts) + 1 or len(turn.drafts) > scenario.k:
                refuse(
                    f"script of {request_id!r}, turn {i}: saw {len(turn.drafts)} drafts and accepted={turn.accepted}, "
                    f"expected at most k={scenario.k} drafts and an accepted count of 1 to drafts + 1"
                )
            if min((turn.token, *turn.drafts)) < 0:
                refuse(f"script of {request_id!r}, turn {i}: saw a negative token id")
    if scenario.forced and set(ids) - set(scenario.script or {}):
        refuse(f"the script lacks turns for {sorted(set(ids) - set(scenario.script or {}))}")
