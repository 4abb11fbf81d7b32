"""What the crowd asks: request number i of a seed is always the same."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

WORDS = (
    "the river window cold sharp captain write a list of names and numbers about every quiet morning".split()
)
ITEM = {
    "type": "object",
    "properties": {"name": {"enum": ["pear", "plum", "quince"]}, "count": {"type": "integer"}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
GRAMMARS: tuple[dict[str, Any], ...] = (
    {"json": ITEM},
    {"json": {"type": "array", "items": ITEM, "minItems": 2, "maxItems": 6}},
    {"regex": "[a-c]{3,20}-[0-9]{2,8}"},
    {"choice": ["yes", "no", "never again"]},
    {"grammar": 'root ::= ("(" [x-z]+ ")")+'},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request of the crowd. It hangs up after ``chunks`` of the answer, or ``seconds`` after it was sent, if these
    are given."""

    index: int
    body: dict[str, Any]
    chunks: int | None = None
    seconds: float | None = None

    @property
    def aborts(self) -> bool:
        """Whether it means to hang up."""
        return self.chunks is not None or self.seconds is not None


def ask(seed: int, index: int, model: str) -> Ask:
    """Guided or free, greedy or seeded, short or long; half of them hang up."""
    rng = random.Random(f"{seed} {index}")
    body: dict[str, Any] = {
        "model": model,
        "prompt": " ".join(rng.choices(WORDS, k=rng.choice((1, 3, 8, 8, 100)))),
        "max_tokens": rng.choice((1, 4, 8, 16, 24, 48, 96)),
        "logprobs": 0,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if rng.random() < 0.5:
        body["temperature"] = 0
    else:
        body |= {"temperature": rng.choice((0.6, 1.0, 1.3)), "top_p": 0.95, "seed": rng.getrandbits(31)}
    if rng.random() < 0.5:
        body["structured_outputs"] = rng.choice(GRAMMARS)
    else:
        body["ignore_eos"] = rng.random() < 0.7
    match rng.randrange(4):
        case 0:
            return Ask(index=index, body=body, chunks=rng.randrange(1, 12))
        case 1:
            return Ask(index=index, body=body, seconds=rng.random() * 4)
        case _:
            return Ask(index=index, body=body)
