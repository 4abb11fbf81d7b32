"""Where an answer has to end, and what is said of one that ends elsewhere; traces are written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from harness.check.finish import check_finish
from harness.check.grammar import GrammarBook
from harness.scenario import Event, Grammar, Request, Scenario, Turn
from harness.trace import Completion, Crash, RowTrace, StepTrace, Trace
from harness.verdict import Verdict

END = 999
MARKER = 998
PROMPT = (5, 6, 7)


@pytest.fixture(scope="module")
def book(peaked: Path) -> GrammarBook:
    return GrammarBook(peaked)


@pytest.fixture(scope="module")
def encode(peaked: Path) -> Callable[[str], list[int]]:
    tokenizer = Tokenizer.from_file(str(peaked / "tokenizer.json"))
    return lambda text: [token for letter in text for token in tokenizer.encode(letter).ids]


def scenario(script: Sequence[Turn] | None = None, events: tuple[Event, ...] = (), **fields: Any) -> Scenario:
    request = replace(Request(id="r0", prompt=PROMPT, max_tokens=9), **fields)
    return Scenario(
        name="ends", requests=(request,), script={"r0": tuple(script)} if script else None, events=events
    )


def ran(*runs: Sequence[int], reason: str | None, **fields: Any) -> Trace:
    """One row a step; the first one ends the prompt."""
    rows = [
        RowTrace(
            request="r0",
            prompt_tokens=0 if i else len(PROMPT),
            kept=(),
            committed=tuple(run),
            num_computed=0,
            previous_accepted=1,
        )
        for i, run in enumerate(runs)
    ]
    tokens = tuple(token for run in runs for token in run)
    trace = Trace(
        scenario="ends",
        target="by hand",
        steps=tuple(StepTrace(index=i, rows=(row,)) for i, row in enumerate(rows)),
        completions={"r0": Completion(tokens=tokens, finish_reason=reason)},
        linear_layers=(),
    )
    return replace(trace, **fields)


def found(scenario: Scenario, trace: Trace, book: GrammarBook) -> list[tuple[int, str | None]]:
    """(step, cause) of everything that is wrong."""
    evidence = check_finish(scenario, trace, book)
    assert evidence.verdict is (Verdict.FAIL if evidence.divergences else Verdict.PASS)
    assert all(d.kind == "finish" and d.diagnosis and d.at.request == "r0" for d in evidence.divergences)
    return [(d.at.step, d.cause) for d in evidence.divergences]


@pytest.mark.parametrize(
    ("fields", "runs", "reason"),
    [
        pytest.param({}, ([8], [9, 8, END]), "stop", id="end token"),
        pytest.param({"ignore_eos": True}, ([8], [END] * 8), "length", id="ignored end token"),
        pytest.param({"stop_token_ids": (30,), "ignore_eos": True}, ([8], [9, 30]), "stop", id="stop token"),
        pytest.param({"max_tokens": 4}, ([8], [9, 8, 9]), "length", id="most tokens"),
        pytest.param({"max_tokens": 4}, ([8], [9, 8, END]), "stop", id="end token as the last one"),
    ],
)
def test_an_answer_ends_with_its_first_end_and_nowhere_else(
    fields: dict[str, Any], runs: tuple[list[int], ...], reason: str, book: GrammarBook
) -> None:
    asked, last = scenario(**fields), len(runs) - 1
    assert found(asked, ran(*runs, reason=reason), book) == []
    other = {"stop": "length", "length": "stop"}[reason]
    assert found(asked, ran(*runs, reason=other), book) == [(last, "wrong finish reason")]
    assert found(asked, ran(*runs, reason=None), book) == [(last, "unfinished")]
    early = (*runs[:-1], runs[-1][:-1])
    assert found(asked, ran(*early, reason=reason), book) == [(last, "answer cut too early")]
    assert found(asked, ran(*runs[:-1], [*runs[-1], 8], reason=reason), book) == [
        (last, "answer goes on behind its end")
    ]
    assert found(asked, ran(*runs, [8], reason=reason), book) == [(last + 1, "answer goes on behind its end")]


def test_the_length_of_the_model_is_an_end(book: GrammarBook) -> None:
    asked = replace(scenario(), max_model_len=6)
    assert found(asked, ran([8], [9, 8], reason="length"), book) == []
    assert found(asked, ran([8], [9], reason="length"), book) == [(1, "answer cut too early")]
    assert found(asked, ran([8], [9, 8], [9], reason="length"), book) == [
        (2, "answer goes on behind its end")
    ]


@pytest.mark.parametrize("split", range(1, 5))
def test_a_stop_text_may_span_tokens_and_steps_but_not_the_prompt(
    split: int, book: GrammarBook, encode: Callable[[str], list[int]]
) -> None:
    tokens = encode("xab]yz")
    asked = scenario(stop=("b]", "yz"))
    right = [tokens[:split], tokens[split:4]] if split < 4 else [tokens[:4]]
    assert found(asked, ran(*right, reason="stop"), book) == []
    assert found(asked, ran(tokens[:split], tokens[split:], reason="stop"), book) == [
        (0 if split > 4 else 1, "answer goes on behind its end")
    ]
    in_prompt = replace(scenario(stop=("ab",)).requests[0], prompt=tuple(encode("xa")))
    answer = encode("baaaaaaaa")
    assert found(replace(asked, requests=(in_prompt,)), ran(answer, reason="length"), book) == []


def test_a_grammar_ends_with_its_end_token_whether_or_not_the_request_ignores_it(
    book: GrammarBook, encode: Callable[[str], list[int]]
) -> None:
    (a,) = encode("a")
    grammar = Grammar(kind="regex", text="a{2,8}")
    for ignore in (False, True):
        asked = scenario(grammar=grammar, ignore_eos=ignore)
        assert found(asked, ran([a], [a, END], reason="stop"), book) == []
        assert found(asked, ran([a], [a, END], [a], reason="stop"), book) == [
            (2, "answer goes on behind its end")
        ]
    reasons = scenario(grammar=grammar, ignore_eos=True, reasoning_end=MARKER)
    assert found(reasons, ran([END], [MARKER, a, a, END], reason="stop"), book) == []
    assert found(reasons, ran([END], reason="stop"), book) == [(0, "answer cut too early")]
    thinks = replace(reasons, requests=(replace(reasons.requests[0], ignore_eos=False),))
    assert found(thinks, ran([a], [END], reason="stop"), book) == []


def test_a_script_ends_with_its_turns(book: GrammarBook) -> None:
    turns = (Turn(token=8), Turn(token=9), Turn(token=8))
    asked = scenario(turns)
    assert found(asked, ran([8], [9], [8], reason="script"), book) == []
    assert found(asked, ran([8], [9], reason="script"), book) == [(1, "answer cut too early")]
    assert found(asked, ran([8], [9], [8], reason="length"), book) == [(2, "wrong finish reason")]
    assert found(asked, ran([8], [9], [8], reason=None), book) == [(2, "unfinished")]
    assert found(scenario(turns, max_tokens=3), ran([8], [9], [8], reason="length"), book) == []


def test_an_aborted_answer_may_end_anywhere_if_somebody_asked_for_it(book: GrammarBook) -> None:
    asked = scenario(events=(Event(step=2, what="abort", request="r0"),))
    aborted = ran([8], [9, 9], [], reason="abort")
    rows = [step.rows[0] for step in aborted.steps]
    late = StepTrace(index=2, rows=(replace(rows[2], discarded=True),), aborted=("r0",))
    right = replace(aborted, steps=(*aborted.steps[:2], late))
    assert found(asked, right, book) == []
    assert found(scenario(), right, book) == [(1, "wrong finish reason")]
    counts = replace(right, steps=(*right.steps[:2], replace(late, rows=(rows[2],))))
    assert found(asked, counts, book) == [(2, "answer goes on behind its end")]
    ended = ran([8], [9, END], reason="abort")
    assert found(asked, ended, book) == [(1, "wrong finish reason")]


def test_a_request_that_runs_and_commits_nothing_is_stalled(book: GrammarBook) -> None:
    assert found(scenario(), ran([8], [9], [], [], reason=None), book) == [(3, "stalled")]
    never = ran(reason=None, completions={})
    assert found(scenario(), never, book) == [(0, "unfinished")]


def test_a_crash_excuses_what_it_prevented_and_nothing_else(book: GrammarBook) -> None:
    crash = Crash(step=2, kind="RuntimeError", message="", where="")
    assert found(scenario(), ran([8], [9], reason=None, crash=crash), book) == []
    assert found(scenario(), ran([8], [END, 9], reason=None, crash=crash), book) == [
        (1, "answer goes on behind its end")
    ]
    # What the last step committed is in no row, so nobody knows what ended the answer.
    assert found(scenario(), ran([8], [9], reason="stop", crash=crash), book) == []


def test_rows_that_were_discarded_commit_nothing(book: GrammarBook) -> None:
    trace = ran(
        [8], [END], [9], reason="stop", completions={"r0": Completion(tokens=(8, END), finish_reason="stop")}
    )
    late = replace(trace.steps[2], rows=(replace(trace.steps[2].rows[0], discarded=True),))
    assert found(scenario(), replace(trace, steps=(*trace.steps[:2], late)), book) == []


def test_the_user_gets_what_was_committed(book: GrammarBook) -> None:
    trace = ran(
        [8], [9, END], reason="stop", completions={"r0": Completion(tokens=(8, 9), finish_reason="stop")}
    )
    assert found(scenario(), trace, book) == [(1, "answer differs from what was committed")]
