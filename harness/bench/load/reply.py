"""A stream as it is read: events in, a ``RequestRecord`` out, with a verdict for every way it can end.

Fields are decoded with types, so what nobody reads is never built. Token counts per chunk come from ``token_ids``
(vLLM), from running usage (``continuous_usage_stats``) or from log-probabilities, and stay unknown otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from harness.bench.load.call import Call
from harness.bench.load.ending import TOKENS, Row, settled, verdict
from harness.bench.load.sse import Event
from harness.bench.load.wire import ABORTED, DECODER, LONGEST_DETAIL, Choice, Delta, Packet, Usage, error_in
from harness.bench.record import Kind, Outcome, RequestRecord


class Reply:
    """What has been heard of one call. ``at``: seconds on the run's clock."""

    __slots__ = (
        "_accepted",
        "_chunks",
        "_drafted",
        "_failure",
        "_finish_reason",
        "_reasoning",
        "_text",
        "_token_ids",
        "_tools",
        "_usage",
        "call",
        "connect",
        "done",
        "scheduled",
        "sent",
        "status",
    )

    def __init__(self, call: Call, scheduled: float, sent: float) -> None:
        self.call = call
        self.scheduled = scheduled
        self.sent = sent
        self.status: int | None = None
        self.connect: float | None = None
        self.done = False
        self._chunks: list[Row] = []
        self._failure: tuple[Outcome, str] | None = None
        self._finish_reason: str | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._tools: list[Any] = []
        self._token_ids: list[int] = []
        self._usage: Usage | None = None
        self._drafted: tuple[int, ...] = ()
        self._accepted: tuple[int, ...] = ()

    def fails(self, outcome: Outcome, detail: str) -> None:
        """It ended badly. The first failure is the cause, later ones follow from it."""
        if self._failure is None:
            self._failure = outcome, detail[:LONGEST_DETAIL]

    def reads(self, event: Event, at: float, coalesced: bool) -> None:
        """The next event. What follows ``[DONE]`` is no part of the answer.

        Nearly every event is one choice and nothing else: that way through is short, and the CPU of a chunk is here.
        """
        if self.done:
            return
        name, data = event
        try:
            packet = DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._reads_no_packet(name, data, at, coalesced, error)
            return
        choices = packet.choices
        if (
            choices
            and len(choices) == 1
            and packet.usage is None
            and packet.metrics is None
            and packet.error is None
            and not name
        ):
            kind, tokens = self._hears(choices[0])
            if kind is not None:
                self._chunks.append((at, kind, tokens, None, coalesced))
        elif (not choices or name or packet.error is not None) and (
            (said := error_in(data, is_named=name == b"error")) is not None
        ):
            self.fails(Outcome.IN_BAND_ERROR, said)
        else:
            self.takes(packet, at, coalesced)

    def _reads_no_packet(
        self, name: bytes, data: bytes, at: float, coalesced: bool, error: Exception
    ) -> None:
        if data == b"[DONE]":
            self.ends(at, coalesced)
        elif name == b"error":
            self.fails(Outcome.IN_BAND_ERROR, error_in(data, is_named=True) or "")
        elif name in (b"", b"message"):  # other names are other people's: pings, progress
            said = data[:200].decode(errors="replace")
            self.fails(Outcome.IN_BAND_ERROR, f"an event cannot be read ({error}): {said}")

    def ends(self, at: float, coalesced: bool) -> None:
        """``[DONE]`` came."""
        self.done = True
        self._chunks.append((at, Kind.DONE, None, None, coalesced))

    def reads_rest(self, event: Event, at: float, coalesced: bool) -> None:
        """What the stream's end left without its empty line: believed if it is whole, and no error if it is not."""
        if event[1] == b"[DONE]" or _is_whole(event[1]):
            self.reads(event, at, coalesced)

    def is_no_stream(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """The server answered with a document: an error, or an answer that it did not stream."""
        said = error_in(body)
        words = said or body[:LONGEST_DETAIL].decode(errors="replace")
        if status != 200:
            where = f" (to {headers['location']})" if "location" in headers else ""
            self.fails(Outcome.HTTP_ERROR, f"HTTP {status}{where}: {words}")
        elif said is not None:
            self.fails(Outcome.IN_BAND_ERROR, said)
        else:
            self.fails(Outcome.CUT, f"an answer without a stream: {words}")

    def takes(self, packet: Packet, at: float, coalesced: bool) -> None:
        """A decoded event that is no error."""
        usage = packet.usage
        if usage is not None:
            self._usage = usage
        if packet.metrics is not None and (steps := packet.metrics.speculative_decoding) is not None:
            self._drafted, self._accepted = tuple(steps.per_step_drafted), tuple(steps.per_step_accepted)
        used = None if usage is None else usage.completion_tokens
        if packet.choices:
            for choice in packet.choices:
                kind, tokens = self._hears(choice)
                if kind is not None or used is not None:
                    self._chunks.append((at, kind or Kind.USAGE, tokens, used, coalesced))
        elif usage is not None:
            self._chunks.append((at, Kind.USAGE, None, None, coalesced))

    def _hears(self, choice: Choice) -> tuple[Kind | None, int | None]:
        """What a choice is, and how many tokens it says it holds. ``None``: it is nothing, such as a heartbeat."""
        reason, ids, delta, logprobs = choice.finish_reason, choice.token_ids, choice.delta, choice.logprobs
        text = choice.text if delta is None else delta.content
        tokens = None if ids is None else len(ids)
        if ids:
            self._token_ids += ids
        if tokens is None and logprobs is not None:
            tokens = logprobs.count
        if text:
            self._text.append(text)
        if reason is not None:
            self._finish_reason = reason
            if reason in ABORTED:
                self.fails(Outcome.IN_BAND_ERROR, f"finish reason {reason}")
        kind = self._kind_of(delta) if delta is not None else None
        if text:
            return Kind.CONTENT, tokens
        if tokens and (kind is None or kind is Kind.ROLE):
            return Kind.CONTENT, tokens
        if kind is None:
            if reason is not None:
                return Kind.FINISH, None
            # Empty text and nothing else is a token without a letter of its own: vLLM sends no other empty chunk.
            return (Kind.CONTENT, None) if text is not None and tokens is None else (None, None)
        return kind, tokens if kind in TOKENS else None

    def _kind_of(self, delta: Delta) -> Kind | None:
        """What a delta is beside its content; its words are kept."""
        if delta.reasoning is None and delta.reasoning_content is None:
            if delta.tool_calls is None and delta.role is None and delta.function_call is None:
                return None
        elif thought := delta.reasoning or delta.reasoning_content:
            self._reasoning.append(thought)
            return Kind.REASONING
        if delta.tool_calls:
            self._tools += delta.tool_calls
            return Kind.TOOL
        if delta.function_call is not None:
            return Kind.TOOL
        return None if delta.role is None else Kind.ROLE

    def record(self, closed: float) -> RequestRecord:
        """All of it, when the stream is over."""
        usage = self._usage
        claimed = None if usage is None else usage.completion_tokens
        chunks = settled(self._chunks)
        outcome, detail = self._failure or verdict(self._finish_reason, self.done, claimed, chunks)
        extra = dict(self.call.extra)
        if self.connect is not None:
            extra["connect_s"] = f"{self.connect:.6f}"
        if self._reasoning:
            extra["reasoning"] = "".join(self._reasoning)
        if self._tools:
            extra["tool_calls"] = msgspec.json.encode(self._tools).decode()
        details = None if usage is None else usage.prompt_tokens_details
        return RequestRecord(
            id=self.call.id,
            scheduled=self.scheduled,
            sent=self.sent,
            closed=closed,
            outcome=outcome,
            chunks=chunks,
            detail=detail,
            status=self.status,
            finish_reason=self._finish_reason,
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            cached_tokens=None if details is None else details.cached_tokens,
            completion_tokens=claimed,
            requested_tokens=self.call.requested_tokens,
            guide=self.call.guide,
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            drafted=self._drafted,
            accepted=self._accepted,
            warm_up=self.call.warm_up,
            extra=extra,
        )


def _is_whole(data: bytes) -> bool:
    try:
        DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
