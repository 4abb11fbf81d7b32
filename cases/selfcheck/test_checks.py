"""Each check catches its own thing: one real run, changed in one place, is judged again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.check.gauge import NEAR_TIE, Gauge, Gauges
from harness.check.grammar import GrammarBook
from harness.check.ledger import check_ledger
from harness.check.padding import show_padding
from harness.check.recompile import check_recompile
from harness.check.reference import Reference, ReferenceBook
from harness.check.state import check_logits, check_state
from harness.check.tokens import check_tokens
from harness.lab import Lab, Plan
from harness.oracle.model import Oracle, Replay, State
from harness.run import Judge, Judgement, first_divergence
from harness.scenario import Documented, Grammar, Request, Scenario, Turn
from harness.targets.embedded import under_each_variant
from harness.trace import Completion, Coordinate, Crash, LayerState, RowTrace, Trace
from harness.verdict import Divergence, Evidence, Verdict, worst

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
PLANS = {
    "r0": Plan(guided=True, turns=((3, 4), (2, 1), (0, 1), (3, 2), (3, 4))),
    "r1": Plan(turns=((3, 2), (3, 4), (2, 3), (3, 1), (1, 2))),
    "r2": Plan(guided=True, arrival=1, turns=((1, 1), (3, 3), (2, 2))),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """A run of the correct engine, and what judges it."""

    scenario: Scenario
    trace: Trace
    gauges: Gauges
    judge: Judge
    oracle: Oracle
    grammars: GrammarBook

    def verdict_on(self, trace: Trace) -> Judgement:
        return self.judge.judge(self.scenario, trace, self.gauges)

    def reference(self, trace: Trace | None = None) -> Reference:
        return Reference(ReferenceBook(self.oracle), self.scenario, trace or self.trace)

    def history(self, request: str) -> list[int]:
        """Prompt and answer of a request."""
        prompt = self.scenario.request(request).prompt
        return [*prompt, *(token for _, row in rows_of(self.trace, request) for token in row.committed)]

    def state_after(self, tokens: Sequence[int]) -> State:
        """The oracle's state, folded anew."""
        return self.oracle.fold().extend(tokens, keep_states_at={len(tokens)}).states[len(tokens)]


@pytest.fixture(scope="module")
def oracle(peaked: Path) -> Oracle:
    return Oracle.load(peaked)


def lap_of(peaked: Path, oracle: Oracle, scenario: Scenario) -> Lap:
    target, judge = under_each_variant(peaked, kernels="naive")("fixed"), Judge(peaked, oracle)
    trace = target.run(scenario)
    gauges = judge.calibrate(target, scenario, trace)
    return Lap(
        scenario=scenario,
        trace=trace,
        gauges=gauges,
        judge=judge,
        oracle=oracle,
        grammars=GrammarBook(peaked),
    )


@pytest.fixture(scope="module")
def forced(peaked: Path, oracle: Oracle) -> Lap:
    return lap_of(peaked, oracle, Lab(peaked, FIXTURES).forced("forced", k=3, plans=PLANS))


@pytest.fixture(scope="module")
def natural(peaked: Path, oracle: Oracle) -> Lap:
    lab = Lab(peaked, FIXTURES)
    digits = Grammar(kind="regex", text="[0-9]{20}")
    requests = (
        Request(id="free", prompt=lab.encode("The river"), max_tokens=10, ignore_eos=True),
        Request(id="guided", prompt=lab.encode("number: "), max_tokens=10, grammar=digits),
    )
    return lap_of(peaked, oracle, lab.natural("natural", k=3, requests=requests))


# Changing a trace.


def rows_of(trace: Trace, request: str) -> list[tuple[int, RowTrace]]:
    return [(step.index, row) for step in trace.steps for row in step.rows if row.request == request]


def row_at(trace: Trace, step: int, request: str) -> RowTrace:
    return dict(rows_of(trace, request))[step]


def changed(trace: Trace, step: int, request: str, **fields: Any) -> Trace:
    """The trace with other fields in one row."""
    row_at(trace, step, request)  # it is there

    def other(row: RowTrace, index: int) -> RowTrace:
        return replace(row, **fields) if (index, row.request) == (step, request) else row

    return everywhere(trace, other)


def everywhere(trace: Trace, other: Callable[[RowTrace, int], RowTrace]) -> Trace:
    """The trace with every row replaced by ``other(row, step)``."""
    steps = [replace(step, rows=tuple(other(row, step.index) for row in step.rows)) for step in trace.steps]
    return replace(trace, steps=tuple(steps))


def with_state(trace: Trace, step: int, request: str, **tensors: Any) -> Trace:
    """The trace with other tensors in one state."""
    state = row_at(trace, step, request).state
    assert state is not None
    return changed(trace, step, request, state=replace(state, **tensors))


def with_oracle_state(trace: Trace, step: int, request: str, state: State) -> Trace:
    return with_state(trace, step, request, conv=state.conv, recurrent=state.recurrent)


def state_of(trace: Trace, step: int, request: str) -> LayerState:
    state = row_at(trace, step, request).state
    assert state is not None
    return state


def edited(array: Any, place: Any, value: Any) -> Any:
    copy = array.copy()
    copy[place] = value
    return copy


