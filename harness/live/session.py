"""An audit's questions in their order, leg by leg."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.exchange import Answer, Ask, Exchange, Fate, Snapshot
from harness.live.counters import GENERATED, RUNNING, WAITING
from harness.live.transcript import Recorder, Transcript
from harness.targets.openai_server import OpenAIServer
from harness.targets.pace import BudgetSpentError

LAG = 1.0
"""Seconds that a server's counters may be old."""
Tell = Callable[[str], None]
Batches = Sequence[Sequence[Ask]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A part of an audit. ``plan`` says what is asked once everything before it was heard: batches one after the
    other, the requests of a batch together; a leg without any is passed over."""

    name: str
    plan: Callable[[Transcript], Batches]

    @staticmethod
    def of(name: str, batches: Batches) -> Leg:
        """One that does not depend on what was heard."""
        return Leg(name=name, plan=lambda transcript: batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One audit of one server. ``first`` was taken before the probe."""

    server: OpenAIServer
    recorder: Recorder
    legs: Sequence[Leg]
    tell: Tell
    first: Snapshot

    async def run(self) -> bool:
        """To the end, or until the server is dead or the budget spent; whether the budget was spent."""
        try:
            await self._legs()
        except BudgetSpentError:
            return True
        return False

    async def _legs(self) -> None:
        await self._settle("probe", self.first)
        await self._snapshot("begin")
        for leg in self.legs:
            batches = leg.plan(self.recorder.transcript)
            if batches and not await self._leg(leg.name, batches):
                return

    async def _leg(self, name: str, batches: Batches) -> bool:
        """Whether the server is there for the next leg."""
        self.tell(name)
        for batch in batches:
            # all of them are heard to their end, also where the budget does not suffice for one
            heard = await asyncio.gather(*(self._ask(ask) for ask in batch), return_exceptions=True)
            answers = [self._answer(one) for one in heard]
            if any(answer.fate.is_dead for answer in answers) and not await self._lives():
                return False
        await self._settle(name, self._before)
        await self._snapshot(name)
        return True

    @property
    def _before(self) -> Snapshot | None:
        return next(reversed(self.recorder.transcript.snapshots), None)

    @staticmethod
    def _answer(heard: Answer | BaseException) -> Answer:
        if isinstance(heard, BaseException):
            raise heard
        return heard

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

    async def _settle(self, leg: str, before: Snapshot | None) -> None:
        """Aborted requests leave within a moment, and counters may lag behind the answers."""
        if not self.server.offer.metrics:
            return
        answers = [e.answer for e in self.recorder.transcript.of(leg)]
        came = sum(answer.completion_tokens or len(answer.tokens) for answer in answers)
        if any(answer.fate is Fate.ABORTED for answer in answers):
            await asyncio.sleep(LAG)  # nobody knows how many tokens theirs will be
        must = came + (before.values.get(GENERATED, 0.0) if before else 0.0)
        for _ in range(20):
            values = (await self.server.snapshot("settling")).values
            idle = not values.get(RUNNING) and not values.get(WAITING)
            if idle and values.get(GENERATED, must) >= must:
                return
            await asyncio.sleep(0.1)

    async def _snapshot(self, when: str) -> None:
        if self.server.offer.metrics or self.server.offer.health:
            self.recorder.sees(await self.server.snapshot(when))
