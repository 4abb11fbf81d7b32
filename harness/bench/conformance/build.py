"""Scripts out of rows: when, what, and what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.bench.conformance.script import Script, Truth, Write, said, sse, summed
from harness.bench.load.call import CHAT, COMPLETIONS
from harness.bench.record import Kind, Outcome

Row = tuple[float, Mapping[str, Any] | bytes | str, Kind | None, int | None]
"""Milliseconds, payload (bytes: sent as they are; text: the event's data), kind (``None``: not an event), tokens."""

DONE = "[DONE]"


def script(
    name: str,
    breaks: str,
    rows: Sequence[Row],
    *,
    is_chat: bool,
    outcome: Outcome = Outcome.COMPLETE,
    text: str = "",
    usage: int | None = None,
    finish: str | None = "stop",
    before: str = "data: ",
    end: str = "\n",
    cuts: Sequence[int] = (),
    **more: Any,
) -> Script:
    """Rows of one moment go out in one write. ``cuts`` are offsets into every write."""
    moments: dict[float, bytes] = {}
    for ms, payload, _, _ in rows:
        data = payload if isinstance(payload, bytes) else sse(payload, before=before, end=end)
        moments[ms] = moments.get(ms, b"") + data
    truth = Truth(
        outcome=outcome,
        chunks=tuple((ms / 1e3, kind, tokens) for ms, _, kind, tokens in rows if kind is not None),
        text=text,
        completion_tokens=usage,
        finish_reason=finish,
    )
    return Script(
        name=name,
        breaks=breaks,
        writes=tuple(
            Write(at=ms / 1e3, data=data, cuts=tuple(cut for cut in cuts if -len(data) < cut < len(data)))
            for ms, data in sorted(moments.items())
        ),
        truth=truth,
        path=CHAT if is_chat else COMPLETIONS,
        **more,
    )


def document(
    name: str, breaks: str, status: int, body: bytes, *, is_chat: bool, outcome: Outcome, **more: Any
) -> Script:
    """An answer that is no stream."""
    return Script(
        name=name,
        breaks=breaks,
        writes=(Write(at=0.02, data=body),) if body else (),
        truth=Truth(outcome=outcome),
        path=CHAT if is_chat else COMPLETIONS,
        status=status,
        headers={"Content-Type": "application/json"},
        **more,
    )


def rows_of_three(is_chat: bool, *, tokens: bool = True) -> list[Row]:
    """``abc`` at 20, 40 and 60 ms, usage and [DONE] behind it."""
    return [
        *letters(is_chat, "abc", tokens=tokens),
        (65, summed(3, is_chat=is_chat), Kind.USAGE, None),
        (70, DONE, Kind.DONE, None),
    ]


def letters(is_chat: bool, text: str, *, tokens: bool = True, finish: str | None = "stop") -> list[Row]:
    """One letter every 20 ms, the last with the finish reason."""
    rows: list[Row] = []
    for i, letter in enumerate(text):
        ids = [i + 1] if tokens else None
        last = finish if i == len(text) - 1 else None
        chunk = said(letter, ids=ids, finish=last, is_chat=is_chat)
        rows.append((20.0 * (i + 1), chunk, Kind.CONTENT, 1 if tokens else None))
    return rows