def as_answered(trace: Trace) -> Trace:
    """The trace with the answers that its rows add up to."""
    answers = {
        name: replace(done, tokens=tuple(t for _, row in rows_of(trace, name) for t in row.committed))
        for name, done in trace.completions.items()
    }
    return replace(trace, completions=answers)


def failing(judgement: Judgement) -> set[str]:
    return {evidence.check for evidence in judgement.evidence if evidence.verdict is Verdict.FAIL}


def evidence_of(judgement: Judgement, check: str) -> Evidence:
    (found,) = [evidence for evidence in judgement.evidence if evidence.check == check]
    return found


def test_the_unchanged_runs_pass_and_compare_something(forced: Lap, natural: Lap) -> None:
    for lap in (forced, natural):
        judgement = lap.verdict_on(lap.trace)
        assert judgement.verdict is Verdict.PASS
        assert judgement.first is None
        rows = sum(len(step.rows) for step in lap.trace.steps)
        assert evidence_of(judgement, "state").compared == rows
        assert evidence_of(judgement, "ledger").compared == rows
        assert evidence_of(judgement, "logits").compared == sum(
            max(row.accepted, 1) for step in lap.trace.steps for row in step.rows
        )
        assert evidence_of(judgement, "grammar").compared > 5


# State.


@pytest.mark.parametrize(("layer", "head"), [(0, 0), (1, 3), (2, 2)])
@pytest.mark.parametrize("sign", [1, -1])
def test_one_element_of_one_head_is_found_where_it_is_and_only_beyond_the_threshold(
    forced: Lap, layer: int, head: int, sign: int
) -> None:
    seen = state_of(forced.trace, 3, "r1")
    allowed = forced.gauges.recurrent.thresholds.reshape(seen.recurrent.shape[:2])[layer, head]
    whole = float(
        np.linalg.norm(seen.recurrent[layer, head])
    )  # relative RMS of a change d to one element: d / whole

    def by(factor: float) -> Judgement:
        place = (layer, head, 17, 5)
        value = seen.recurrent[place] + sign * factor * allowed * whole
        return forced.verdict_on(
            with_state(forced.trace, 3, "r1", recurrent=edited(seen.recurrent, place, value))
        )

    assert by(0.9).verdict is Verdict.PASS
    judgement = by(1.1)
    assert failing(judgement) == {"state"}
    assert judgement.hit == ("r1",)
    (found,) = evidence_of(judgement, "state").divergences
    assert found.at == Coordinate(
        step=3, request="r1", layer=forced.trace.linear_layers[layer], tensor="recurrent", head=head
    )
    assert found.error == pytest.approx(1.1 * allowed, rel=0.05)
    assert found.threshold == pytest.approx(allowed)
    assert judgement.first is not None
    assert judgement.first.at == found.at


@pytest.mark.parametrize("layer", [0, 2])
def test_one_column_of_a_convolution_history_is_found_where_it_is(forced: Lap, layer: int) -> None:
    seen = state_of(forced.trace, 2, "r0")
    judgement = forced.verdict_on(
        with_state(forced.trace, 2, "r0", conv=edited(seen.conv, (layer, 1), seen.conv[layer, 2]))
    )
    (found,) = evidence_of(judgement, "state").divergences
    assert found.at == Coordinate(
        step=2, request="r0", layer=forced.trace.linear_layers[layer], tensor="conv"
    )


@pytest.mark.parametrize("by", [1, -1])
def test_a_convolution_history_shifted_by_one_fails(forced: Lap, by: int) -> None:
    seen = state_of(forced.trace, 2, "r1")
    judgement = forced.verdict_on(with_state(forced.trace, 2, "r1", conv=np.roll(seen.conv, by, axis=1)))
    assert failing(judgement) == {"state"}
    assert judgement.first is not None
    assert (judgement.first.at.step, judgement.first.at.tensor) == (2, "conv")
    assert judgement.first.at.layer == forced.trace.linear_layers[0]


@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        (-3, "the state lags by 3 tokens"),
        (-1, "the state lags by 1 token "),
        (1, "the state leads by 1 token "),
        (2, "the state leads by 2 tokens"),
    ],
)
def test_a_state_of_another_age_is_named(forced: Lap, tokens: int, named: str) -> None:
    history = forced.history("r1")
    count = state_of(forced.trace, 2, "r1").tokens_included
    wrong = with_oracle_state(forced.trace, 2, "r1", forced.state_after(history[: count + tokens]))
    judgement = forced.verdict_on(wrong)
    assert failing(judgement) == {"state"}
    assert named in diagnosis(judgement)


def test_a_state_of_zeros_is_named(forced: Lap) -> None:
    seen = state_of(forced.trace, 2, "r1")
    zero = with_state(
        forced.trace, 2, "r1", conv=np.zeros_like(seen.conv), recurrent=np.zeros_like(seen.recurrent)
    )
    assert diagnosis(forced.verdict_on(zero)).startswith("the state is zero")


def test_swapped_states_name_the_other_request(forced: Lap) -> None:
    mine, other = state_of(forced.trace, 3, "r0"), state_of(forced.trace, 3, "r2")
    swapped = with_state(forced.trace, 3, "r0", conv=other.conv, recurrent=other.recurrent)
    swapped = with_state(swapped, 3, "r2", conv=mine.conv, recurrent=mine.recurrent)
    judgement = forced.verdict_on(swapped)
    assert judgement.hit == ("r0", "r2")
    assert judgement.first is not None
    assert judgement.first.at.request == "r0"
    assert diagnosis(judgement).startswith("the state belongs to request r2")


