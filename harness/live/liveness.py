"""Whether the server lives, and whom it died of."""

from __future__ import annotations

import re

from harness.check.crash import cause_of_crash
from harness.check.lookalikes import seen_before
from harness.exchange import Exchange, Fate
from harness.live.finding import Finding
from harness.live.transcript import Transcript
from harness.trace import Crash
from harness.verdict import Verdict

ERROR = re.compile(r"error", re.IGNORECASE)
TOO_LONG = re.compile(
    r"context length|max_model_len|model.s length|maximum (context|model|input|sequence)"
    r"|too (long|many tokens)|longer than"
)
"""How servers say that they take no prompt of that length, or owe no answer of that one."""
NOT_ABOUT_IT = {
    401: "the key is not taken any more",
    403: "the key is not taken any more",
    429: "it is too busy: --rate R",
}
"""Refusals that say nothing of the request that was refused."""
MOST_REPORTS = 2
"""Public reports that are shown with a death."""


def liveness(transcript: Transcript) -> Finding:
    """Every request that was owed an answer and got none, and those that were under way when the first one died."""
    asked = list(transcript.exchanges.values())
    dead = sorted((e for e in asked if e.answer.fate.is_dead), key=lambda e: e.answer.ended)
    all_refused = [e for e in transcript.audited if e.answer.fate is Fate.REFUSED]
    refused = [e for e in all_refused if _excuse(e) is None]
    if not asked:
        return Finding(check="liveness", verdict=Verdict.INCONCLUSIVE, told="nothing was asked")
    if dead:
        first = dead[0]
        return Finding(
            check="liveness",
            verdict=Verdict.FAIL,
            told=f"{first.answer.fate.value}: {_words(first)}{_health(transcript)}",
            hit=tuple(e.ask.id for e in dead),
            of=len(asked),
            worst=_blame(transcript, first),
            cause=_cause(transcript, first),
        )
    if refused:
        return Finding(
            check="liveness",
            verdict=Verdict.FAIL,
            told=f"requests are refused that are legal: {refused[0].answer.detail}",
            hit=tuple(e.ask.id for e in refused),
            of=len(asked),
            worst=f"{refused[0].ask.id}: HTTP {refused[0].answer.status}",
        )
    if all_refused:
        told = f"{len(all_refused)} requests were not answered: {_excuse(all_refused[0])}"
        return Finding(check="liveness", verdict=Verdict.INCONCLUSIVE, told=told, of=len(asked))
    return Finding(check="liveness", verdict=Verdict.PASS, told="every request was answered", of=len(asked))


def _excuse(exchange: Exchange) -> str | None:
    """Why a refusal is the server's good right; ``None`` where it is not."""
    answer = exchange.answer
    if answer.status in NOT_ABOUT_IT:
        return f"HTTP {answer.status}, {NOT_ABOUT_IT[answer.status]}"
    long = TOO_LONG.search(answer.detail) is not None
    return f"it takes none that long ({exchange.ask.id}): --max-tokens N" if long else None


def under_way(transcript: Transcript, moment: float) -> list[Exchange]:
    """Requests that had been sent and not answered just before a moment."""
    return [
        e for e in transcript.exchanges.values() if e.answer.sent < moment and e.answer.ended >= moment - 1e-3
    ]


def _words(exchange: Exchange) -> str:
    answer = exchange.answer
    status = f"HTTP {answer.status}, " if answer.status else ""
    return f"{status}{answer.detail or 'no words'}"


def _health(transcript: Transcript) -> str:
    death = transcript.snapshot("death")
    if death is None:
        return ""
    state = "does not answer" if death.health is None else f"says {death.health}"
    return f"; afterwards /health {state}"


def _blame(transcript: Transcript, first: Exchange) -> str:
    """One request where it was alone, otherwise all that ran with it, guided ones and the last to come first."""
    there = under_way(transcript, first.answer.ended)
    others = sorted(
        (e for e in there if e.ask.id != first.ask.id), key=lambda e: (e.ask.grammar is None, -e.answer.sent)
    )
    named = [_named(e) for e in ([first] if first in there else []) + others]
    if len(named) == 1:
        return f"it ran alone: {named[0]}"
    return f"{len(named)} requests ran together: {', '.join(named[:8])}{' ...' if len(named) > 8 else ''}"


def _named(exchange: Exchange) -> str:
    ask = exchange.ask
    how = f"guided by {ask.grammar.kind}" if ask.grammar else "free"
    return f"{ask.id} ({how}, {len(exchange.answer.tokens)} tokens so far)"


def _cause(transcript: Transcript, first: Exchange) -> str:
    """The class of what the server said, over HTTP or in its own log, and public reports that looked alike."""
    told = next((line for line in reversed(transcript.log) if ERROR.search(line) and _class(line)), None)
    cause = _class(first.answer.detail) or (_class(told) if told else None)
    if cause is None:
        hangs = first.answer.fate is Fate.HUNG
        return "the request starves, or the engine hangs: the process is there" if hangs else ""
    seen = seen_before(cause, "crash")[:MOST_REPORTS]
    logged = f": the log says {told.strip()[-200:]!r}" if told else ""
    return f"{cause}{logged}" + (f"; seen before in {'; '.join(seen)}" if seen else "")


def _class(said: str) -> str | None:
    """The class of a crash; ``None`` where the words fit none."""
    cause, _ = cause_of_crash(Crash(step=0, kind="server", message=said, where=""))
    return None if cause == "crash" else cause
