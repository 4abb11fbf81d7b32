"""What surrounds a hypothesis: tensors that disagree, counts, columns, logits, crashes, and what looks alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.check.crash import cause_of_crash
from harness.check.diagnose import Diagnosis, diagnose, name_it
from harness.check.gauge import Gauge, Gauges
from harness.check.hypotheses import Scene, hypotheses
from harness.check.lookalikes import LOOKALIKES, seen_before
from harness.check.reference import Reference, ReferenceBook, start_of
from harness.lab import Lab, Plan
from harness.oracle.attention import forget
from harness.oracle.model import Oracle, State
from harness.scenario import Scenario
from harness.targets.embedded import under_each_variant
from harness.trace import Coordinate, Crash, LayerState, RowTrace, Trace
from harness.verdict import Divergence

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
THRESHOLD = 1e-5
GAUGE = Gauge(noise=(1e-6,), signal=(1e-2,))
GAUGES = Gauges(conv=GAUGE, recurrent=GAUGE, logits=GAUGE)
PLANS = {
    "r0": Plan(turns=((3, 4), (3, 3), (3, 1), (3, 2), (3, 2))),
    "r1": Plan(turns=((3, 2), (3, 4), (3, 2), (3, 3), (3, 2))),
    "r2": Plan(turns=((3, 1), (3, 2), (3, 3), (3, 2), (3, 2))),
}
STEP = 4


class Stage:
    """A real run of the correct engine, to be spoiled."""

    def __init__(self, folder: Path) -> None:
        self.scenario: Scenario = Lab(folder, FIXTURES, seed=3).forced("stage", k=3, plans=PLANS)
        self.trace: Trace = under_each_variant(folder, kernels="naive")("fixed").run(self.scenario)
        self.oracle = Oracle.load(folder)
        self.reference = Reference(ReferenceBook(self.oracle), self.scenario, self.trace)

    def row(self, request: str = "r0", step: int = STEP) -> RowTrace:
        return next(row for row in self.trace.steps[step].rows if row.request == request)

    def state(self, request: str, count: int) -> State:
        return self.reference.replay(request, also=[count]).states[count]

    def live(self, request: str = "r0") -> State:
        return self.state(request, self.row(request).num_computed)

    def with_rows(self, changes: dict[str, dict[str, Any]], step: int = STEP) -> Trace:
        rows = [replace(row, **changes.get(row.request, {})) for row in self.trace.steps[step].rows]
        steps = list(self.trace.steps)
        steps[step] = replace(steps[step], rows=tuple(rows))
        return replace(self.trace, steps=tuple(steps))

    def diagnosis(
        self, tensor: str, conv: Any, recurrent: Any, layer: int = 0, others: dict[str, State] | None = None
    ) -> Diagnosis:
        """Of r0 with these tensors."""
        states = {"r0": State(conv=conv, recurrent=recurrent), **(others or {})}
        trace = self.with_rows(
            {
                name: {
                    "state": LayerState(
                        conv=state.conv.astype(np.float32),
                        recurrent=state.recurrent.astype(np.float32),
                        tokens_included=self.row(name).num_computed,
                    )
                }
                for name, state in states.items()
            }
        )
        at = Coordinate(step=STEP, request="r0", layer=self.trace.linear_layers[layer], tensor=tensor)
        found = diagnose(trace, self.reference, at, THRESHOLD)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def stage(peaked: Path) -> Stage:
    return Stage(peaked)


# Tensors and layers that disagree.


def test_a_recurrence_that_lags_behind_its_convolution_is_named(stage: Stage) -> None:
    live, old = stage.live(), stage.state("r0", stage.row().num_computed - 2)
    found = stage.diagnosis("recurrent", live.conv, old.recurrent)
    assert found.cause == "convolution and recurrence disagree"
    assert "lags by 2 tokens in the recurrence, and the convolution is right" in found.words
    found = stage.diagnosis("conv", old.conv, live.recurrent)
    assert found.cause == "convolution and recurrence disagree"
    assert stage.diagnosis("conv", old.conv, old.recurrent).cause == "lags"


def test_a_layer_of_another_age_than_those_before_it_is_named(stage: Stage) -> None:
    live, old = stage.live(), stage.state("r0", stage.row().num_computed - 1)
    conv, recurrent = live.conv.copy(), live.recurrent.copy()
    conv[1:], recurrent[1:] = old.conv[1:], old.recurrent[1:]
    assert stage.diagnosis("conv", conv, recurrent, layer=1).cause == "layers disagree"


def test_a_layer_behind_right_ones_that_nothing_explains_had_wrong_inputs(stage: Stage) -> None:
    live = stage.live()
    noise = np.random.default_rng(0).normal(size=live.recurrent.shape)
    recurrent = live.recurrent + noise * (np.arange(len(noise)) > 0)[:, None, None, None]
    assert stage.diagnosis("recurrent", live.conv, recurrent, layer=1).cause == "wrong inputs"


def test_less_precision_is_told_from_a_mistake(stage: Stage) -> None:
    live = stage.live()
    noise = 1 + 1e-3 * np.random.default_rng(0).normal(size=live.recurrent.shape)
    assert stage.diagnosis("recurrent", live.conv, live.recurrent * noise).cause == "rounded"
    one = live.recurrent.copy()
    one[0, 0, 3, 3] += 1.0
    assert stage.diagnosis("recurrent", live.conv, one).cause is None


# Memory that nobody wrote.


def test_memory_that_nobody_wrote_is_named_with_its_place(stage: Stage) -> None:
    live = stage.live()
    found = stage.diagnosis("recurrent", live.conv, np.full_like(live.recurrent, 136.0))
    assert found.cause == "unwritten memory"
    assert "136, the first content of slot 4" in found.words
    odd = stage.diagnosis("recurrent", live.conv, np.full_like(live.recurrent, 1e30))
    assert odd.cause == "unwritten memory"
    assert "slot" not in odd.words
    assert stage.diagnosis("recurrent", live.conv, np.zeros_like(live.recurrent)).cause != "unwritten memory"


def test_columns_that_nobody_wrote_are_named(stage: Stage) -> None:
    live, fed = stage.live(), stage.row().accepted
    assert fed == 2
    for column, cause in ((0, "started from unwritten memory"), (1, "unwritten memory")):
        conv = live.conv.copy()
        conv[0, column] = 136.0
        assert stage.diagnosis("conv", conv, live.recurrent).cause == cause
    late = np.concatenate([np.full_like(live.conv[:, :1], 136.0), live.conv[:, :2]], axis=1)
    found = stage.diagnosis("conv", late, live.recurrent)
    assert found.cause == "lags"
    assert "began in memory that nobody wrote" in found.words


def test_another_requests_tokens_before_its_own_are_a_wrong_start(stage: Stage) -> None:
    live, other = stage.live(), stage.live("r1")
    conv = live.conv.copy()
    conv[0, 0] = other.conv[0, 1]
    assert stage.diagnosis("conv", conv, live.recurrent).cause == "started from another request"


# Columns.


def test_columns_are_read_one_by_one(stage: Stage) -> None:
    live, other, count = stage.live(), stage.live("r1"), stage.row().num_computed
    layer = stage.diagnosis  # every case spoils the first layer

    def with_columns(*columns: Any) -> Any:
        conv = live.conv.copy()
        conv[0] = np.stack(columns)
        return layer("conv", conv, live.recurrent)

    a, b, c = live.conv[0]
    mixed = with_columns(a, other.conv[0][1], c)
    assert mixed.cause == "rows mixed"
    assert f"r0[{count - 3}] r1[{stage.row('r1').num_computed - 2}] r0[{count - 1}]" in mixed.words
    assert with_columns(b, a, c).cause == "tokens out of order"
    assert with_columns(a, b, np.zeros_like(c)).cause == "zero"
    embedding = stage.oracle.weights.embedding
    strange = next(t for t in range(len(embedding)) if t not in stage.reference.histories["r0"])
    scene = Scene(trace=stage.trace, reference=stage.reference, step=STEP, row=stage.row())
    assert scene.first is not None
    foreign = with_columns(a, scene.first.columns([strange])[0], c)
    assert foreign.cause == "wrong token"
    assert f"token {strange}" in foreign.words


# Counts.


def started_as_if(stage: Stage, request: str, used: int) -> State:
    """The state after a row that took its step before to have committed ``used`` tokens."""
    before, row = stage.row(request, STEP - 1), stage.row(request)
    start, a = start_of(row), before.accepted
    fed = stage.reference.histories[request][start : row.num_computed]
    if used <= a:
        return stage.reference.fork(request, start - a + used, fed).states[row.num_computed - a + used]
    refused = list(before.kept[a - 1 :])[: used - a]
    return stage.reference.fork(request, start, [*refused, *fed]).states[row.num_computed + used - a]


def test_a_count_of_another_row_is_told_by_all_rows_of_the_step(stage: Stage) -> None:
    a = {name: stage.row(name, STEP - 1).accepted for name in PLANS}
    assert a == {"r0": 1, "r1": 2, "r2": 3}
    wrong = {name: started_as_if(stage, name, a[other]) for name, other in (("r0", "r1"), ("r1", "r2"))}
    found = stage.diagnosis("recurrent", wrong["r0"].conv, wrong["r0"].recurrent, others={"r1": wrong["r1"]})
    assert found.cause == "accepted count of another row"
    alone = stage.diagnosis("recurrent", wrong["r0"].conv, wrong["r0"].recurrent)
    assert alone.cause == "started after rejected drafts"


def test_a_count_of_the_step_before_last_is_told_by_all_rows_of_the_step(stage: Stage) -> None:
    older = {name: stage.row(name, STEP - 2).accepted for name in PLANS}
    assert older == {"r0": 3, "r1": 4, "r2": 2}
    wrong = {name: started_as_if(stage, name, older[name]) for name in PLANS}
    mine = wrong.pop("r0")
    found = stage.diagnosis("recurrent", mine.conv, mine.recurrent, others=wrong)
    assert found.cause == "accepted count one step old"


def test_a_count_that_the_next_row_shows_to_be_wrong_is_named(stage: Stage) -> None:
    old = stage.state("r0", stage.row(step=STEP - 1).num_computed - 1)
    state = LayerState(
        conv=old.conv, recurrent=old.recurrent, tokens_included=stage.row(step=STEP - 1).num_computed
    )
    for said, cause in (
        (3, "accepted count one step old"),
        (0, "accepted count out of range"),
        (2, "accepted count of another row"),
        (4, "all drafts counted as accepted"),
        (1, "lags"),
    ):
        trace = stage.with_rows({"r0": {"previous_accepted": said}})
        steps = list(trace.steps)
        steps[STEP - 1] = replace(
            steps[STEP - 1],
            rows=tuple(replace(r, state=state) if r.request == "r0" else r for r in steps[STEP - 1].rows),
        )
        at = Coordinate(step=STEP - 1, request="r0", layer=0, tensor="recurrent")
        found = diagnose(replace(trace, steps=tuple(steps)), stage.reference, at, THRESHOLD)
        assert found is not None
        assert found.cause == cause


def test_a_count_that_the_engine_itself_reports_wrong_names_its_source(stage: Stage) -> None:
    wrong = started_as_if(stage, "r0", 3)
    state = LayerState(conv=wrong.conv, recurrent=wrong.recurrent, tokens_included=stage.row().num_computed)
    trace = stage.with_rows({"r0": {"state": state, "previous_accepted": 3}})
    at = Coordinate(step=STEP, request="r0", layer=0, tensor="recurrent")
    found = diagnose(trace, stage.reference, at, THRESHOLD)
    assert found is not None
    assert found.cause == "accepted count one step old"


# Logits.


def named(stage: Stage, logits: Any) -> Divergence:
    first = Divergence(
        kind="logits", at=Coordinate(step=STEP, request="r0", tensor="logits"), message="", threshold=1e-5
    )
    return name_it(first, stage.with_rows({"r0": {"logits": logits}}), stage.reference, GAUGES)


def with_place(stage: Stage, place: int, logits: Any) -> Any:
    seen = stage.row().logits
    assert seen is not None
    changed = seen.copy()
    changed[place] = logits
    return changed


def test_logits_that_belong_elsewhere_are_named(stage: Stage) -> None:
    mine, theirs = stage.reference.replay("r0").logits, stage.reference.replay("r1").logits
    start, other = start_of(stage.row()), start_of(stage.row("r1"))
    found = named(stage, with_place(stage, 1, mine[start]))
    assert found.cause == "logits of another position"
    assert f"those after {start + 1} tokens" in (found.diagnosis or "")
    assert named(stage, with_place(stage, 0, theirs[other + 1])).cause == "logits of another request"
    assert named(stage, with_place(stage, 0, np.nan)).cause == "not finite"


def test_attention_that_lacks_a_part_of_its_cache_is_named(stage: Stage) -> None:
    row, history = stage.row(), stage.reference.histories["r0"]
    start, old = start_of(row), stage.row(step=STEP - 2)
    fold = stage.oracle.fold()
    fold.extend(history[:start])
    blind = fold.with_attention(lambda past: forget(past, first=start_of(old), end=old.num_computed))
    logits = blind.extend(history[start : row.num_computed]).logits
    found = named(stage, with_place(stage, slice(0, len(logits)), logits))
    assert found.cause == "attention sees too little"
    assert f"lacks tokens {start_of(old)} to {old.num_computed - 1}" in (found.diagnosis or "")


def test_other_logits_are_put_down_to_attention(stage: Stage) -> None:
    seen = stage.row().logits
    assert seen is not None
    assert named(stage, seen + np.random.default_rng(0).normal(size=seen.shape)).cause == "attention"
    assert named(stage, seen).cause is None


# Crashes.


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("RuntimeError", "shape '[15, -1, 512]' is invalid for input of size 22528", "shape mismatch"),
        ("RuntimeError", "The size of tensor a (4) must match the size of tensor b (3)", "shape mismatch"),
        ("ValueError", "zip() argument 2 is shorter than argument 1", "shape mismatch"),
        ("IndexError", "index 9 is out of bounds for dimension 0 with size 9", "index out of range"),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", "index out of range"),
        ("AssertionError", "", "assertion"),
        ("AssertionError", "num_decodes: 1, num_spec_decodes: 2", "rows and drafts disagree"),
        ("RuntimeError", "stalled: no token was committed in 65 steps", "stalled"),
        ("EngineError", "KV blocks: r1 asks for 2, 0 are free", "pool exhausted"),
        ("EngineError", "row 2 of 4 has no token to give: best logit -inf", "nothing legal to commit"),
        ("EngineError", "the grammar refuses draft 1 of [3, 4]", "grammar refused a scheduled draft"),
        ("EngineError", "cannot roll the grammar back by 3 of 2 tokens", "matcher rolled back too far"),
        ("RuntimeError", "GrammarMatcher has terminated after accepting the stop token", "matcher asked after its end"),
        ("EngineError", "4 mask rows from 8 do not fit into 10", "mask rows miscounted"),
        ("EngineError", "the script commits 4 tokens of r0, but only 1 drafts are left", "more committed than drafted"),
        ("RuntimeError", "numAcceptedTokens[0]=4 exceeds varlen segment length=2", "accepted count against this row"),
        ("TypeError", "'NoneType' object is not subscriptable", "nothing where a value was expected"),
        ("KeyError", "'r1'", "missing entry"),
        ("IndexError", "pop from an empty deque", "missing entry"),
        ("RuntimeError", "something else", "crash"),
    ],
)  # fmt: skip
def test_a_crash_has_a_class(kind: str, message: str, cause: str) -> None:
    crash = Crash(step=3, kind=kind, message=message, where="batch.py:7 build")
    assert cause_of_crash(crash)[0] == cause


def test_the_first_divergence_gets_a_name_once(stage: Stage) -> None:
    crash = Crash(step=2, kind="IndexError", message="index 4 is out of bounds", where="batch.py:7 build")
    first = Divergence(kind="crash", at=Coordinate(step=2), message="")
    found = name_it(first, replace(stage.trace, crash=crash), stage.reference, GAUGES)
    assert found.cause == "index out of range"
    assert "batch.py:7" in (found.diagnosis or "")
    assert name_it(replace(first, cause="known"), stage.trace, stage.reference, GAUGES).cause == "known"
    ledger = Divergence(kind="ledger", at=Coordinate(step=2), message="")
    assert name_it(ledger, stage.trace, stage.reference, GAUGES) == ledger


# What looks alike.


def test_every_class_of_a_state_has_been_seen_before_somewhere_or_is_a_plain_mix_up(stage: Stage) -> None:
    scene = Scene(trace=stage.trace, reference=stage.reference, step=STEP, row=stage.row())
    mix_ups = {"another layer", "heads rotated", "transposed"}  # of no public report
    classes = {hypothesis.cause for hypothesis in hypotheses(scene)}
    assert classes - mix_ups <= set(LOOKALIKES)


def test_reports_are_found_by_cause_and_else_by_kind() -> None:
    assert any("39273" in line for line in seen_before("lost accepted tokens", "state"))
    assert seen_before(None, "crash") == LOOKALIKES["crash"]
    assert seen_before("transposed", "state") == ()
    lines = {line for reports in LOOKALIKES.values() for line in reports}
    assert all(len(line) <= 120 and ("#" in line or "PR " in line) for line in lines)
