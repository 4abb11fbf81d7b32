"""An audit's questions in their order, leg by leg; then every answer is scored."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.exchange import Answer, Ask, Exchange, Fate
from harness.live.transcript import Recorder
from harness.targets.openai_server import OpenAIServer
from harness.targets.pace import BudgetSpentError

Tell = Callable[[str], None]
TWICE = 8
"""Texts that are scored alone a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A part of an audit: batches one after the other, the requests of a batch together."""

    name: str
    batches: Sequence[Sequence[Ask]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One audit of one server."""

    server: OpenAIServer
    recorder: Recorder
    legs: Sequence[Leg]
    seed: int
    tell: Tell

    async def run(self) -> bool:
        """To the end, or until the server is dead or the budget spent; whether the budget was spent."""
        try:
            await self._legs()
        except BudgetSpentError:
            return True
        return False

    async def _legs(self) -> None:
        await self._snapshot("begin")
        for leg in self.legs:
            if not await self._leg(leg):
                return
        if not self.server.offer.prompt_logprobs or not (texts := self._texts()):
            return
        few = {name: texts[name] for name in list(texts)[:: -(-len(texts) // TWICE)]}
        shuffled = random.Random(f"{self.seed} scores").sample(list(texts), len(texts))
        for name, chosen, together in (
            ("score", texts, False),
            ("score again", few, False),
            ("score together", {i: texts[i] for i in shuffled}, True),
        ):
            scores = [self._score(about, text, name) for about, text in chosen.items()]
            if not await self._leg(Leg(name=name, batches=[scores] if together else [[s] for s in scores])):
                return

    async def _leg(self, leg: Leg) -> bool:
        """Whether the server is there for the next leg."""
        self.tell(leg.name)
        for batch in leg.batches:
            answers = await asyncio.gather(*(self._ask(ask) for ask in batch))
            if any(answer.fate.is_dead for answer in answers) and not await self._lives():
                return False
        await self._settle()
        await self._snapshot(leg.name)
        return True

    async def _ask(self, ask: Ask) -> Answer:
        await asyncio.sleep(ask.delay)
        self.recorder.asks(ask)
        answer = await self.server.ask(ask)
        self.recorder.hears(Exchange(ask=ask, answer=answer))
        return answer

    async def _lives(self) -> bool:
        """Whether a plain request is still answered; the death is on record."""
        await self._snapshot("death")
        check = Ask(id=f"alive-{len(self.recorder.transcript.asked)}", leg="alive", text="The", max_tokens=2)
        answer = await self._ask(check)
        return answer.fate is Fate.COMPLETE

    async def _settle(self) -> None:
        """Aborted requests leave within a moment."""
        if not self.server.offer.metrics:
            return
        for _ in range(20):
            values = (await self.server.snapshot("settling")).values
            if not values.get("vllm:num_requests_running") and not values.get("vllm:num_requests_waiting"):
                return
            await asyncio.sleep(0.1)

    async def _snapshot(self, when: str) -> None:
        if self.server.offer.metrics or self.server.offer.health:
            self.recorder.sees(await self.server.snapshot(when))

    def _texts(self) -> dict[str, tuple[int, ...]]:
        """Prompt and answer as one text, by the first request that has it."""
        names: dict[tuple[int, ...], str] = {}
        for exchange in self.recorder.transcript.generated:
            if exchange.answer.tokens and exchange.answer.prompt:
                names.setdefault(exchange.answer.prompt + exchange.answer.tokens, exchange.ask.id)
        return {name: text for text, name in names.items()}

    def _score(self, about: str, text: tuple[int, ...], leg: str) -> Ask:
        return Ask(
            id=f"{about}/{leg}",
            leg=leg,
            prompt=text,
            max_tokens=1,
            prompt_logprobs=self.server.offer.prompt_logprobs,
            stream=False,
            about=about,
        )
