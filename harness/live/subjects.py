"""What a server is asked: subjects, whose answers are compared, and neighbours, who make rows unequal beside them.

Grammars alternate between what a model cannot choose (keys, punctuation) and what it can (values), so that drafts are
trimmed to every length, to none as well; neighbours begin with one token or with hundreds, draw, end early or hang up.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.exchange import Ask, Offer
from harness.live.ends import ended
from harness.live.scoring import scoring
from harness.live.session import Leg
from harness.scenario import Grammar

WORDS = "the green garden quiet river old bridge bright harbor small engine slow market heavy ladder".split()
STATUS = ["open", "closed", "pending", "ready", "done"]


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


ITEM = _object(name=_text("^[a-z]{2,9}$"), count={"type": "integer", "minimum": 1, "maximum": 99})
PERSON = _object(
    name=_text("^[A-Z][a-z]{2,8}$"),
    age={"type": "integer", "minimum": 1, "maximum": 99},
    status={"enum": STATUS},
    city=_text("^[A-Z][a-z]{2,8}$"),
    active={"type": "boolean"},
)
ORDER = _object(
    id={"type": "integer", "minimum": 1, "maximum": 9999},
    status={"enum": STATUS},
    items={"type": "array", "minItems": 2, "maxItems": 3, "items": ITEM},
)
READINGS = _object(
    sensor=_text("^[a-z]{3,6}$"),
    values={
        "type": "array",
        "minItems": 4,
        "maxItems": 8,
        "items": {"type": "integer", "minimum": 0, "maximum": 999},
    },
)
CHOICES = [
    f"the {colour} {thing} is {state}"
    for colour in ("green", "bright")
    for thing in ("garden", "engine")
    for state in STATUS
]
LIST = 'root ::= "[" word (", " word){3,7} "]"\nword ::= [a-z]{2,7}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A kind of request: an opening and what the answer must be."""

    name: str
    opening: str
    grammar: Grammar | None


def _schema(schema: dict[str, Any]) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(schema))


QUESTIONS = (
    Question(name="person", opening='{"name": "', grammar=_schema(PERSON)),
    Question(name="order", opening="An order with its items as JSON: ", grammar=_schema(ORDER)),
    Question(name="readings", opening='{"sensor": "heat", "values": [', grammar=_schema(READINGS)),
    Question(
        name="code",
        opening="The codes are ",
        grammar=Grammar(kind="regex", text="[a-z]{2,6}-[0-9]{4}(, [a-z]{2,6}-[0-9]{4}){1,3}"),
    ),
    Question(
        name="choice", opening="The green garden ", grammar=Grammar(kind="choice", text=json.dumps(CHOICES))
    ),
    Question(name="list", opening="Some words: ", grammar=Grammar(kind="ebnf", text=LIST)),
    Question(name="garden", opening="The green garden", grammar=None),
    Question(name="winter", opening="In winter the bright harbor holds", grammar=None),
    Question(name="record", opening='{"id": 12, "status": "open", "items": [', grammar=None),
    Question(name="chapter", opening=" ".join(8 * WORDS), grammar=None),
    Question(name="letter", opening="A", grammar=None),
)
"""Six guided, five free; the last two are a long prompt, which a prefix cache keeps, and one of a single token."""


def legs(offer: Offer, seed: int, *, crowds: int, max_tokens: int) -> list[Leg]:
    """Each subject alone, all of them in crowds, each alone again, and ended early; then every answer is scored."""
    alone = subjects(offer, seed, max_tokens)
    return [
        Leg.of("solo", [[ask] for ask in alone]),
        *(Leg.of(f"crowd {n}", [crowd(alone, offer, seed, n, max_tokens)]) for n in range(1, crowds + 1)),
        Leg.of("again", [[ask] for ask in repeated(alone, "again")]),
        ended(offer, seed),
        *scoring(offer, seed),
    ]


def subjects(offer: Offer, seed: int, max_tokens: int) -> list[Ask]:
    """Requests whose answers must not depend on who is served beside them: greedy."""
    rng = random.Random(f"{seed} subjects")
    return [
        _ask(question, "solo", f"{question.name}-{i}", max_tokens, rng)
        for i, question in enumerate(_fitting(offer))
    ]


def neighbours(offer: Offer, seed: int, crowd: int, max_tokens: int) -> list[Ask]:
    """Who is served beside the subjects in one crowd."""
    rng = random.Random(f"{seed} neighbours {crowd}")
    leg = f"crowd {crowd}"
    fitting = _fitting(offer)
    guided = [q for q in fitting if q.grammar is not None] or fitting
    drawn = [
        replace(
            _ask(rng.choice(guided), leg, f"c{crowd}-drawn-{i}", max_tokens, rng),
            temperature=1.0,
            seed=rng.randrange(2**31),
        )
        for i in range(2)
    ]
    one = replace(
        _ask(QUESTIONS[-1], leg, f"c{crowd}-one-token", max_tokens, rng),
        text=rng.choice("ABCDEFGH"),
        temperature=1.0,  # some report the law that they draw from, and here it is that of the model
        seed=rng.randrange(2**31),
    )
    long = replace(
        _ask(QUESTIONS[-1], leg, f"c{crowd}-long", 8, rng),
        text=" ".join(rng.choice(WORDS) for _ in range(200)),
    )
    leaving = [
        replace(
            _ask(rng.choice(fitting), leg, f"c{crowd}-leaves-{i}", 2 * max_tokens, rng),
            abort_after=rng.randint(2, 6),
        )
        for i in range(2)
    ]
    short = _ask(rng.choice(guided), leg, f"c{crowd}-short", rng.randint(2, 6), rng)
    return [*drawn, one, long, *leaving, short]


def crowd(alone: Sequence[Ask], offer: Offer, seed: int, number: int, max_tokens: int) -> list[Ask]:
    """The subjects again, among neighbours, in another order and at other moments."""
    rng = random.Random(f"{seed} crowd {number}")
    leg = f"crowd {number}"
    again = [replace(ask, id=f"{ask.id}/{leg}", leg=leg, about=ask.id) for ask in alone]
    everybody = [*again, *neighbours(offer, seed, number, max_tokens)]
    rng.shuffle(everybody)
    return [replace(ask, delay=round(rng.uniform(0, 0.4), 3)) for ask in everybody]


def repeated(alone: Sequence[Ask], leg: str) -> list[Ask]:
    """The subjects again, each alone."""
    return [replace(ask, id=f"{ask.id}/{leg}", leg=leg, about=ask.id) for ask in alone]


def _fitting(offer: Offer) -> list[Question]:
    """Those that the server can take."""
    return [q for q in QUESTIONS if q.grammar is None or _takes(offer, q.grammar)]


def _takes(offer: Offer, grammar: Grammar) -> bool:
    return offer.grammars == "structured_outputs" or (
        offer.grammars == "response_format" and grammar.kind == "json_schema"
    )


def _ask(question: Question, leg: str, name: str, max_tokens: int, rng: random.Random) -> Ask:
    return Ask(
        id=name,
        leg=leg,
        text="".join(_opening(question, rng)),
        max_tokens=max_tokens,
        grammar=question.grammar,
        ignore_eos=question.grammar is None,
        logprobs=2,
    )


def _opening(question: Question, rng: random.Random) -> Iterator[str]:
    """A few words of the seed's first, so that another seed asks other things; one token stays one token."""
    if len(question.opening) > 1:
        for _ in range(rng.randint(2, 8)):
            yield rng.choice(WORDS) + " "
    yield question.opening
