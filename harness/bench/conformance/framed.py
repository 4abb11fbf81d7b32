"""Scripts of one stream, framed in every way that the event stream format allows."""

from __future__ import annotations

import json
from typing import Any

from harness.bench.conformance.build import Row, rows_of_three, script
from harness.bench.conformance.script import Script, said
from harness.bench.record import Kind

CONTENT, END = Kind.CONTENT, Kind.DONE


def framed(is_chat: bool) -> list[Script]:
    """The same stream of three tokens, framed in every way that the event stream format allows."""
    three = rows_of_three(is_chat)
    raw = json.dumps(said("a", ids=[1], is_chat=is_chat), indent=1)
    folded = "".join(f"data: {line}\n" for line in raw.splitlines()) + "\n"
    unicode = said("\u2028\u0085", ids=[1], is_chat=is_chat)
    accents = said("a€𝄞", ids=[1], is_chat=is_chat)
    tail: list[Row] = three[1:]
    as_one: list[Row] = [(60.0 if row[0] < 60 else row[0], *row[1:]) for row in three]  # type: ignore[misc]

    def form(name: str, breaks: str, rows: list[Row], text: str = "abc", **more: Any) -> Script:
        return script(name, breaks, rows, is_chat=is_chat, text=text, usage=3, **more)

    return [
        form("crlf", "lines end with CR LF", three, end="\r\n"),
        form("cr", "lines end with CR alone", three, end="\r"),
        form("crlf-cut", "CR and LF in two reads", three, end="\r\n", cuts=(-3, -4)),
        form("no-space", "d.6: data: without a space", three, before="data:"),
        form("event-line", "d.6: an event: line before data:", three, before="event: message\nid: 7\ndata: "),
        form(
            "comments",
            "comments as heartbeats",
            [(10, b": ping\n\n", None, None), (30, b":\n", None, None), *three],
        ),
        form("byte-order-mark", "a mark before the first event", [(10, b"\xef\xbb\xbf", None, None), *three]),
        form(
            "empty-lines",
            "more empty lines than one",
            [(10, b"\n\n\n", None, None), (30, b"\n", None, None), *three],
        ),
        form("folded-json", "one event in several data: lines", [(20, folded.encode(), CONTENT, 1), *tail]),
        form(
            "line-separators",
            "d.6: U+2028 and U+0085 inside a string end no line",
            [(20, unicode, CONTENT, 1), *tail],
            text="\u2028\u0085bc",
        ),
        form(
            "letter-cut",
            "a letter of UTF-8 in two reads",
            [(20, accents, CONTENT, 1), *tail],
            text="a€𝄞bc",
            cuts=range(-90, 0, 7),
        ),
        form("event-cut", "an event in three reads", three, cuts=(3, 40)),
        form("coalesced", "trap 15: several events in one read", as_one),
        form(
            "last-line-open",
            "[DONE] without its empty line",
            [*three[:-1], (70, b"data: [DONE]\n", END, None)],
        ),
        form(
            "other-events",
            "an event with another name is no answer",
            [(10, b"event: ping\ndata: now\n\n", None, None), *three],
        ),
        form("after-done", "something behind [DONE]", [*three, (75, said("z", is_chat=is_chat), None, None)]),
    ]