@pytest.mark.parametrize("rejected", [1, 2])
def test_a_state_with_rejected_drafts_is_named(forced: Lap, rejected: int) -> None:
    row = row_at(forced.trace, 1, "r1")
    assert (len(row.kept), row.accepted) == (3, 2)
    live = forced.history("r1")[: row.num_computed]
    folded = [*live, *row.kept[row.accepted - 1 :][:rejected]]
    judgement = forced.verdict_on(with_oracle_state(forced.trace, 1, "r1", forced.state_after(folded)))
    plural = "s" if rejected > 1 else ""
    assert diagnosis(judgement).startswith(f"the state includes {rejected} rejected draft{plural} ")


def test_a_state_that_lost_accepted_tokens_before_the_step_is_named(forced: Lap) -> None:
    step, request, lost = 3, "r1", 2
    row = row_at(forced.trace, step, request)
    assert row.previous_accepted == 4
    history, start = forced.history(request), row.num_computed - row.accepted
    folded = forced.state_after([*history[: start - lost], *history[start : row.num_computed]])
    first_layer = edited(state_of(forced.trace, step, request).recurrent, 0, folded.recurrent[0])
    judgement = forced.verdict_on(with_state(forced.trace, step, request, recurrent=first_layer))
    assert judgement.first is not None
    assert judgement.first.at.tensor == "recurrent"
    assert diagnosis(judgement).startswith(f"the state lost the last {lost} accepted tokens before this step")


def test_columns_of_several_requests_are_named_one_by_one(forced: Lap) -> None:
    mine, other = state_of(forced.trace, 3, "r0"), state_of(forced.trace, 3, "r1")
    mixed = edited(mine.conv, (slice(None), 1), other.conv[:, 2])
    said = diagnosis(forced.verdict_on(with_state(forced.trace, 3, "r0", conv=mixed)))
    a, b = mine.tokens_included, other.tokens_included
    assert f"the columns hold r0[{a - 3}] r1[{b - 1}] r0[{a - 1}]" in said


def test_what_fits_no_mistake_is_said_to_fit_none(forced: Lap) -> None:
    seen = state_of(forced.trace, 3, "r1")
    judgement = forced.verdict_on(with_state(forced.trace, 3, "r1", recurrent=seen.recurrent[:, ::-1]))
    assert diagnosis(judgement).startswith("no known mistake fits")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tensor", ["conv", "recurrent"])
def test_a_number_that_is_none_fails(forced: Lap, value: float, tensor: str) -> None:
    seen = getattr(state_of(forced.trace, 2, "r2"), tensor)
    judgement = forced.verdict_on(
        with_state(forced.trace, 2, "r2", **{tensor: edited(seen, (1, 2, 3), value)})
    )
    assert failing(judgement) == {"state"}
    assert judgement.first is not None
    assert judgement.first.at.tensor == tensor
    assert judgement.first.at.layer == forced.trace.linear_layers[1]
    assert "NaN or infinite" in diagnosis(judgement)


def test_a_number_that_is_none_fails_even_where_the_gauge_decides_nothing(forced: Lap) -> None:
    """A correct variant that yields NaN has no finite noise, and must not get away with INCONCLUSIVE."""
    blind = Gauge(noise=(np.inf,) * 3, signal=(0.0,) * 3)
    gauges = replace(forced.gauges, conv=blind)
    seen = state_of(forced.trace, 2, "r2").conv
    broken = with_state(forced.trace, 2, "r2", conv=edited(seen, (1, 2, 3), np.nan))
    assert check_state(broken, forced.reference(), gauges).verdict is Verdict.FAIL
    assert check_state(forced.trace, forced.reference(), gauges).verdict is Verdict.INCONCLUSIVE


def test_a_gauge_that_sees_too_little_makes_the_state_inconclusive(forced: Lap) -> None:
    seen = state_of(forced.trace, 2, "r1").recurrent
    wrong = with_state(forced.trace, 2, "r1", recurrent=1.5 * seen)
    size = len(forced.gauges.recurrent.noise)

    def by(*signal: float) -> Evidence:
        gauge = Gauge(noise=(1e-6,) * size, signal=signal)
        return check_state(wrong, forced.reference(), replace(forced.gauges, recurrent=gauge))

    assert by(*[4.9e-6] * size).verdict is Verdict.INCONCLUSIVE
    assert "times the noise" in by(*[4.9e-6] * size).summary
    assert by(*[5.1e-6] * size).verdict is Verdict.FAIL
    last_head_alone = by(*[4.9e-6] * (size - 1), 5.1e-6)
    assert {(d.at.layer, d.at.head) for d in last_head_alone.divergences} == {
        (forced.trace.linear_layers[-1], seen.shape[1] - 1)
    }


def diagnosis(judgement: Judgement) -> str:
    assert judgement.first is not None
    assert judgement.first.diagnosis is not None
    return judgement.first.diagnosis


# Logits.


