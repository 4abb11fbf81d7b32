"""What is asked reaches the wire as vLLM takes it; a server's counters are read as differences."""

from __future__ import annotations

import json

import pytest

from harness.bench.calls import calls_of
from harness.bench.data.ask import Ask, Guide, GuideKind
from harness.bench.metrics.counters import acceptance_of, between, counters
from harness.errors import UsageError

METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} %d.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="tiny"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="tiny"} %d.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="tiny"} %d.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="0"} %d.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="1"} %d.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 5.0
"""


def test_a_guide_is_told_as_structured_outputs_have_it() -> None:
    guides = [
        Guide(name="s", kind=GuideKind.JSON_SCHEMA, rule={"type": "null"}),
        Guide(name="r", kind=GuideKind.REGEX, rule="a+"),
        Guide(name="c", kind=GuideKind.CHOICE, rule=("a", "b")),
        Guide(name="g", kind=GuideKind.GRAMMAR, rule='root ::= "a"'),
    ]
    asks = [Ask(id=one.name, prompt="hi", max_tokens=3, guide=one) for one in guides]
    calls = calls_of(asks, "tiny", temperature=0)
    told = [json.loads(call.body) for call in calls]
    assert [body["structured_outputs"] for body in told] == [
        {"json": {"type": "null"}},
        {"regex": "a+"},
        {"choice": ["a", "b"]},
        {"grammar": 'root ::= "a"'},
    ]
    assert [call.guide for call in calls] == ["s", "r", "c", "g"]
    assert {(body["temperature"], body["max_tokens"], "ignore_eos" in body) for body in told} == {
        (0, 3, False)
    }


def test_token_ids_go_to_completions_and_nowhere_else() -> None:
    ask = Ask(id="a", prompt=(1, 2), max_tokens=3, ignore_eos=True, seed=7)
    (call,) = calls_of([ask], "tiny")
    body = json.loads(call.body)
    assert (call.path, body["prompt"], body["ignore_eos"], body["seed"]) == (
        "/v1/completions",
        [1, 2],
        True,
        7,
    )
    with pytest.raises(UsageError, match="saw token ids for a chat endpoint"):
        calls_of([ask], "tiny", as_chat=True)
    (call,) = calls_of([Ask(id="a", prompt="hi", max_tokens=3)], "tiny", as_chat=True)
    assert json.loads(call.body)["messages"] == [{"role": "user", "content": "hi"}]


def test_acceptance_of_a_run_is_what_the_counters_grew_by() -> None:
    grown = between(counters(METRICS % (100, 300, 250, 99, 90)), counters(METRICS % (104, 310, 256, 103, 91)))
    found = acceptance_of([grown])
    assert found is not None
    assert (found.steps, found.drafted, found.accepted) == (4, 10, 6)
    assert (found.rate, found.length, found.over_all) == (0.6, 2.5, (1.0, 0.25))


def test_counters_of_several_engines_are_added() -> None:
    both = METRICS % (1, 2, 1, 1, 0) + (METRICS % (2, 4, 3, 2, 1)).replace('engine="0"', 'engine="1"')
    found = counters(both)
    assert found is not None
    assert (found.drafts, found.drafted, found.accepted, found.per_position) == (3, 6, 4, (3, 1))


def test_where_nothing_is_counted_nothing_is_said() -> None:
    quiet, busy = counters(METRICS % (1, 2, 1, 1, 0)), counters(METRICS % (9, 9, 9, 9, 9))
    assert counters("vllm:generation_tokens_total 5.0\n") is None
    assert between(None, busy) is None
    assert acceptance_of([between(quiet, quiet)]) is None  # no draft in between
    assert between(busy, quiet) is None  # the server restarted
    assert (
        between(counters(METRICS % (5, 20, 15, 5, 5)), counters(METRICS % (8, 24, 6, 3, 3))) is None
    )  # and went on
