"""Scheduler, pool and the ends of requests: limits that hold in every step, memory that nobody else touches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness import Grammar, Judge, Lab, Plan, Request, Scenario, Trace, Turn, Verdict
from harness.check.distance import conv_error, recurrent_error
from harness.engine.attention_layer import AttentionLayer
from harness.engine.config import NULL_SLOT, EngineConfig
from harness.engine.engine import Engine, StepResult
from harness.engine.guided import Grammars
from harness.engine.kernels import NaiveKernels
from harness.engine.loader import Loader
from harness.engine.policy import POLICY
from harness.engine.request import EngineRequest, ForcedTurn
from harness.engine.rows import RowTable
from harness.engine.scheduler import Scheduler
from harness.errors import EngineError
from harness.targets.embedded import EmbeddedTarget
from harness.trace import LayerState

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
NOISE = 1e-5
"""Relative RMS by which two float32 runs in different batches may differ."""


@pytest.fixture(scope="module")
def loader(peaked: Path) -> Loader:
    return Loader(peaked)


@pytest.fixture(scope="module")
def target(loader: Loader) -> EmbeddedTarget:
    return EmbeddedTarget(loader=loader, policy=POLICY)


@pytest.fixture(scope="module")
def judge(peaked: Path) -> Judge:
    return Judge(peaked)


@pytest.fixture
def lab(peaked: Path) -> Lab:
    return Lab(peaked, FIXTURES)


def test_requests_that_are_alike_have_rows_of_their_own() -> None:
    rows, alike = RowTable(), [EngineRequest(id="r", prompt=(1,), max_tokens=1) for _ in range(2)]
    for request in alike:
        rows.add(request)
    assert [rows.place(request) for request in alike] == [0, 1]


def engine(loader: Loader, fill: float = 0.0, **settings: Any) -> Engine:
    """An engine whose caches, the null slot and block included, start from ``fill``."""
    config = EngineConfig(**{"k": 3, "max_model_len": 96, **settings})
    parts = (config, POLICY, NaiveKernels())
    model, head = loader.model(*parts), loader.head(*parts)
    assert head is not None
    for mixer in (*(block.mixer for block in model.blocks), head.block.mixer):
        kept = (
            (mixer.cache.keys, mixer.cache.values)
            if isinstance(mixer, AttentionLayer)
            else (
                mixer.cache.conv,
                mixer.cache.recurrent,
            )
        )
        for tensor in kept:
            tensor.fill_(fill)
    return Engine(model, head, Grammars(loader.vocabulary), config, POLICY)


def steps(engine: Engine, requests: Iterable[EngineRequest], every: int = 0) -> Iterator[StepResult]:
    """Run to the end; one more request arrives every ``every`` steps."""
    waiting, clock = deque(requests), 0
    while waiting or not engine.scheduler.is_idle:
        while waiting and (not every or clock % every == 0):
            engine.add(waiting.popleft())
            if every:
                break
        if step := engine.step():
            yield step
        clock += 1
        assert clock < 1000, "requests wait for ever"


def free(lab: Lab, lengths: Iterable[int], **settings: Any) -> list[EngineRequest]:
    """A free request for every prompt length."""
    return [
        EngineRequest(id=f"r{i}", prompt=lab.prompt(length), **{"max_tokens": 12, **settings})
        for i, length in enumerate(lengths)
    ]


class TestLimits:
    @pytest.mark.parametrize("budget", [1, 2, 5, 16])
    def test_no_step_has_more_tokens_than_its_budget(self, loader: Loader, lab: Lab, budget: int) -> None:
        requests = free(lab, [1, 9, 30, 4])
        totals = [
            sum(len(row.input_ids) for row in step.rows)
            for step in steps(engine(loader, token_budget=budget), requests, every=2)
        ]
        assert max(totals) == budget, "the limit was never reached"
        assert all(request.num_generated == 12 for request in requests)

    @pytest.mark.parametrize("length", [20, 21, 22, 23, 24])
    def test_no_request_grows_beyond_the_model_length(self, loader: Loader, lab: Lab, length: int) -> None:
        requests = free(lab, [1, 12, 19], max_tokens=64)
        for step in steps(engine(loader, max_model_len=length), requests):
            for row in step.rows:
                start = row.request.num_computed - (
                    len(row.input_ids) if row.in_prompt else len(row.committed)
                )
                assert start + len(row.input_ids) < length, "a draft whose successor has no room"
                assert len(row.request.tokens) <= length
        assert {len(request.tokens) for request in requests} == {length}
        assert {request.finish_reason for request in requests} == {"length"}

    def test_no_more_requests_run_than_there_is_room_for(self, loader: Loader, lab: Lab) -> None:
        running = engine(loader, max_num_seqs=3)
        most = max(len(step.rows) for step in steps(running, free(lab, [4] * 8)))
        assert most == 3

    def test_rows_start_where_the_last_one_ended(self, loader: Loader, lab: Lab) -> None:
        for step in steps(engine(loader, token_budget=7), free(lab, [20, 5, 33]), every=1):
            for row in step.rows:
                assert row.request.num_computed == len(row.request.tokens) - 1 or row.request.in_prompt

    @pytest.mark.parametrize(
        ("legal", "budget", "kept", "refused"),
        [
            (3, 512, 3, False),
            (1, 512, 1, True),
            (1, 3, 1, True),
            (1, 2, 1, False),
            (3, 2, 1, False),
            (0, 1, 0, False),
        ],
    )
    def test_a_draft_counts_as_refused_only_if_there_was_room_for_it(
        self, legal: int, budget: int, kept: int, refused: bool
    ) -> None:
        """Where budget or length end the row, what the grammar said of the next draft must not matter."""
        scheduler = Scheduler(EngineConfig(k=3, token_budget=budget))
        request = EngineRequest(id="r0", prompt=(5,), max_tokens=9)
        scheduler.add(request)
        scheduler.schedule()
        request.num_computed, request.tokens = 1, [5, 6]
        request.proposed, request.drafts = [7, 8, 9], [7, 8, 9][:legal]
        (row,) = scheduler.schedule()
        assert (len(row.drafts), row.refused_next) == (kept, refused)


class TestMemory:
    def test_everything_is_given_back(self, loader: Loader, lab: Lab) -> None:
        running = engine(loader, max_num_seqs=3, token_budget=20)
        for step in steps(running, free(lab, [1, 40, 7, 3, 22, 9]), every=2):
            live = running.scheduler.running
            slots = [slot for request in live for slot in request.slots]
            blocks = [block for request in live for block in request.blocks]
            for places in (slots, blocks):
                assert len(set(places)) == len(places), "two requests share a place"
                assert NULL_SLOT not in places
            assert step.rows
        config, scheduler = running.config, running.scheduler
        assert scheduler.slots.num_free == config.num_slots - 1
        assert scheduler.blocks.num_free == config.num_blocks - 1
        assert not scheduler.running

    def test_a_place_is_never_given_twice_and_never_from_nothing(self, loader: Loader) -> None:
        pool = engine(loader, max_num_seqs=1).scheduler.slots
        mine = pool.allocate(4, "r0")
        assert [pool.owners(place) for place in mine] == [("r0",)] * 4
        with pytest.raises(EngineError, match="r1 asks for 1, 0 are free"):
            pool.allocate(1, "r1")
        pool.free(mine, "r0")
        assert pool.owners(mine[0]) == ()

    @pytest.mark.parametrize("fill", [float("nan"), 1e30])
    @pytest.mark.parametrize("capture_sizes", [(), (8, 16, 32)], ids=["as it is", "padded"])
    def test_what_memory_held_before_changes_nothing(
        self, loader: Loader, fill: float, capture_sizes: tuple[int, ...]
    ) -> None:
        def answers(fill: float) -> list[list[int]]:
            lab = Lab(loader.folder, FIXTURES)
            requests = free(lab, [1, 17, 5, 2, 30, 1])
            running = engine(loader, fill, max_num_seqs=2, token_budget=24, capture_sizes=capture_sizes)
            for step in steps(running, requests):
                for row in step.rows:
                    live = running.observed(row.request)
                    assert torch.isfinite(live.conv).all()
                    assert torch.isfinite(live.recurrent).all()
                    assert live.recurrent.abs().max() < 1e6
            return [request.tokens for request in requests]

        assert answers(fill) == answers(0.0)

    def test_a_step_writes_nothing_but_the_slots_of_its_rows(self, loader: Loader, lab: Lab) -> None:
        running = engine(loader, 1e30, max_num_seqs=4, token_budget=12, capture_sizes=(8, 12))
        layers = running.model.linear_layers.values()
        watched = [tensor for layer in layers for tensor in (layer.cache.conv, layer.cache.recurrent)]
        before = [tensor.clone() for tensor in watched]
        padded = 0
        for step in steps(running, free(lab, [1, 17, 5, 30, 2]), every=2):
            padded += step.batch.padded_rows
            written = {slot for row in step.rows for slot in row.request.slots}
            others = [slot for slot in range(running.config.num_slots) if slot not in written]
            for tensor, old in zip(watched, before, strict=True):
                assert torch.equal(tensor[others], old[others])
                old.copy_(tensor)
        assert padded > 0
        assert all((tensor[NULL_SLOT] == 1e30).all() for tensor in watched)


def greedy(lab: Lab) -> tuple[Request, ...]:
    """Guided and free, from a prompt of one token to one of 40, arriving in pairs."""
    mixed = lab.mixed_requests(6, max_tokens=20)
    more = [
        Request(id=f"p{length}", prompt=lab.prompt(length), max_tokens=14, ignore_eos=True)
        for length in (1, 2, 40)
    ]
    return tuple(replace(request, arrival=i // 2) for i, request in enumerate([*mixed, *more]))


def states(trace: Trace) -> dict[tuple[str, int], LayerState]:
    found = {}
    for row in (row for step in trace.steps for row in step.rows):
        assert row.state is not None
        found[row.request, row.state.tokens_included] = row.state
    return found


def answers(trace: Trace) -> dict[str, tuple[int, ...]]:
    assert trace.crash is None, trace.crash
    return {name: completion.tokens for name, completion in trace.completions.items()}


OTHERS: dict[str, dict[str, Any]] = {
    "padded": {"capture_sizes": (8, 24, 64)},
    "a budget of 6": {"token_budget": 6},
    "a budget of 17": {"token_budget": 17},
    "two at a time": {"max_num_seqs": 2},
    "k=1": {"k": 1},
    "k=8": {"k": 8},
    "prompt lookup": {"drafter": "ngram"},
    "no speculation": {"k": 0},
}


@pytest.fixture(scope="module")
def scenario(peaked: Path) -> Scenario:
    return Scenario(name="company", requests=greedy(Lab(peaked, FIXTURES)), k=3, max_num_seqs=16)


@pytest.fixture(scope="module")
def together(target: EmbeddedTarget, scenario: Scenario) -> Trace:
    return target.run(scenario)


class TestCompanyChangesNothing:
    @pytest.mark.parametrize("name", OTHERS)
    def test_other_batches(
        self, target: EmbeddedTarget, scenario: Scenario, together: Trace, name: str
    ) -> None:
        self.compare(target.run(replace(scenario, **OTHERS[name])), together)

    def test_other_orders(self, target: EmbeddedTarget, scenario: Scenario, together: Trace) -> None:
        self.compare(target.run(scenario, reverse_rows=True), together)
        permuted = tuple(replace(r, arrival=9 - r.arrival) for r in reversed(scenario.requests))
        self.compare(target.run(replace(scenario, requests=permuted)), together)

    def test_alone(self, target: EmbeddedTarget, scenario: Scenario, together: Trace) -> None:
        for request in scenario.requests:
            alone = target.run(replace(scenario, requests=(request,)))
            assert answers(alone)[request.id] == answers(together)[request.id]
            self.compare_states(alone, together)

    def compare(self, trace: Trace, together: Trace) -> None:
        assert answers(trace) == answers(together)
        self.compare_states(trace, together)

    def compare_states(self, trace: Trace, together: Trace) -> None:
        seen, expected = states(trace), states(together)
        common = seen.keys() & expected.keys()
        assert len(common) >= 4
        for place in common:
            assert conv_error(seen[place].conv, expected[place].conv).max() <= NOISE, place
            assert recurrent_error(seen[place].recurrent, expected[place].recurrent).max() <= NOISE, place


def stop_token_run(
    loader: Loader, prompt: tuple[int, ...], stop: frozenset[int], k: int = 8
) -> tuple[EngineRequest, list[list[int]], list[list[int]]]:
    """A greedy request with these stop tokens; kept drafts and committed tokens of every step."""
    request = EngineRequest(id="r0", prompt=prompt, max_tokens=24, stop_token_ids=stop)
    rows = [row for step in steps(engine(loader, k=k), [request]) for row in step.rows]
    return request, [row.kept for row in rows], [row.committed for row in rows]


class TestEnds:
    @pytest.fixture
    def prompt(self, lab: Lab) -> tuple[int, ...]:
        return lab.encode(lab.prompts("text")[0])

    def test_a_stop_token_in_the_middle_of_an_accepted_run_cuts_it(
        self, loader: Loader, prompt: tuple[int, ...]
    ) -> None:
        plain, _, _ = stop_token_run(loader, prompt, frozenset())
        answer = plain.tokens[len(prompt) :]
        cut_inside = 0
        for i, stop in enumerate(answer):
            if stop in answer[:i]:
                continue
            request, kept, committed = stop_token_run(loader, prompt, frozenset({stop}))
            assert request.tokens[len(prompt) :] == answer[: i + 1]
            assert request.finish_reason == "stop"
            accepted = next((a for a, token in enumerate(kept[-1]) if token == stop), None)
            follows = kept[-1][: len(committed[-1])] == committed[-1] and accepted is not None
            cut_inside += follows and accepted + 1 < len(kept[-1])
        assert cut_inside >= 2, "no stop token was an accepted draft with drafts behind it"

    def test_a_stop_token_that_is_drafted_and_rejected_stops_nothing(
        self, loader: Loader, prompt: tuple[int, ...]
    ) -> None:
        plain, kept, committed = stop_token_run(loader, prompt, frozenset())
        answer = plain.tokens[len(prompt) :]
        rejected = {
            token
            for drafts, tokens in zip(kept, committed, strict=True)
            for token in drafts[max(len(tokens) - 1, 0) :]
        } - set(answer)
        assert rejected, "every draft was right"
        request, again, _ = stop_token_run(loader, prompt, frozenset(rejected))
        assert request.tokens == plain.tokens
        assert request.finish_reason == "length"
        assert again == kept

    @pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
    def test_no_answer_is_longer_than_asked_for(
        self, loader: Loader, prompt: tuple[int, ...], max_tokens: int
    ) -> None:
        request = EngineRequest(id="r0", prompt=prompt, max_tokens=max_tokens)
        drafted = [row.before.proposed for step in steps(engine(loader), [request]) for row in step.rows]
        assert request.num_generated == max_tokens
        assert len(drafted) == 1 or max_tokens > 1
        plain, _, _ = stop_token_run(loader, prompt, frozenset())
        assert request.tokens == plain.tokens[: len(request.tokens)]

    def test_a_guided_answer_ends_with_its_grammar_even_if_end_tokens_are_ignored(
        self, target: EmbeddedTarget, lab: Lab
    ) -> None:
        for k in (0, 1, 3, 8):
            request = Request(
                id="r0",
                prompt=lab.encode("Numbers: "),
                max_tokens=30,
                grammar=Grammar(kind="regex", text="[0-9]{3,6}"),
                ignore_eos=True,
            )
            trace = target.run(Scenario(name="ends", requests=(request,), k=k))
            tokens = answers(trace)["r0"]
            assert tokens.index(lab.end_token) == len(tokens) - 1
            assert trace.completions["r0"].finish_reason == "stop"

    @pytest.mark.parametrize("ignore_eos", [False, True])
    def test_an_end_token_among_drafts_is_accepted_or_rejected_as_the_script_says(
        self, target: EmbeddedTarget, judge: Judge, lab: Lab, ignore_eos: bool
    ) -> None:
        """The grammar may end after two digits. The first end token is rejected: nothing must stay ended.

        The last one is accepted, and whether or not end tokens count, nothing comes behind the grammar's end.
        """
        one, two, three, four = (lab.encode(digit)[0] for digit in "1234")
        end = lab.end_token
        turns = (
            Turn(token=one),
            Turn(drafts=(two, end), accepted=2, token=three),  # the end is refused, a digit comes
            Turn(drafts=(end,), accepted=1, token=four),  # refused again, first in its row
            Turn(drafts=(one, two, end), accepted=2, token=three),  # one digit taken, the end never reached
            Turn(drafts=(two, end, end), accepted=3, token=four),  # ends inside the window
        )
        guided = Request(
            id="r0", prompt=lab.prompt(6), max_tokens=30, grammar=Grammar(kind="regex", text="[0-9]{2,20}")
        )
        scenario = Scenario(
            name="end tokens",
            requests=(replace(guided, ignore_eos=ignore_eos), replace(guided, id="r1", grammar=None)),
            k=3,
            script={"r0": turns, "r1": turns},
            must_observe={"rollback": 4, "grammar trim": 1, "different accepted counts": 0},
        )
        trace = target.run(scenario)
        judgement = judge.judge(scenario, trace, judge.calibrate(target, scenario, trace))
        assert judgement.verdict is Verdict.PASS, judgement.evidence
        for completion in trace.completions.values():
            assert completion.tokens == (one, two, three, four, one, three, two, end)
            assert completion.finish_reason == "stop"
        rows = [row for step in trace.steps for row in step.rows if row.request == "r0"]
        assert rows[-1].kept == (two, end)  # what is drafted behind the end is cut
        assert rows[-1].matcher_tokens == 8

    def test_of_a_turn_that_a_row_cannot_hold_as_much_as_fits_is_committed(
        self, loader: Loader, lab: Lab
    ) -> None:
        turns = deque([ForcedTurn(drafts=(), committed=(5,)), ForcedTurn(drafts=(6,), committed=(6, 7, 8))])
        request = EngineRequest(id="r0", prompt=lab.prompt(4), max_tokens=9, turns=turns)
        list(steps(engine(loader), [request]))
        assert request.tokens[4:] == [5, 6, 7]


@pytest.mark.parametrize("k", range(1, 9))
def test_every_k_passes_every_check(target: EmbeddedTarget, judge: Judge, lab: Lab, k: int) -> None:
    """Fourteen steps of random accepted counts, guided and free, beside a late prompt in pieces."""
    plans = {f"r{i}": Plan(guided=i % 2 == 0, turns=lab.chain(14, k=k)) for i in range(3)}
    scenario = lab.forced(
        f"k={k}",
        k=k,
        token_budget=max(12, 3 * (k + 1)),
        plans={**plans, "late": Plan(prompt=29, arrival=3, turns=lab.chain(5, k=k))},
        must_observe={"prompt in pieces": 1, "rollback": 5, "prompt beside verify rows": 2},
    )
    trace = target.run(scenario)
    judgement = judge.judge(scenario, trace, judge.calibrate(target, scenario, trace))
    assert judgement.verdict is Verdict.PASS, judgement.evidence
    assert max(len(row.kept) for step in trace.steps for row in step.rows) == k
    assert np.isfinite(trace.steps[-1].rows[-1].state.recurrent).all()
    judge.forget()
