"""A stream as it is read: events in, a ``RequestRecord`` out, with a verdict for every way it can end.

Fields are decoded with types, so what nobody reads is never built. Token counts per chunk come from ``token_ids``
(vLLM), from running usage (``continuous_usage_stats``) or from log-probabilities, and stay unknown otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from harness.bench.load.call import Call
from harness.bench.load.sse import Event
from harness.bench.load.wire import ABORTED, DECODER, Choice, Packet, Usage, message_of
from harness.bench.record import Chunk, Kind, Outcome, RequestRecord

LONGEST_DETAIL = 600


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
        self._chunks: list[tuple[float, Kind, int | None, int | None, bool]] = []  # with the usage so far
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
        """The next event. What follows ``[DONE]`` is no part of the answer."""
        if self.done:
            return
        if event.data == b"[DONE]":
            self.ends(at, coalesced)
            return
        try:
            packet = DECODER.decode(event.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            said = event.data[:200].decode(errors="replace")
            if event.name == b"error":
                self.fails(Outcome.IN_BAND_ERROR, said)
            elif event.name in (b"", b"message"):  # other names are other people's: pings, progress
                self.fails(Outcome.IN_BAND_ERROR, f"an event cannot be read ({error}): {said}")
            return
        self.takes(packet, at, coalesced, named_error=event.name == b"error", raw=event.data)

    def ends(self, at: float, coalesced: bool) -> None:
        """``[DONE]`` came."""
        self.done = True
        self._chunks.append((at, Kind.DONE, None, None, coalesced))

    def reads_rest(self, event: Event, at: float, coalesced: bool) -> None:
        """What the stream's end left without its empty line: believed if it is whole, and no error if it is not."""
        if event.data == b"[DONE]" or _is_whole(event.data):
            self.reads(event, at, coalesced)

    def is_no_stream(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """The server answered with a document: an error, or an answer that it did not stream."""
        said = body[:LONGEST_DETAIL].decode(errors="replace")
        try:
            packet = DECODER.decode(body)
            is_error = packet.error is not None or packet.object == "error"
            said = message_of(packet, body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            is_error = False
        if status != 200:
            where = f" (to {headers['location']})" if "location" in headers else ""
            self.fails(Outcome.HTTP_ERROR, f"HTTP {status}{where}: {said}")
        elif is_error:
            self.fails(Outcome.IN_BAND_ERROR, said)
        else:
            self.fails(Outcome.CUT, f"an answer without a stream: {said}")

    def takes(
        self, packet: Packet, at: float, coalesced: bool, *, named_error: bool = False, raw: bytes = b""
    ) -> None:
        """A decoded event."""
        if named_error or packet.error is not None or packet.object == "error":
            self.fails(Outcome.IN_BAND_ERROR, message_of(packet, raw))
            return
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
        reason, ids, delta = choice.finish_reason, choice.token_ids, choice.delta
        tokens = None if ids is None else len(ids)
        if tokens is None and choice.logprobs is not None:
            tokens = choice.logprobs.count
        if ids:
            self._token_ids += ids
        if reason is not None:
            self._finish_reason = reason
            if reason in ABORTED:
                self.fails(Outcome.IN_BAND_ERROR, f"finish reason {reason}")
        kind: Kind | None = None
        if delta is None:
            text = choice.text
            if text:
                self._text.append(text)
                kind = Kind.CONTENT
            elif text is not None and reason is None and tokens is None:
                kind = Kind.CONTENT  # a token without a letter of its own: vLLM sends no other empty chunk
        elif text := delta.content or delta.refusal:
            self._text.append(text)
            kind = Kind.CONTENT
        elif text := delta.reasoning or delta.reasoning_content:
            kind = Kind.REASONING
        elif delta.tool_calls or delta.function_call is not None:
            kind = Kind.TOOL
        elif delta.role is not None:
            kind = Kind.ROLE
        elif delta.content is not None and reason is None and tokens is None:
            kind = Kind.CONTENT
        if delta is not None:
            if thought := delta.reasoning or delta.reasoning_content:
                self._reasoning.append(thought)
            if delta.tool_calls:
                self._tools += delta.tool_calls
        if tokens and (kind is None or kind is Kind.ROLE):
            return Kind.CONTENT, tokens
        if kind is None and reason is not None:
            return Kind.FINISH, None
        return kind, tokens if kind is not None and kind.has_tokens else None

    def record(self, closed: float) -> RequestRecord:
        """All of it, when the stream is over."""
        chunks = self._settled()
        outcome, detail = self._outcome(chunks)
        usage = self._usage
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
            completion_tokens=None if usage is None else usage.completion_tokens,
            requested_tokens=self.call.requested_tokens,
            guide=self.call.guide,
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            drafted=self._drafted,
            accepted=self._accepted,
            warm_up=self.call.warm_up,
            extra=extra,
        )

    def _settled(self) -> tuple[Chunk, ...]:
        """The chunks, with token counts out of running usage where nothing better tells.

        Usage on the last chunk alone is the total and no count of that chunk: it runs only if the first one had it.
        """
        rows = self._chunks
        first = next((used for _, kind, _, used, _ in rows if kind.has_tokens), None)
        runs = first is not None and all(row[2] is None for row in rows)
        chunks, so_far = [], 0
        for at, kind, tokens, used, coalesced in rows:
            if runs and used is not None:
                tokens, so_far = used - so_far, used
                if not kind.has_tokens:
                    kind, tokens = (Kind.CONTENT, tokens) if tokens else (kind, None)
            chunks.append(Chunk(at=at, kind=kind, tokens=tokens, coalesced=coalesced))
        return tuple(chunks)

    def _outcome(self, chunks: tuple[Chunk, ...]) -> tuple[Outcome, str]:
        if self._failure is not None:
            return self._failure
        if self._finish_reason is None:
            return Outcome.CUT, "the stream ended without a finish reason"
        if not self.done:
            return Outcome.CUT, "the stream ended without [DONE]"
        claimed = None if self._usage is None else self._usage.completion_tokens
        if claimed is None:
            return Outcome.NO_USAGE, "the server counted no completion tokens"
        came = [chunk for chunk in chunks if chunk.kind.has_tokens]
        counted = [chunk.tokens for chunk in came if chunk.tokens is not None]
        if came and len(counted) == len(came) and sum(counted) != claimed:
            return Outcome.USAGE_DIFFERS, f"usage says {claimed} tokens, the chunks hold {sum(counted)}"
        if all(chunk.kind is Kind.CONTENT for chunk in came) and len(came) > claimed:
            return Outcome.USAGE_DIFFERS, f"usage says {claimed} tokens, and {len(came)} chunks came"
        if not came and claimed > 1:  # one may be the end of the text, which has no chunk
            return Outcome.USAGE_DIFFERS, f"usage says {claimed} tokens, and no chunk came"
        return Outcome.COMPLETE, ""


def _is_whole(data: bytes) -> bool:
    try:
        DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
