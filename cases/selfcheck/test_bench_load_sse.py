"""Events out of bytes, cut anywhere; and what each event of a stream is."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest

from harness.bench.conformance.framed import framed
from harness.bench.conformance.script import Script
from harness.bench.load.call import completion
from harness.bench.load.reply import Reply
from harness.bench.load.sse import Event, Framer
from harness.bench.record import Kind, Outcome, RequestRecord

FORMS = [*framed(False), *framed(True)]
IDS = [f"{form.name}{form.path[3:]}" for form in FORMS]


def fed(pieces: Sequence[bytes]) -> list[Event]:
    framer = Framer()
    return [*itertools.chain.from_iterable(framer.feed(piece) for piece in pieces), *framer.flush()]


@pytest.mark.parametrize("form", FORMS, ids=IDS)
def test_events_are_the_same_at_every_cut(form: Script) -> None:
    whole = b"".join(write.data for write in form.writes)
    events = fed([whole])
    assert [event[1] for event in events].count(b"[DONE]") == 1
    for place in range(1, len(whole)):
        assert fed([whole[:place], whole[place:]]) == events, whole[place - 5 : place + 5]
    assert fed([whole[i : i + 1] for i in range(len(whole))]) == events
    assert fed([whole[i : i + 3] for i in range(0, len(whole), 3)]) == events


@pytest.mark.parametrize("form", FORMS, ids=IDS)
def test_every_frame_holds_the_same_answer(form: Script) -> None:
    record = answered(*fed([write.data for write in form.writes]))
    assert (record.outcome, record.text) == (Outcome.COMPLETE, form.truth.text)


def answered(*events: Event | dict[str, Any] | str, at: float = 1.0) -> RequestRecord:
    reply = Reply(completion("a", "m", "x", 8), 0.0, 0.0)
    for event in events:
        if isinstance(event, dict):
            event = (b"", json.dumps(event).encode())
        elif isinstance(event, str):
            event = (b"", event.encode())
        reply.reads(event, at, False)
        at += 1.0
    return reply.record(at)


def test_line_separators_of_unicode_end_no_line() -> None:
    text = "a\u2028b\u2029c\u0085d\x0b"
    data = f"data: {json.dumps({'text': text}, ensure_ascii=False)}\n\n".encode()
    (event,) = fed([data])
    assert json.loads(event[1])["text"] == text


def test_a_carriage_return_and_its_line_feed_in_two_reads_are_one_end() -> None:
    assert fed([b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n"]) == [(b"", b"a"), (b"", b"b")]


def test_a_line_end_in_two_reads_does_not_end_the_event() -> None:
    whole = b"data: a\r\ndata: b\r\n\r\n"
    for place in range(len(whole) + 1):
        assert fed([whole[:place], whole[place:]]) == [(b"", b"a\nb")]


def test_an_event_is_told_as_soon_as_its_last_line_ends() -> None:
    framer = Framer()
    assert framer.feed(b"data: a\r\n\r") == [(b"", b"a")]
    assert framer.feed(b"\ndata: b\n\n") == [(b"", b"b")]


def test_a_carriage_return_inside_the_quick_way_ends_a_line() -> None:
    assert fed([b"data: a\rdata: b\n\n"]) == [(b"", b"a\nb")]


def chunk(text: str = "", **choice: Any) -> dict[str, Any]:
    return {"choices": [{"text": text, **choice}]}


def summed(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": tokens}}


def kinds(record: RequestRecord) -> list[tuple[Kind, int | None]]:
    return [(each.kind, each.tokens) for each in record.chunks if each.kind.has_tokens]


def test_running_usage_counts_tokens_and_usage_on_the_last_chunk_does_not() -> None:
    used = [{"usage": {"completion_tokens": n}} for n in (1, 4, 6)]
    running = answered(
        chunk("a") | used[0],
        chunk("b") | used[1],
        chunk("c", finish_reason="stop") | used[2],
        summed(6),
        "[DONE]",
    )
    assert kinds(running) == [(Kind.CONTENT, 1), (Kind.CONTENT, 3), (Kind.CONTENT, 2)]
    last = answered(chunk("a"), chunk("b", finish_reason="stop") | used[2], "[DONE]")
    assert kinds(last) == [(Kind.CONTENT, None)] * 2
    assert (last.outcome, last.completion_tokens) == (Outcome.COMPLETE, 6)


def test_a_token_that_came_only_in_running_usage_is_a_token() -> None:
    record = answered(
        chunk("a") | {"usage": {"completion_tokens": 1}},
        chunk("", finish_reason="stop") | {"usage": {"completion_tokens": 2}},
        "[DONE]",
    )
    assert kinds(record) == [(Kind.CONTENT, 1), (Kind.CONTENT, 1)]


def test_log_probabilities_count_tokens_where_ids_are_missing() -> None:
    one = chunk("ab", logprobs={"tokens": ["a", "b"], "token_logprobs": [-1, -2]}, finish_reason="stop")
    assert kinds(answered(one, summed(2), "[DONE]")) == [(Kind.CONTENT, 2)]


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_engine_that_gave_up_is_no_success(reason: str) -> None:
    record = answered(chunk("a", finish_reason=reason), summed(1), "[DONE]")
    assert record.outcome is Outcome.IN_BAND_ERROR


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "engine died"}},
        {"error": "engine died"},
        {"object": "error", "message": "engine died", "code": 500},
        (b"error", b'{"message": "engine died"}'),
        (b"error", b"engine died"),
        chunk("b") | {"error": {"message": "engine died"}},
    ],
)
def test_every_way_to_say_error_fails_the_request(event: Any) -> None:
    record = answered(chunk("a"), event, chunk("c", finish_reason="stop"), summed(2), "[DONE]")
    assert (record.outcome, record.detail) == (Outcome.IN_BAND_ERROR, "engine died")


def test_acceptance_by_step_is_read() -> None:
    steps = {"per_step_drafted": [4, 4, 1], "per_step_accepted": [3, 1, 1], "num_spec_steps": 3}
    last = summed(8) | {"metrics": {"speculative_decoding": steps, "queue_time_ms": 1.0}}
    record = answered(chunk("a", token_ids=list(range(8)), finish_reason="stop"), last, "[DONE]")
    assert (record.drafted, record.accepted) == ((4, 4, 1), (3, 1, 1))


def test_cached_tokens_and_reasoning_are_kept() -> None:
    thought = {"choices": [{"delta": {"reasoning_content": "hm", "content": None}}]}
    told = {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    record = answered(thought, told, {"choices": [], "usage": usage}, "[DONE]")
    assert (record.text, record.extra["reasoning"], record.cached_tokens) == ("a", "hm", 8)
    assert [kind for kind, _ in kinds(record)] == [Kind.REASONING, Kind.CONTENT]


def test_what_follows_the_end_is_not_read() -> None:
    record = answered(chunk("a", finish_reason="stop"), summed(1), "[DONE]", chunk("z"), {"error": "late"})
    assert (record.outcome, record.text) == (Outcome.COMPLETE, "a")
