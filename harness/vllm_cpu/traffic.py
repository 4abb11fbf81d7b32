"""Requests that leave rows unequal: grammars that cut drafts short, among free text of several lengths."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from harness.vllm_cpu.client import post
from harness.vllm_cpu.server import VllmServer

_SECONDS = 300.0

_WORD = {"type": "string", "pattern": "^[a-z]{2,9}$"}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "note": {
        "title": _WORD,
        "tags": {"type": "array", "minItems": 4, "maxItems": 8, "items": _WORD},
        "score": {"type": "integer", "minimum": 0, "maximum": 100},
    },
    "reading": {
        "color": {"enum": ["red", "blue", "green", "yellow"]},
        "values": {
            "type": "array",
            "minItems": 6,
            "maxItems": 12,
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "ok": {"type": "boolean"},
    },
    "person": {
        "name": {"enum": ["Anna", "Boris", "Clara", "David", "Emma"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "friends": {"type": "array", "minItems": 3, "maxItems": 6, "items": _WORD},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: a prompt, and the properties of the JSON object that must come, if any."""

    prompt: str
    properties: dict[str, Any] | None = None
    tokens: int = 48

    def body(self, model: str) -> dict[str, Any]:
        """As ``/v1/completions`` takes it: greedy, with token ids."""
        plain = {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.tokens,
            "temperature": 0,
            "return_token_ids": True,
        }
        if self.properties is None:
            return plain
        schema = {
            "type": "object",
            "properties": self.properties,
            "required": list(self.properties),
            "additionalProperties": False,
        }
        return plain | {"structured_outputs": {"json": schema}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a request; ``name`` begins the engine's own name for it."""

    name: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def history(self) -> tuple[int, ...]:
        """All its tokens."""
        return self.prompt + self.tokens


def mixed() -> list[Ask]:
    """Six guided requests and four free ones."""
    guided = [
        Ask(prompt=prompt, properties=_SCHEMAS[name])
        for prompt, name in (
            ("Return a JSON object for the garden.", "note"),
            ("Which color is the lantern? Answer in JSON:", "reading"),
            ("Give me the name of the member as JSON:", "person"),
            ("Tell me about the city in JSON.", "note"),
            ("Return a JSON object for the batch:", "reading"),
            ("Return a JSON object for the order:", "person"),
        )
    ]
    free = [
        Ask(prompt=prompt) for prompt in ("The green garden", "A quiet river near", "Every old", "In winter")
    ]
    return [*guided[:3], *free[:2], *guided[3:], *free[2:]]


def ask_all(server: VllmServer, asks: Sequence[Ask], *, at_once: int = 5) -> list[Answer]:
    """Sends them, ``at_once`` at a time, and waits for all. Raises HarnessError where one is not answered."""

    def ask(one: Ask) -> Answer:
        answer = post(server.port, "/v1/completions", one.body(server.model), timeout=_SECONDS)
        choice = answer["choices"][0]
        return Answer(
            name=answer["id"], prompt=tuple(choice["prompt_token_ids"]), tokens=tuple(choice["token_ids"])
        )

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, asks))
