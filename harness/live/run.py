"""From a server to its transcript: probe it, go through the legs, keep everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.exchange import Offer
from harness.live.offer import Probe, find_model
from harness.live.session import Leg, Session, Tell
from harness.live.transcript import Recorder, Transcript
from harness.targets.openai_server import OpenAIServer
from harness.targets.pace import BudgetSpentError, Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The server that is asked. ``log`` gives the end of its log, where we can read it; ``pace`` limits what it is
    asked; ``patience`` is how long it may be silent."""

    url: str
    model: str | None = None
    api_key: str | None = None
    pace: tuple[int | None, float | None] = (None, None)
    patience: float = 30.0
    log: Callable[[], list[str]] = list


def listen(
    audited: Audited,
    legs: Callable[[Offer], Sequence[Leg]],
    path: Path,
    tell: Tell,
    *,
    redacts: bool = False,
) -> Transcript:
    """Ask everything and write it to ``path`` as it comes; with ``redacts`` nothing that was said stands there.

    Raises:
        TargetError: there is no such server.
        KeyboardInterrupt: what was heard is in the file.
    """
    return asyncio.run(_listen(audited, legs, path, tell, redacts))


async def _listen(
    audited: Audited, legs: Callable[[Offer], Sequence[Leg]], path: Path, tell: Tell, redacts: bool
) -> Transcript:
    server = OpenAIServer(
        audited.url,
        audited.model or "",
        api_key=audited.api_key,
        pace=Pace(*audited.pace),
        patience=audited.patience,
    )
    try:
        server.model = audited.model or await find_model(server)
        recorder = Recorder(path, Offer(url=server.root, model=server.model), redacts=redacts)
        spent = False
        try:
            first = await server.snapshot("first")
            if await Probe(server, recorder).run():
                offered(server.offer, tell)
                session = Session(
                    server=server, recorder=recorder, legs=legs(server.offer), tell=tell, first=first
                )
                spent = await session.run()
        except BudgetSpentError:
            spent = True
        return recorder.ends(log=audited.log(), budget_spent=spent)
    finally:
        await server.close()


def offered(offer: Offer, tell: Tell) -> None:
    """What was found out, with reasons."""
    tell(f"{offer.model} at {offer.url}{f', version {offer.version}' if offer.version else ''}")
    has = {
        "token ids": offer.ids,
        "log-probabilities": offer.logprobs,
        f"those of prompts ({offer.prompt_logprobs} best)": offer.prompt_logprobs,
        f"grammars ({offer.grammars})": offer.grammars,
        "ignore_eos": offer.ignore_eos,
        "metrics": offer.metrics,
        "health": offer.health,
    }
    tell(f"it offers {', '.join(what for what, there in has.items() if there) or 'completions alone'}")
    for what, why in offer.lacks.items():
        tell(f"without {what}: {why}")
