"""What an audit asked and heard, one line of JSON for each thing, on disk as soon as it is known."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from harness.codec import decode, encode
from harness.errors import ScenarioError, UsageError
from harness.exchange import Ask, Exchange, Offer, Place, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The last line of an audit that came to its end."""

    log: tuple[str, ...]
    budget_spent: bool


KINDS: dict[str, type[Any]] = {
    "offer": Offer,
    "exchange": Exchange,
    "snapshot": Snapshot,
    "asked": Ask,
    "end": End,
}


@dataclass(slots=True, kw_only=True)
class Transcript:
    """Everything heard of one server. ``asked`` is in the order of asking; an ask without an exchange was under way
    when the audit ended. ``log`` is the end of the server's own log, where we started it."""

    offer: Offer
    asked: dict[str, Ask] = field(default_factory=dict)
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    log: tuple[str, ...] = ()
    budget_spent: bool = False

    def of(self, leg: str) -> Iterator[Exchange]:
        """The exchanges of a leg, in the order of asking."""
        return (self.exchanges[i] for i, ask in self.asked.items() if ask.leg == leg and i in self.exchanges)

    @property
    def audited(self) -> list[Exchange]:
        """All exchanges but the probe's, whose questions may be refused."""
        return [e for e in self.exchanges.values() if e.ask.leg != "probe"]

    @property
    def generated(self) -> list[Exchange]:
        """Those that are about an answer; the others score one, or ask whether anybody is there."""
        return [e for e in self.audited if e.ask.prompt_logprobs is None and e.ask.leg != "alive"]

    def snapshot(self, when: str) -> Snapshot | None:
        """The last one that was taken at such a moment."""
        return next((s for s in reversed(self.snapshots) if s.when == when), None)


class Recorder:
    """A transcript that grows, in memory and on disk. With ``redacts`` the file has what happened and not what was
    said: it can be read, and not be judged again."""

    def __init__(self, path: Path, offer: Offer, *, redacts: bool = False) -> None:
        self.transcript = Transcript(offer=offer)
        self._redacts = redacts
        self._file: IO[str] = path.open("w", encoding="utf-8")
        self.offers(offer)

    def offers(self, offer: Offer) -> None:
        """What the server can do, as far as it is known now."""
        self.transcript.offer = offer
        self._write("offer", offer)

    def asks(self, ask: Ask) -> None:
        """It is about to be asked."""
        self.transcript.asked[ask.id] = ask
        self._write("asked", redacted_ask(ask) if self._redacts else ask)

    def hears(self, exchange: Exchange) -> None:
        """It was answered, one way or another."""
        self.transcript.exchanges[exchange.ask.id] = exchange
        self._write("exchange", redacted(exchange) if self._redacts else exchange)

    def sees(self, snapshot: Snapshot) -> None:
        """The server's counters at a moment."""
        self.transcript.snapshots.append(snapshot)
        self._write("snapshot", replace(snapshot, said=self.words(snapshot.said)))

    def words(self, said: str) -> str:
        """A server's words as they may be kept and shown: they may quote what it was asked."""
        return "redacted" if self._redacts and said else said

    def ends(self, *, log: list[str], budget_spent: bool) -> Transcript:
        """Close the file."""
        self.transcript.log, self.transcript.budget_spent = tuple(log), budget_spent
        kept = [] if self._redacts else log
        self._write("end", End(log=tuple(kept), budget_spent=budget_spent))
        self._file.close()
        return self.transcript

    def _write(self, kind: str, thing: Any) -> None:
        self._file.write(json.dumps({kind: encode(thing)}) + "\n")
        self._file.flush()


def redacted(exchange: Exchange) -> Exchange:
    """Without prompt, answer and the server's words, which may quote either."""
    answer = replace(
        exchange.answer,
        prompt=(),
        tokens=(),
        text="",
        detail="redacted" if exchange.answer.detail else "",
        places=tuple(Place(logprob=place.logprob) for place in exchange.answer.places),
        prompt_places=(),
    )
    return Exchange(ask=redacted_ask(exchange.ask), answer=answer)


def redacted_ask(ask: Ask) -> Ask:
    """Without its prompt and without what its answer must be."""
    grammar = None if ask.grammar is None else replace(ask.grammar, text="")
    # a stop is a piece of the answer that was given alone
    return replace(ask, prompt=(), text=None, grammar=grammar, stop=(), stop_token_ids=())


def is_redacted(transcript: Transcript) -> bool:
    """Whether it says what happened and not what was said: every question has a prompt."""
    return any(ask.text is None and not ask.prompt for ask in transcript.asked.values())


def read(path: Path) -> Transcript:
    """A transcript from its file, ``.gz`` or not. A last line that a killed audit left unfinished is passed over.

    Raises:
        UsageError: the file cannot be read, is none, or is redacted.
    """
    try:
        raw = path.read_bytes()
        lines = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8").split("\n")
        things = [json.loads(line) for line in lines[:-1]]  # what is behind the last line's end is no line
        ((kind, data),) = things[0].items()
        transcript = Transcript(offer=decode(Offer, data, f"{path}, line 1, {kind}"))
        for number, thing in enumerate(things[1:], start=2):
            _add(transcript, thing, f"{path}, line {number}")
    except (
        OSError,
        ValueError,
        LookupError,
        AttributeError,
        EOFError,
        RecursionError,
        zlib.error,
        ScenarioError,
    ) as error:
        raise UsageError(f"{path}: is no transcript: {error}", hint="make live") from None
    if is_redacted(transcript):
        raise UsageError(f"{path}: is redacted: nothing in it can be judged", hint="make live")
    return transcript


def _add(transcript: Transcript, thing: dict[str, Any], where: str) -> None:
    ((kind, data),) = thing.items()
    decoded = decode(KINDS[kind], data, where)
    if isinstance(decoded, End):
        transcript.log, transcript.budget_spent = decoded.log, decoded.budget_spent
    elif isinstance(decoded, Ask):
        transcript.asked[decoded.id] = decoded
    elif isinstance(decoded, Exchange):
        for place in decoded.answer.prompt_places:
            if not all(name.isdecimal() for name in place.best):
                raise ScenarioError(f"{where}: the law of a prompt's place names other than token ids")
        transcript.exchanges[decoded.ask.id] = decoded
    elif isinstance(decoded, Snapshot):
        transcript.snapshots.append(decoded)
    elif isinstance(decoded, Offer):
        transcript.offer = decoded