@pytest.mark.parametrize(("position", "wrong"), [(0, True), (1, True), (2, False), (3, False)])
def test_logits_count_at_accepted_positions_only(forced: Lap, position: int, wrong: bool) -> None:
    row = row_at(forced.trace, 1, "r1")
    assert (len(row.kept), row.accepted) == (3, 2)
    assert row.logits is not None
    other = edited(row.logits, position, row.logits[position][::-1])
    judgement = forced.verdict_on(changed(forced.trace, 1, "r1", logits=other))
    assert failing(judgement) == ({"logits"} if wrong else set())
    if wrong:
        assert judgement.first is not None
        assert judgement.first.at == Coordinate(step=1, request="r1", tensor="logits")
        assert f"after {row.num_computed - 1 + position} tokens" in judgement.first.message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_fail(forced: Lap, value: float) -> None:
    row = row_at(forced.trace, 1, "r1")
    judgement = forced.verdict_on(changed(forced.trace, 1, "r1", logits=edited(row.logits, (1, 700), value)))
    assert failing(judgement) == {"logits"}


# The ledger.


@pytest.mark.parametrize("off", [1, -1])
@pytest.mark.parametrize(
    ("field", "tensor"),
    [
        ("num_computed", "num_computed_tokens"),
        ("matcher_tokens", "matcher history"),
        ("previous_accepted", "num_accepted_tokens"),
        ("tokens_included", "state age"),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_count_that_is_off_by_one_is_named(
    forced: Lap, step: int, field: str, tensor: str, off: int
) -> None:
    row = row_at(forced.trace, step, "r0")
    if field == "tokens_included":
        wrong = with_state(
            forced.trace, step, "r0", tokens_included=state_of(forced.trace, step, "r0").tokens_included + off
        )
    else:
        wrong = changed(forced.trace, step, "r0", **{field: getattr(row, field) + off})
    judgement = forced.verdict_on(wrong)
    assert judgement.verdict is Verdict.FAIL
    (found,) = evidence_of(judgement, "ledger").divergences
    assert found.at == Coordinate(step=step, request="r0", tensor=tensor)
    assert judgement.first is not None
    assert judgement.first.at.step == step
    assert "r0" in judgement.ledger[-1]


@pytest.mark.parametrize("seen", [-1, -7, 10**6])
@pytest.mark.parametrize(
    "field", ["num_computed", "matcher_tokens", "previous_accepted", "tokens_included", "grammar_kept"]
)
def test_counts_beyond_all_reason_fail_and_break_no_check(forced: Lap, field: str, seen: int) -> None:
    for step, request in [(0, "r0"), (1, "r0"), (5, "r1")]:
        if field in ("matcher_tokens", "grammar_kept") and request == "r1":
            continue
        wrong = (
            with_state(forced.trace, step, request, tokens_included=seen)
            if field == "tokens_included"
            else changed(forced.trace, step, request, **{field: seen})
        )
        prompt_has_no_such_count = step == 0 and field == "grammar_kept"
        expected = Verdict.PASS if prompt_has_no_such_count else Verdict.FAIL
        assert forced.verdict_on(wrong).verdict is expected


def test_more_tokens_than_drafts_and_one_fail(forced: Lap) -> None:
    row = row_at(forced.trace, 5, "r1")
    assert row.accepted == len(row.kept) + 1
    wrong = changed(forced.trace, 5, "r1", committed=(*row.committed, 7))
    found = evidence_of(forced.verdict_on(wrong), "ledger").divergences
    assert any(f"exceeds the row's {len(row.kept)} drafts + 1" in d.message for d in found)


@pytest.mark.parametrize("token", [-1, 1024, 10**9])
@pytest.mark.parametrize(("step", "request_id"), [(1, "r0"), (1, "r1"), (5, "r1")])
def test_a_token_outside_the_vocabulary_is_the_engines_fault(
    forced: Lap, token: int, step: int, request_id: str
) -> None:
    row = row_at(forced.trace, step, request_id)
    judgement = forced.verdict_on(
        changed(forced.trace, step, request_id, committed=(*row.committed[:-1], token))
    )
    found = evidence_of(judgement, "ledger").divergences
    assert found[0].at == Coordinate(step=step, request=request_id, tensor="committed")
    assert judgement.first is not None
    assert judgement.first.at.step == step


def test_placeholders_are_no_fault_where_steps_are_planned_ahead_and_one_where_they_are_not(
    peaked: Path, oracle: Oracle, forced: Lap
) -> None:
    ahead = lap_of(peaked, oracle, replace(forced.scenario, regime="placeholder"))
    assert any(-1 in row.kept for step in ahead.trace.steps for row in step.rows)
    assert ahead.verdict_on(ahead.trace).verdict is Verdict.PASS
    row = row_at(forced.trace, 1, "r1")
    judgement = forced.verdict_on(changed(forced.trace, 1, "r1", kept=(*row.kept[:1], -1, -1)))
    assert failing(judgement) == {"schedule", "counters"}
    assert judgement.first is not None
    assert judgement.first.at.step == 1


def test_an_answer_with_a_placeholder_can_be_gauged(forced: Lap, peaked: Path) -> None:
    last = row_at(forced.trace, 5, "r1")
    wrong = changed(forced.trace, 5, "r1", committed=(*last.committed[:-1], -1))
    target = under_each_variant(peaked, kernels="naive")("fixed")
    assert forced.judge.calibrate(target, forced.scenario, wrong).state.decides


# Grammars.


@pytest.mark.parametrize("off", [1, -1])
def test_one_draft_too_many_or_too_few_is_caught(forced: Lap, off: int) -> None:
    row = row_at(forced.trace, 2, "r0")
    assert (len(row.proposed), row.grammar_kept, len(row.kept)) == (3, 2, 2)
    judgement = forced.verdict_on(
        changed(forced.trace, 2, "r0", grammar_kept=2 + off, kept=row.proposed[: 2 + off])
    )
    found = evidence_of(judgement, "grammar").divergences
    assert found[0].at == Coordinate(step=2, request="r0", tensor="drafts")
    assert f"{2 + off} of 3 drafts kept, the grammar accepts 2" in found[0].message


def test_an_illegal_draft_in_the_row_is_caught_though_the_count_is_right(forced: Lap) -> None:
    row = row_at(forced.trace, 2, "r0")
    judgement = forced.verdict_on(changed(forced.trace, 2, "r0", kept=row.proposed))
    (found,) = evidence_of(judgement, "grammar").divergences
    assert found.at.tensor == "drafts"
    assert "draft 2 of the row" in found.message


@pytest.fixture(scope="module")
def letters(peaked: Path, oracle: Oracle) -> Lap:
    """A letter, a digit, a letter ...: each mask row differs from the next."""
    encode = Lab(peaked, FIXTURES).encode
    a, one, b, two, c = (encode(text)[0] for text in "a1b2c")
    turns = (Turn(token=a), Turn(drafts=(one, b, two), accepted=3, token=one), Turn(token=c))
    request = Request(
        id="r0",
        prompt=encode("code: "),
        max_tokens=9,
        grammar=Grammar(kind="regex", text="([a-z][0-9]){9}"),
    )
    return lap_of(peaked, oracle, Scenario(name="letters", requests=(request,), k=3, script={"r0": turns}))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_mask_rows_that_are_swapped_are_caught(letters: Lap, position: int) -> None:
    row = row_at(letters.trace, 1, "r0")
    assert row.mask is not None
    swapped = edited(row.mask, [position, position + 1], row.mask[[position + 1, position]])
    assert letters.verdict_on(letters.trace).verdict is Verdict.PASS
    judgement = letters.verdict_on(changed(letters.trace, 1, "r0", mask=swapped))
    assert failing(judgement) == {"grammar"}
    (found,) = evidence_of(judgement, "grammar").divergences
    assert found.at == Coordinate(step=1, request="r0", tensor="mask")
    assert f"mask row {position} " in found.message


@pytest.mark.parametrize("token", [0, 31, 32, 700, 1023])
@pytest.mark.parametrize("position", [0, 2])
def test_one_bit_of_a_mask_is_caught(forced: Lap, position: int, token: int) -> None:
    row = row_at(forced.trace, 2, "r0")
    assert row.mask is not None
    bits = row.mask.view(np.uint32)
    word = bits[position, token // 32] ^ np.uint32(1 << token % 32)
    flipped = edited(bits, (position, token // 32), word).view(np.int32)
    judgement = forced.verdict_on(changed(forced.trace, 2, "r0", mask=flipped))
    assert failing(judgement) == {"grammar"}
    (found,) = evidence_of(judgement, "grammar").divergences
    assert found.at == Coordinate(step=2, request="r0", tensor="mask")
    allows = bool(word >> np.uint32(token % 32) & np.uint32(1))
    assert f"mask row {position} {'allows' if allows else 'forbids'} token {token}," in found.message


def test_an_illegal_token_is_caught_once(forced: Lap, peaked: Path) -> None:
    """The rows behind it cannot be judged by a history that is none."""
    illegal = Lab(peaked, FIXTURES).encode("x")[0]
    row = row_at(forced.trace, 2, "r0")
    judgement = forced.verdict_on(changed(forced.trace, 2, "r0", committed=(*row.committed[:-1], illegal)))
    (found,) = evidence_of(judgement, "grammar").divergences
    assert found.at == Coordinate(step=2, request="r0", tensor="committed")
    assert str(illegal) in found.message


# Tokens.


def last_choice(lap: Lap, request: str) -> tuple[int, RowTrace, np.ndarray, np.ndarray]:
    """The step and row of a request's last token, the oracle's logits for it, and its tokens from best to worst."""
    step, row = rows_of(lap.trace, request)[-1]
    tokens = lap.history(request)
    logits = lap.oracle.fold().extend(tokens[:-1]).logits[-1]
    legal = np.ones(len(logits), dtype=bool)
    grammar = lap.scenario.request(request).grammar
    if grammar:
        answer = tokens[len(lap.scenario.request(request).prompt) : -1]
        legal = lap.grammars(grammar).replay(answer).allowed()
    order = np.argsort(np.where(legal, -logits, np.inf))
    assert order[0] == row.committed[-1]
    return step, row, logits, order


@pytest.mark.parametrize("request_id", ["free", "guided"])
def test_another_greedy_token_fails(natural: Lap, request_id: str) -> None:
    step, row, _, order = last_choice(natural, request_id)
    second = int(order[1])
    wrong = changed(natural.trace, step, request_id, committed=(*row.committed[:-1], second))
    judgement = natural.verdict_on(as_answered(wrong))
    assert failing(judgement) == {"tokens"}
    (found,) = evidence_of(judgement, "tokens").divergences
    assert found.at == Coordinate(step=step, request=request_id, tensor="token")
    assert f"is {second}, plain decoding gives {order[0]}" in found.message


@pytest.mark.parametrize(("factor", "verdict"), [(0.99, Verdict.NEAR_TIE), (1.01, Verdict.FAIL)])
def test_a_second_best_token_within_the_noise_is_a_near_tie(
    natural: Lap, factor: float, verdict: Verdict
) -> None:
    """The noise that makes the real gap a near tie, and just not: 10 times it, relative to the logits' RMS."""
    step, row, logits, order = last_choice(natural, "free")
    gap = float(logits[order[0]] - logits[order[1]])
    noise = gap / factor / NEAR_TIE / float(np.sqrt(np.mean(np.square(logits))))
    trace = changed(natural.trace, step, "free", committed=(*row.committed[:-1], int(order[1])))
    evidence = check_tokens(
        natural.scenario,
        trace,
        natural.reference(trace),
        natural.grammars,
        replace(natural.gauges.logits, noise=(noise,)),
    )
    assert evidence.verdict is verdict
    assert len(evidence.divergences) == 1


def test_the_grammar_decides_which_token_is_best(natural: Lap) -> None:
    """Not an idle mask: without it, other tokens would have been best."""
    request = natural.scenario.request("guided")
    free = replace(
        natural.scenario, requests=tuple(replace(r, grammar=None) for r in natural.scenario.requests)
    )
    evidence = check_tokens(free, natural.trace, natural.reference(), natural.grammars, natural.gauges.logits)
    assert evidence.verdict is Verdict.FAIL
    assert {d.at.request for d in evidence.divergences} == {request.id}


def test_sampled_tokens_are_not_held_against_the_best_ones(natural: Lap) -> None:
    sampled = replace(
        natural.scenario,
        requests=tuple(
            replace(r, sampling=replace(r.sampling, temperature=0.7)) for r in natural.scenario.requests
        ),
    )
    evidence = check_tokens(
        sampled, natural.trace, natural.reference(), natural.grammars, natural.gauges.logits
    )
    assert (evidence.compared, evidence.summary) == (0, "no greedy request")


# Router near ties.


class Tied(Reference):
    """A reference whose routers were all but undecided."""

    gap = 1e-9

    def replay(self, request: str, also: Sequence[int] = ()) -> Replay:
        replay = super().replay(request, also)
        return replace(replay, router_gap=np.full_like(replay.router_gap, self.gap))


class Decided(Tied):
    """A reference whose routers were never in doubt."""

    gap = 0.5


def rerouted(trace: Trace, step: int, request: str, layer: int, offset: int = 0) -> Trace:
    """The trace with another expert chosen by one token in one layer."""
    routing = row_at(trace, step, request).routing
    assert routing is not None
    absent = next(expert for expert in range(8) if expert not in routing[offset, layer])
    return changed(trace, step, request, routing=edited(routing, (offset, layer, 0), absent))


def spoiled(trace: Trace, step: int, request: str, layer: int) -> Trace:
    """The trace with a wrong recurrent state in one linear layer."""
    seen = state_of(trace, step, request).recurrent
    return with_state(trace, step, request, recurrent=edited(seen, layer, 1.1 * seen[layer]))


@pytest.mark.parametrize(
    ("rerouting", "state_layer", "kind", "verdict"),
    [
        ((3, "r1", 0), 1, Tied, Verdict.NEAR_TIE),  # an earlier layer of the same step
        ((2, "r1", 3), 0, Tied, Verdict.NEAR_TIE),  # an earlier step
        ((3, "r1", 0), 1, Decided, Verdict.FAIL),
        ((3, "r1", 1), 1, Tied, Verdict.FAIL),  # the mixer runs before the experts of its layer
        ((3, "r1", 2), 1, Tied, Verdict.FAIL),
        ((4, "r1", 0), 1, Tied, Verdict.FAIL),
        ((3, "r0", 0), 1, Tied, Verdict.FAIL),
        (None, 1, Tied, Verdict.FAIL),
    ],
)
def test_a_router_tie_excuses_only_what_follows_from_it(
    forced: Lap,
    rerouting: tuple[int, str, int] | None,
    state_layer: int,
    kind: type[Tied],
    verdict: Verdict,
) -> None:
    trace = spoiled(forced.trace, 3, "r1", state_layer)
    trace = rerouted(trace, *rerouting) if rerouting else trace
    reference = kind(ReferenceBook(forced.oracle), forced.scenario, trace)
    assert check_state(trace, reference, forced.gauges).verdict is verdict


def test_a_router_tie_of_a_rejected_draft_excuses_nothing(forced: Lap) -> None:
    row = row_at(forced.trace, 1, "r1")
    assert row.accepted == 2
    for offset, verdict in [(1, Verdict.NEAR_TIE), (2, Verdict.FAIL)]:
        trace = rerouted(spoiled(forced.trace, 3, "r1", 1), 1, "r1", 0, offset)
        reference = Tied(ReferenceBook(forced.oracle), forced.scenario, trace)
        assert check_state(trace, reference, forced.gauges).verdict is verdict


def test_a_router_tie_excuses_logits_of_its_own_step(forced: Lap) -> None:
    row = row_at(forced.trace, 3, "r1")
    trace = changed(forced.trace, 3, "r1", logits=1.1 * row.logits)
    for step, verdict in [(3, Verdict.NEAR_TIE), (4, Verdict.FAIL)]:
        tied = rerouted(trace, step, "r1", 3)
        reference = Tied(ReferenceBook(forced.oracle), forced.scenario, tied)
        assert check_logits(tied, reference, forced.gauges.logits).verdict is verdict


# The rest of a judgement.


CRASH = Crash(
    step=3, kind="RuntimeError", message="shape '[15, -1, 2048]' is invalid", where="conv.py:12 run"
)


def test_a_crash_fails_at_its_step(forced: Lap) -> None:
    dead = replace(forced.trace, steps=forced.trace.steps[:3], crash=CRASH)
    judgement = forced.verdict_on(dead)
    assert failing(judgement) == {"alive"}
    assert judgement.first is not None
    assert judgement.first.kind == "crash"
    assert judgement.first.at == Coordinate(step=3)
    assert "shape '[15, -1, 2048]' is invalid" in judgement.first.message
    assert "conv.py:12" in judgement.first.message


def test_a_wrong_state_before_a_crash_comes_first(forced: Lap) -> None:
    dead = replace(forced.trace, steps=forced.trace.steps[:3], crash=CRASH)
    judgement = forced.verdict_on(spoiled(dead, 2, "r0", 0))
    assert judgement.first is not None
    assert (judgement.first.kind, judgement.first.at.step) == ("state", 2)


def test_a_target_that_dies_at_once_can_be_gauged_and_judged(forced: Lap, peaked: Path) -> None:
    dead = replace(forced.trace, steps=(), crash=replace(CRASH, step=0))
    target = under_each_variant(peaked, kernels="naive")("fixed")
    gauges = forced.judge.calibrate(target, forced.scenario, dead)
    assert not gauges.state.decides
    judgement = forced.judge.judge(forced.scenario, dead, gauges)
    assert judgement.verdict is Verdict.FAIL
    assert judgement.first is not None
    assert judgement.first.kind == "crash"


@pytest.mark.parametrize("event", ["padded rows", "an event that nobody has heard of"])
def test_demanded_events_that_are_missing_make_a_run_inconclusive(forced: Lap, event: str) -> None:
    scenario = replace(forced.scenario, must_observe={"rollback": 1, event: 2})
    judgement = forced.judge.judge(scenario, forced.trace, forced.gauges)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert evidence_of(judgement, "must observe").summary == f"{event}: seen 0, demanded 2"


def test_a_fault_outranks_missing_events(forced: Lap) -> None:
    scenario = replace(forced.scenario, must_observe={"padded rows": 1})
    judgement = forced.judge.judge(scenario, spoiled(forced.trace, 2, "r0", 0), forced.gauges)
    assert judgement.verdict is Verdict.FAIL


@pytest.mark.parametrize(("gone", "check"), [("state", "state"), ("logits", "logits")])
def test_nothing_to_compare_is_inconclusive(forced: Lap, gone: str, check: str) -> None:
    judgement = forced.verdict_on(everywhere(forced.trace, lambda row, _: replace(row, **{gone: None})))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert evidence_of(judgement, check).verdict is Verdict.INCONCLUSIVE
    assert evidence_of(judgement, check).summary.startswith("no ")


def test_guided_rows_without_a_mask_are_not_taken_for_right_ones(forced: Lap) -> None:
    bare = everywhere(forced.trace, lambda row, _: replace(row, mask=None))
    evidence = evidence_of(forced.verdict_on(bare), "grammar")
    assert evidence.verdict is Verdict.INCONCLUSIVE
    assert "had no mask to look at" in evidence.summary
    row = row_at(bare, 2, "r0")
    worse = changed(bare, 2, "r0", grammar_kept=3, kept=row.proposed)
    assert evidence_of(forced.verdict_on(worse), "grammar").verdict is Verdict.FAIL


def test_a_run_without_steps_shows_nothing_but_that_no_answer_ended(forced: Lap) -> None:
    nothing = {name: Completion(tokens=(), finish_reason=None) for name in forced.trace.completions}
    idle = replace(forced.trace, steps=(), counters={}, completions=nothing)
    judgement = forced.verdict_on(idle)
    assert failing(judgement) == {"finish"}
    assert judgement.first is not None
    assert judgement.first.cause == "unfinished"
    assert {"state", "logits", "ledger"} <= {
        e.check for e in judgement.evidence if e.verdict is Verdict.INCONCLUSIVE
    }
    assert check_ledger(forced.scenario, replace(forced.trace, steps=())).compared == 0


@pytest.mark.parametrize(
    ("counted", "verdict"),
    [
        ({}, Verdict.INCONCLUSIVE),
        ({"conv": 1, "gdn": 2}, Verdict.PASS),
        ({"conv": 1, "gdn": 3}, Verdict.FAIL),
    ],
)
def test_a_kernel_may_be_compiled_as_often_as_the_scenario_says(
    forced: Lap, counted: dict[str, int], verdict: Verdict
) -> None:
    scenario = replace(forced.scenario, most_compilations=2)
    evidence = check_recompile(scenario, replace(forced.trace, compilations=counted))
    assert evidence.verdict is verdict
    assert [d.at.tensor for d in evidence.divergences] == (["gdn"] if verdict is Verdict.FAIL else [])


def test_padding_is_told_and_decides_nothing(forced: Lap) -> None:
    steps = [
        replace(step, padded_rows=2, padded_tokens=5) if step.index in (1, 3) else step
        for step in forced.trace.steps
    ]
    evidence = show_padding(replace(forced.trace, steps=tuple(steps)))
    assert evidence.verdict is Verdict.PASS
    real = len(forced.trace.steps[1].rows) + len(forced.trace.steps[3].rows)
    assert re.findall(r"\d+", evidence.summary) == ["2", str(real), "4", "10"]


# Verdicts and order.


ORDER = [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.NEAR_TIE, Verdict.PASS]


@pytest.mark.parametrize("better", ORDER)
@pytest.mark.parametrize("worse", ORDER)
def test_the_worse_verdict_stands(worse: Verdict, better: Verdict) -> None:
    expected = min(worse, better, key=ORDER.index)
    assert worst([worse, better]) is worst([better, worse]) is worst([better, worse, better]) is expected


def test_of_nothing_the_verdict_is_inconclusive_and_only_fail_is_red() -> None:
    assert worst([]) is Verdict.INCONCLUSIVE
    assert worst([Verdict.UNSUPPORTED, Verdict.PASS]) is Verdict.UNSUPPORTED
    assert {verdict: verdict.exit_code for verdict in Verdict} == {
        Verdict.PASS: 0,
        Verdict.NEAR_TIE: 0,
        Verdict.FAIL: 1,
        Verdict.INCONCLUSIVE: 125,
        Verdict.UNSUPPORTED: 125,
    }


def divergence(kind: str, step: int, **place: Any) -> Divergence:
    return Divergence(kind=kind, at=Coordinate(step=step, **place), message="")


def failed(*divergences: Divergence, verdict: Verdict = Verdict.FAIL) -> Evidence:
    return Evidence(check="any", verdict=verdict, summary="", divergences=divergences)


def test_the_first_divergence_is_the_earliest_and_state_comes_before_what_follows_from_it() -> None:
    in_order = [
        divergence("tokens", 1),
        divergence("crash", 2),
        divergence("state", 2, layer=0, tensor="conv", request="r1"),
        divergence("state", 2, layer=0, tensor="recurrent", request="r0", head=1),
        divergence("state", 2, layer=0, tensor="recurrent", request="r0", head=2),
        divergence("state", 2, layer=1, tensor="conv", request="r0"),
        divergence("memory", 2),
        divergence("grammar", 2, request="r0"),
        divergence("ledger", 2, tensor="state age", request="r0"),
        divergence("logits", 2, request="r0"),
        divergence("drafts", 2, request="r0"),
        divergence("tokens", 2, request="r0"),
        divergence("finish", 2, request="r0"),
        divergence("recompile", 2),
        divergence("state", 3, layer=0),
    ]
    for start in range(len(in_order)):
        rest = in_order[start:]
        assert first_divergence([failed(d) for d in reversed(rest)]) == rest[0]
        assert first_divergence([failed(*reversed(rest))]) == rest[0]


def test_a_near_tie_is_never_the_first_divergence() -> None:
    tie = failed(divergence("state", 1, layer=0), verdict=Verdict.NEAR_TIE)
    fault = divergence("logits", 5)
    assert first_divergence([tie, failed(fault)]) == fault
    assert first_divergence([tie]) is None


def test_in_one_step_the_state_is_named_before_the_logits_it_spoils(forced: Lap) -> None:
    logits = row_at(forced.trace, 3, "r1").logits
    both = changed(spoiled(forced.trace, 3, "r1", 2), 3, "r1", logits=1.1 * logits)
    judgement = forced.verdict_on(both)
    assert failing(judgement) == {"state", "logits"}
    assert judgement.first is not None
    assert judgement.first.kind == "state"
    earlier = changed(both, 2, "r0", logits=1.1 * row_at(both, 2, "r0").logits)
    first = forced.verdict_on(earlier).first
    assert first is not None
    assert (first.kind, first.at.step) == ("logits", 2)


@pytest.mark.parametrize(
    ("documented", "agrees"),
    [
        (Documented(failure="state"), True),
        (Documented(failure="state", tensor="recurrent", layer=1, step=3, message="after"), True),
        (Documented(failure="crash"), False),
        (Documented(failure="state", tensor="conv"), False),
        (Documented(failure="state", layer=0), False),
        (Documented(failure="state", step=2), False),
        (Documented(failure="state", message="shape"), False),
    ],
)
def test_a_failure_counts_as_documented_only_in_every_detail(
    forced: Lap, documented: Documented, agrees: bool
) -> None:
    wrong = spoiled(forced.trace, 3, "r1", 1)
    assert forced.judge.judge(forced.scenario, wrong, forced.gauges, documented).documented is agrees


def test_a_pass_is_not_the_documented_failure(forced: Lap) -> None:
    documented = Documented(failure="state")
    assert forced.judge.judge(forced.scenario, forced.trace, forced.gauges, documented).documented is False
    assert forced.verdict_on(forced.trace).documented is None


def test_a_forced_run_is_not_judged_by_its_tokens(forced: Lap) -> None:
    assert evidence_of(forced.verdict_on(forced.trace), "tokens").compared == 0


def test_a_script_is_what_the_engine_committed(forced: Lap) -> None:
    assert forced.scenario.script is not None
    for name, turns in forced.scenario.script.items():
        assert all(isinstance(turn, Turn) for turn in turns)
        assert [row.committed for _, row in rows_of(forced.trace, name)] == [turn.committed for turn in turns]
