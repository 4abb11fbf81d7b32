"""Every answer as a prompt: alone, a few of them alone again, and all together."""

from __future__ import annotations

import random

from harness.exchange import Ask, Offer
from harness.live.session import Batches, Leg
from harness.live.transcript import Transcript

TWICE = 8
"""Texts that are scored alone a second time."""


def scoring(offer: Offer, seed: int) -> list[Leg]:
    """Three legs; none where the server does not score prompts."""
    if not offer.prompt_logprobs:
        return []

    def score(about: str, text: tuple[int, ...], leg: str) -> Ask:
        return Ask(
            id=f"{about}/{leg}",
            leg=leg,
            prompt=text,
            max_tokens=1,
            prompt_logprobs=offer.prompt_logprobs,
            stream=False,
            about=about,
        )

    def alone(transcript: Transcript) -> Batches:
        return [[score(name, text, "score")] for name, text in texts(transcript)]

    def again(transcript: Transcript) -> Batches:
        found = texts(transcript)
        return [[score(name, text, "score again")] for name, text in found[:: -(-len(found) // TWICE) or 1]]

    def together(transcript: Transcript) -> Batches:
        found = texts(transcript)
        random.Random(f"{seed} scores").shuffle(found)
        return [[score(name, text, "score together") for name, text in found]] if found else []

    return [
        Leg(name="score", plan=alone),
        Leg(name="score again", plan=again),
        Leg(name="score together", plan=together),
    ]


def texts(transcript: Transcript) -> list[tuple[str, tuple[int, ...]]]:
    """Prompt and answer as one text, each once, with the first request that has it."""
    names: dict[tuple[int, ...], str] = {}
    for exchange in transcript.generated:
        if exchange.answer.tokens and exchange.answer.prompt:
            names.setdefault(exchange.answer.prompt + exchange.answer.tokens, exchange.ask.id)
    return [(name, text) for text, name in names.items()]
