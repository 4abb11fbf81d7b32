"""Scripts of answers that must not count as successes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.bench.conformance.build import DONE, Row, document, letters, rows_of_three, script
from harness.bench.conformance.script import Ending, Script, counted, said, summed
from harness.bench.record import Kind, Outcome

CONTENT, FINISH, USAGE, END = Kind.CONTENT, Kind.FINISH, Kind.USAGE, Kind.DONE


def broken(is_chat: bool) -> list[Script]:
    """Answers that must not count as successes."""
    three = rows_of_three(is_chat)
    two = letters(is_chat, "ab", finish=None)
    kind: dict[str, Any] = {"is_chat": is_chat}
    error = {"error": {"message": "engine died", "type": "InternalServerError", "code": 500}}
    old: Mapping[str, Any] = {"object": "error", "message": "engine died", "code": 500}
    partial: dict[str, Any] = {"text": "ab", "finish": None, **kind}
    dead: dict[str, Any] = {"outcome": Outcome.IN_BAND_ERROR, **partial}
    cut: dict[str, Any] = {"outcome": Outcome.CUT, **partial}
    done: Row = (70, DONE, END, None)
    in_event = b'data: {"choices":[{"text":"c'
    claims: list[Row] = [*letters(is_chat, "abc"), (65, summed(16, **kind), USAGE, None), done]
    document_of_two = {"choices": [{"text": "ab", "finish_reason": "stop"}], "usage": counted(2)}
    aborted = said("c", ids=[3], finish="abort", **kind)
    return [
        script(
            "error-then-done",
            "d.6: an error object, then [DONE]",
            [*two, (60, error, None, None), done],
            **dead,
        ),
        script(
            "error-and-end", "d.6: an error object is the last word", [*two, (60, error, None, None)], **dead
        ),
        script(
            "old-error-object",
            "an error as vLLM and SGLang wrote it",
            [*two, (60, old, None, None), done],
            **dead,
        ),
        script(
            "error-event",
            "tokenomics#16: event: error is a success",
            [*two, (60, b'event: error\ndata: {"message":"engine died"}\n\n', None, None), done],
            **dead,
        ),
        script(
            "not-json",
            "an event that cannot be read",
            [*two, (60, "upstream error", None, None), done],
            **dead,
        ),
        script(
            "finish-reason-abort",
            "the engine gave up and says so only in the reason",
            [*two, (60, aborted, CONTENT, 1), (65, summed(3, **kind), USAGE, None), done],
            outcome=Outcome.IN_BAND_ERROR,
            text="abc",
            usage=3,
            finish="abort",
            **kind,
        ),
        script("cut-clean", "d.6: a tidy end in the middle", two, **cut),
        script("cut-reset", "the connection is reset in the middle", two, ending=Ending.ABORT, **cut),
        script("cut-in-an-event", "half an event is the last", [*two, (60, in_event, None, None)], **cut),
        script("done-alone", "[DONE] without a reason", [*two, done], **cut),
        script(
            "cut-before-done",
            "d.6: all but [DONE]",
            three[:-1],
            outcome=Outcome.CUT,
            text="abc",
            usage=3,
            **kind,
        ),
        script(
            "no-usage",
            "counts tokens itself and says nothing",
            [*three[:3], done],
            outcome=Outcome.NO_USAGE,
            text="abc",
            **kind,
        ),
        script(
            "usage-differs",
            "d.6: 16 tokens claimed, 3 came",
            claims,
            outcome=Outcome.USAGE_DIFFERS,
            text="abc",
            usage=16,
            **kind,
        ),
        script(
            "usage-without-text",
            "vllm#5895: an empty reply with a count",
            [
                (20, said("", finish="stop", **kind), FINISH, None),
                (65, summed(16, **kind), USAGE, None),
                done,
            ],
            outcome=Outcome.USAGE_DIFFERS,
            usage=16,
            **kind,
        ),
        script("hang", "waits for ever", two, ending=Ending.HANG, outcome=Outcome.TIMEOUT, **partial),
        document(
            "silence",
            "waits for ever for the first byte",
            0,
            b"",
            outcome=Outcome.TIMEOUT,
            ending=Ending.HANG,
            **kind,
        ),
        document(
            "no-answer", "closed before a byte came", 0, b"", outcome=Outcome.CUT, ending=Ending.ABORT, **kind
        ),
        document(
            "http-400", "a refusal", 400, json.dumps(error).encode(), outcome=Outcome.HTTP_ERROR, **kind
        ),
        document("http-429", "too many", 429, b"slow down", outcome=Outcome.HTTP_ERROR, **kind),
        document(
            "http-500", "a server error", 500, json.dumps(error).encode(), outcome=Outcome.HTTP_ERROR, **kind
        ),
        document("http-503-empty", "nothing said", 503, b"", outcome=Outcome.HTTP_ERROR, **kind),
        document(
            "error-as-200",
            "an error with status 200",
            200,
            json.dumps(error).encode(),
            outcome=Outcome.IN_BAND_ERROR,
            **kind,
        ),
        document(
            "not-a-stream",
            "a whole document",
            200,
            json.dumps(document_of_two).encode(),
            outcome=Outcome.CUT,
            **kind,
        ),
    ]
