"""What the engine may do behind a request's back changes none of its tokens and leaks no memory.

Preemption, prefix hits, steps planned ahead, other k, dummy steps, aborts, rows that move, padding. Each property is
also asked of an engine with a fault in just that place, which must not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import Event, Lab, Plan, Request, Scenario, Trace
from harness.engine.config import NULL_SLOT, EngineConfig
from harness.engine.engine import Engine
from harness.engine.guided import Grammars
from harness.engine.kernels import NaiveKernels
from harness.engine.loader import Loader
from harness.engine.memory import Memory
from harness.engine.pool import Pool
from harness.engine.prefix import PrefixCache
from harness.engine.request import EngineRequest
from harness.engine.rows import RowTable
from harness.engine.variants import variant
from harness.targets.embedded import EmbeddedTarget, under_each_variant
from harness.targets.embedded_run import Run

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
REGIMES = ("trim", "placeholder")
BLOCK = 8
Under = Callable[[str], EmbeddedTarget]
Answers = dict[str, tuple[int, ...]]


@pytest.fixture(scope="module")
def under(peaked: Path) -> Under:
    return under_each_variant(peaked)


@pytest.fixture(scope="module")
def loader(peaked: Path) -> Loader:
    return Loader(peaked)


@pytest.fixture
def lab(peaked: Path) -> Lab:
    return Lab(peaked, FIXTURES)


def run(target: EmbeddedTarget, scenario: Scenario) -> tuple[Trace, Engine]:
    """A scenario to its end, and the engine that is left."""
    one = Run(target, scenario, reverse_rows=False)
    return one.trace(), one._engine


def answers(trace: Trace) -> Answers | None:
    """What the users got; ``None`` if the engine died."""
    return None if trace.crash else {name: done.tokens for name, done in trace.completions.items()}


def all_is_back(engine: Engine) -> bool:
    """Whether nobody owns anything but the prefix cache its states, and none of those is held back."""
    scheduler, config = engine.scheduler, engine.config
    filed = len(scheduler.prefix._slot_of)
    return (
        scheduler.slots.num_free == config.num_slots - 1 - filed
        and scheduler.blocks.num_free == config.num_blocks - 1
        and not scheduler.prefix._pinned
        and not scheduler.rows.requests
    )


def engine(loader: Loader, name: str = "fixed", **settings: Any) -> Engine:
    config = EngineConfig(**{"k": 3, "max_model_len": 96, "max_num_seqs": 4, **settings})
    policy = variant(name)
    parts = (config, policy, NaiveKernels())
    return Engine(loader.model(*parts), loader.head(*parts), Grammars(loader.vocabulary), config, policy)


def free(lab: Lab, *lengths: int) -> list[EngineRequest]:
    """A request without grammar for every prompt length."""
    return [
        EngineRequest(id=f"r{i}", prompt=lab.prompt(length), max_tokens=12)
        for i, length in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def mixed(peaked: Path) -> Scenario:
    """Guided and free requests, greedy, in the plainest setting."""
    requests = Lab(peaked, FIXTURES).mixed_requests(4, max_tokens=20, every=1)
    return Scenario(name="mixed", requests=tuple(requests), k=3, max_num_seqs=8, block_size=BLOCK)


@pytest.fixture(scope="module")
def undisturbed(under: Under, mixed: Scenario) -> Answers:
    found = answers(under("fixed").run(mixed))
    assert found is not None
    return found


def preemptions(*steps: int) -> tuple[Event, ...]:
    """One request after the other loses its memory."""
    return tuple(Event(step=step, what="preempt", request=f"r{i % 4}") for i, step in enumerate(steps))


@pytest.mark.parametrize("regime", REGIMES)
class TestPreemption:
    @pytest.mark.parametrize("caching", [False, True], ids=["", "prefix caching"])
    @pytest.mark.parametrize("drafter", ["mtp", "ngram"])
    def test_a_resumed_answer_is_that_of_an_undisturbed_run(
        self, under: Under, mixed: Scenario, undisturbed: Answers, regime: Any, drafter: Any, caching: bool
    ) -> None:
        events = preemptions(1, 2, 3, 4, 6, 6, 9, 10, 11)
        scenario = replace(mixed, regime=regime, drafter=drafter, prefix_caching=caching, events=events)
        trace, left = run(under("fixed"), scenario)
        assert answers(trace) == undisturbed
        lost = [name for step in trace.steps for name in step.preempted]
        resumed = [row for step in trace.steps for row in step.rows if row.resumed]
        assert len(lost) == len(resumed) == trace.counters["preemptions"] >= 6
        assert all(row.prompt_tokens for row in resumed)
        assert all_is_back(left)

    @pytest.mark.parametrize("caching", [False, True], ids=["", "prefix caching"])
    def test_memory_pressure_preempts_and_changes_no_token(
        self, under: Under, mixed: Scenario, undisturbed: Answers, regime: Any, caching: bool
    ) -> None:
        tight = replace(mixed, regime=regime, kv_blocks=11, prefix_caching=caching)
        trace, left = run(under("fixed"), tight)
        assert answers(trace) == undisturbed
        assert trace.counters["preemptions"] >= 2
        assert all_is_back(left)

    def test_memory_that_is_kept_shows(
        self, under: Under, mixed: Scenario, undisturbed: Answers, regime: Any
    ) -> None:
        scenario = replace(mixed, regime=regime, events=preemptions(4, 6, 8))
        assert answers(under("preempted-goes-on").run(scenario)) != undisturbed


def test_results_that_come_late_do_not_count(under: Under, mixed: Scenario, undisturbed: Answers) -> None:
    """In regime placeholder a row is in flight when its request is preempted."""
    scenario = replace(mixed, regime="placeholder", events=preemptions(4, 6, 8))
    trace = under("fixed").run(scenario)
    thrown_away = [row for step in trace.steps for row in step.rows if row.discarded]
    assert {row.committed for row in thrown_away} == {()}
    assert any(row.finish_reason is None for row in thrown_away)
    assert answers(under("late-frame-applied").run(scenario)) != undisturbed


def test_a_preempted_request_owns_nothing_and_is_first_in_line(loader: Loader, lab: Lab) -> None:
    def preempted(name: str) -> tuple[EngineRequest, list[int]]:
        running, requests = engine(loader, name, max_num_seqs=2), free(lab, 9, 20, 5)
        for request in requests:
            running.add(request)
        running.step()
        running.step()
        scheduler, request = running.scheduler, requests[1]
        owned = [len(request.slots), len(request.blocks)]
        before = [scheduler.slots.num_free, scheduler.blocks.num_free]
        scheduler.preempt(request)
        assert list(scheduler.waiting) == [request, requests[2]]
        after = [scheduler.slots.num_free, scheduler.blocks.num_free]
        return request, [now - then - mine for now, then, mine in zip(after, before, owned, strict=True)]

    request, missing = preempted("fixed")
    assert missing == [0, 0]
    assert (request.slots, request.blocks, request.drafts, request.proposed) == ([], [], [], [])
    assert (request.num_computed, request.num_planned, request.num_accepted) == (0, 0, 1)
    assert request.prompt_end == len(request.tokens) > len(request.prompt)
    assert preempted("preempted-goes-on")[1] != [0, 0]
    assert preempted("drafts-survive-preemption")[0].drafts != []


@pytest.fixture(scope="module")
def family(peaked: Path, under: Under) -> Scenario:
    """Requests that begin alike, each arriving when the ones before it have left their prefix behind."""
    lab = Lab(peaked, FIXTURES)
    text = lab.prompt(37)
    first = Request(id="first", prompt=text, max_tokens=20, ignore_eos=True)
    answer = answers(under("fixed").run(Scenario(name="first", requests=(first,), k=3)))
    assert answer is not None
    longer = (*text, *answer["first"][:18])
    others = {
        "same": text,
        "on": (*text, *lab.prompt(9)),
        "answer": longer,
        "fork": (*text[:33], *lab.prompt(12)),
    }
    late = (
        Request(id=name, prompt=prompt, max_tokens=16, arrival=12 + 4 * i, ignore_eos=True)
        for i, (name, prompt) in enumerate(others.items())
    )
    return Scenario(name="family", requests=(first, *late), k=3, max_num_seqs=8, block_size=BLOCK)


@pytest.mark.parametrize("drafter", ["mtp", "ngram"])
class TestPrefixHits:
    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("budget", [512, 11])
    def test_hits_change_no_token(
        self, under: Under, family: Scenario, drafter: Any, regime: Any, budget: int
    ) -> None:
        plain = replace(family, drafter=drafter, regime=regime, token_budget=budget)
        trace, left = run(under("fixed"), replace(plain, prefix_caching=True))
        assert answers(trace) == answers(under("fixed").run(plain))
        cached = self.cached(trace)
        assert cached["first"] == 0
        assert min(cached[name] for name in ("same", "on", "answer", "fork")) >= 2 * BLOCK
        assert trace.counters["prefix_hits"] == sum(cached.values())
        assert all(cached[r.id] < len(r.prompt) for r in family.requests)
        assert all_is_back(left)

    def test_the_last_block_is_dropped_where_the_head_drafts(
        self, under: Under, family: Scenario, drafter: Any
    ) -> None:
        cached = self.cached(under("fixed").run(replace(family, drafter=drafter, prefix_caching=True)))
        assert cached["same"] == {"mtp": 3, "ngram": 4}[drafter] * BLOCK

    def test_a_state_of_another_age_shows(self, under: Under, family: Scenario, drafter: Any) -> None:
        wrong = {"mtp": "state-keeps-the-dropped-block", "ngram": "prompt-mark-left-on"}[drafter]
        plain = replace(family, drafter=drafter)
        trace = under(wrong).run(replace(plain, prefix_caching=True))
        assert answers(trace) != answers(under("fixed").run(plain))

    def cached(self, trace: Trace) -> dict[str, int]:
        """Tokens that each request took from the cache when it was admitted."""
        rows = [row for step in trace.steps for row in step.rows]
        return {name: sum(row.cached for row in rows if row.request == name) for name in trace.completions}


TEXT = tuple(range(100, 140))


def cache(most_snapshots: int = 8, drops_last: bool = False) -> PrefixCache:
    """A cache that knows five blocks of ``TEXT``, and no state."""
    blocks = Pool(20, "KV blocks")
    kept = PrefixCache(
        blocks,
        Pool(20, "state slots"),
        block_size=BLOCK,
        most_snapshots=most_snapshots,
        drops_last=drops_last,
    )
    mine = blocks.allocate(5, "r0")
    kept.keep_blocks((*TEXT, 7), mine, 0, len(TEXT))
    blocks.free(mine, "r0")
    return kept


class TestPrefixCache:
    @pytest.mark.parametrize("drops_last", [False, True])
    @pytest.mark.parametrize(("length", "blocks"), [(8, 0), (9, 1), (16, 1), (17, 2), (40, 4), (41, 5)])
    def test_a_hit_leaves_a_token_to_be_fed(self, length: int, blocks: int, drops_last: bool) -> None:
        kept = cache(drops_last=drops_last)
        for boundary in range(BLOCK, len(TEXT) + 1, BLOCK):
            kept.snapshot_slot(TEXT[:boundary])
        hit = kept.hit((*TEXT, 7)[:length], "r1")
        assert len(hit.blocks) == max(blocks - drops_last, 0)
        assert (hit.snapshot is None) == (not hit.blocks)

    def test_a_hit_needs_both_the_blocks_and_a_state(self) -> None:
        kept = cache()
        assert kept.hit((*TEXT, 1), "r1").blocks == []
        kept.snapshot_slot(TEXT[: 2 * BLOCK])
        assert len(kept.hit((*TEXT, 1), "r2").blocks) == 2
        kept.snapshot_slot((*TEXT, *TEXT)[: 6 * BLOCK])  # its last block is not known
        assert len(kept.hit((*TEXT, *TEXT), "r3").blocks) == 2

    def test_a_block_that_was_given_away_is_forgotten(self) -> None:
        kept = cache()
        kept.snapshot_slot(TEXT[:BLOCK])
        kept.snapshot_slot(TEXT[: 2 * BLOCK])
        kept._blocks.allocate(14 + 2, "r1")  # all that were never used, and then the two oldest
        assert kept.hit((*TEXT, 1), "r2").blocks == []

    def test_where_the_head_drafts_a_block_is_known_by_the_token_behind_it(self) -> None:
        """The second block is followed by another token, so the first is the last one found, and dropped."""
        for drops_last, blocks in ((False, 2), (True, 0)):
            kept = cache(drops_last=drops_last)
            for boundary in (BLOCK, 2 * BLOCK):
                kept.snapshot_slot(TEXT[:boundary])
            assert len(kept.hit((*TEXT[: 2 * BLOCK], 1), "r1").blocks) == blocks

    def test_the_state_that_was_used_longest_ago_goes_first(self) -> None:
        kept = cache(most_snapshots=2)
        kept.snapshot_slot(TEXT[:BLOCK])
        kept.snapshot_slot(TEXT[: 2 * BLOCK])
        for snapshot in (kept.hit(TEXT[: BLOCK + 1], "r1").snapshot,):
            assert snapshot is not None
            kept.unpin(snapshot)
        kept.snapshot_slot(TEXT[: 4 * BLOCK])
        assert list(kept._slot_of) == [TEXT[:BLOCK], TEXT[: 4 * BLOCK]]

    def test_a_state_is_kept_until_it_was_taken_over(self) -> None:
        kept = cache(most_snapshots=2)
        kept.snapshot_slot(TEXT[:BLOCK])
        kept.snapshot_slot(TEXT[: 2 * BLOCK])
        oldest = kept.hit(TEXT[: BLOCK + 1], "r1").snapshot
        newest = kept.hit(TEXT[: 2 * BLOCK + 1], "r2").snapshot
        assert oldest is not None
        assert newest is not None
        kept.unpin(newest)
        kept.snapshot_slot(TEXT[: 3 * BLOCK])
        assert list(kept._slot_of) == [TEXT[:BLOCK], TEXT[: 3 * BLOCK]]
        kept.unpin(oldest)
        kept.snapshot_slot(TEXT[: 4 * BLOCK])
        assert list(kept._slot_of) == [TEXT[: 3 * BLOCK], TEXT[: 4 * BLOCK]]

    def test_a_state_that_is_there_is_not_filed_again(self) -> None:
        kept = cache()
        slot = kept.snapshot_slot(TEXT[:BLOCK])
        assert slot is not None
        assert kept.snapshot_slot(TEXT[:BLOCK]) is None
        assert kept.snapshot_slot(TEXT[:BLOCK], again=True) == slot


K_CHANGES = tuple(
    Event(step=step, what="draft length", k=k) for step, k in ((0, 1), (3, 3), (6, 0), (9, 3), (12, 2))
)
DISTURBED = {"": (), "preempted": preemptions(2, 3, 5, 7, 8), "other k": K_CHANGES}
DISTURBED["both"] = DISTURBED["preempted"] + K_CHANGES


class TestPlaceholders:
    @pytest.mark.parametrize("events", DISTURBED)
    @pytest.mark.parametrize("drafter", ["mtp", "ngram"])
    @pytest.mark.parametrize("guided", [False, True])
    def test_steps_planned_ahead_give_the_same_tokens(
        self, under: Under, mixed: Scenario, undisturbed: Answers, events: str, drafter: Any, guided: bool
    ) -> None:
        requests = tuple(r for r in mixed.requests if guided or r.grammar is None)
        there = {"", *(r.id for r in requests)}
        happens = tuple(event for event in DISTURBED[events] if event.request in there)
        scenario = replace(mixed, requests=requests, drafter=drafter, events=happens)
        ahead, behind = (under("fixed").run(replace(scenario, regime=regime)) for regime in REGIMES[::-1])
        expected = {r.id: undisturbed[r.id] for r in requests}
        assert answers(ahead) == answers(behind) == expected
        kept = [row.kept for step in ahead.steps for row in step.rows]
        assert any(-1 in row for row in kept) or not (guided or drafter == "ngram")
        assert not any(-1 in row.kept for step in behind.steps for row in step.rows)
        if "k" in events or events == "both":
            assert {step.k for step in ahead.steps} >= {0, 1, 3}

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("drafter", ["mtp", "ngram"])
    def test_the_end_of_the_model_length_is_reached_with_few_tokens_a_step(
        self, under: Under, mixed: Scenario, undisturbed: Answers, regime: Any, drafter: Any
    ) -> None:
        """Where a step was planned with drafts that were then rejected, their room comes back."""
        short = replace(mixed, regime=regime, drafter=drafter, max_model_len=24, token_budget=6)
        expected = {r.id: undisturbed[r.id][: 24 - len(r.prompt)] for r in mixed.requests}
        assert answers(under("fixed").run(short)) == expected

    @pytest.mark.parametrize(
        ("name", "events"),
        [
            ("placeholder-embedded", ""),
            ("accepted-none", ""),
            ("columns-of-the-first-k", "other k"),
        ],
    )
    def test_a_wrong_placeholder_or_k_shows(
        self, under: Under, mixed: Scenario, undisturbed: Answers, name: str, events: str
    ) -> None:
        scenario = replace(mixed, regime="placeholder", events=DISTURBED[events])
        assert answers(under(name).run(scenario)) != undisturbed


class TestDummySteps:
    @pytest.fixture(params=[(), (8, 16)], ids=["as it is", "padded"])
    def sizes(self, request: pytest.FixtureRequest) -> tuple[int, ...]:
        found: tuple[int, ...] = request.param
        return found

    def written(self, loader: Loader, lab: Lab, name: str, sizes: tuple[int, ...]) -> set[tuple[str, int]]:
        """Places that a dummy step wrote to: before all others, between two, and behind the last."""
        running = engine(loader, name, capture_sizes=sizes)
        memory, found = Memory(running), set()

        def dummy() -> None:
            memory.changed()
            step, changed = running.dummy_step(), memory.changed()
            assert step.rows == []
            for kind in ("conv", "recurrent", "kv"):
                found.update((kind, place) for place in getattr(changed, kind))

        dummy()
        for request in free(lab, 5, 9):
            running.add(request)
        while running.step():
            dummy()
        dummy()
        return found

    def test_they_touch_nothing_but_the_null_block(
        self, loader: Loader, lab: Lab, sizes: tuple[int, ...]
    ) -> None:
        assert self.written(loader, lab, "fixed", sizes) == {("kv", NULL_SLOT)}

    def test_slots_of_an_earlier_step_show(self, loader: Loader, lab: Lab) -> None:
        wrong = self.written(loader, lab, "dummy-step-keeps-slots", (8, 16))
        assert {kind for kind, _ in wrong} == {"conv", "recurrent", "kv"}

    def test_they_change_no_token(self, under: Under, mixed: Scenario, undisturbed: Answers) -> None:
        events = tuple(Event(step=step, what="dummy") for step in (0, 2, 3, 3, 9))
        for regime in REGIMES:
            trace = under("fixed").run(replace(mixed, regime=regime, events=events, capture_sizes=(16,)))
            assert answers(trace) == undisturbed
            dummies = [step for step in trace.steps if not step.rows]
            assert len(dummies) == len(events)
            assert {step.writes.recurrent for step in dummies if step.writes} == {()}


@pytest.mark.parametrize("regime", REGIMES)
class TestEveryEnd:
    def ends(self, mixed: Scenario, undisturbed: Answers, regime: Any) -> Scenario:
        """Stop token, grammar or length, and aborts: of a running request, of one that waits, of a preempted one."""
        stop = undisturbed["r1"][5]
        requests = [replace(r, stop_token_ids=(stop,)) if r.id == "r1" else r for r in mixed.requests]
        more = [
            replace(requests[1], id=name, arrival=2, stop_token_ids=()) for name in ("run", "wait", "back")
        ]
        events = (
            Event(step=3, what="abort", request="wait"),
            Event(step=6, what="abort", request="run"),
            Event(step=5, what="preempt", request="back"),
            Event(step=5, what="abort", request="back"),
        )
        return replace(
            mixed, requests=(*requests, *more[::2], more[1]), regime=regime, events=events, max_num_seqs=5
        )

    @pytest.mark.parametrize("caching", [False, True], ids=["", "prefix caching"])
    def test_gives_all_memory_back(
        self, under: Under, mixed: Scenario, undisturbed: Answers, regime: Any, caching: bool
    ) -> None:
        scenario = replace(self.ends(mixed, undisturbed, regime), prefix_caching=caching)
        trace, left = run(under("fixed"), scenario)
        reasons = {name: done.finish_reason for name, done in trace.completions.items()}
        assert {reasons[name] for name in ("run", "wait", "back")} == {"abort"}
        assert reasons["r1"] == "stop"
        assert "length" in reasons.values()
        assert trace.completions["wait"].tokens == ()
        assert 0 < len(trace.completions["run"].tokens) < 20
        assert all_is_back(left)

    def test_of_a_preempted_request_that_kept_its_memory_shows(
        self, under: Under, mixed: Scenario, undisturbed: Answers, regime: Any
    ) -> None:
        _, left = run(under("preempted-goes-on"), self.ends(mixed, undisturbed, regime))
        assert not all_is_back(left)

    @pytest.mark.parametrize("caching", [False, True], ids=["", "prefix caching"])
    def test_of_a_script_gives_all_memory_back(
        self, under: Under, lab: Lab, regime: Any, caching: bool
    ) -> None:
        plans = {
            f"r{i}": Plan(prompt=20, arrival=i, guided=i == 1, turns=lab.chain(4 + i, k=3)) for i in range(3)
        }
        scenario = lab.forced(
            "script", k=3, plans=plans, regime=regime, prefix_caching=caching, block_size=BLOCK
        )
        trace, left = run(under("fixed"), scenario)
        assert {done.finish_reason for done in trace.completions.values()} == {"script"}
        assert all_is_back(left)


class TestRows:
    def test_the_last_row_moves_into_the_hole(self) -> None:
        requests = [EngineRequest(id=name, prompt=(1,), max_tokens=1) for name in "abcd"]
        table = RowTable()
        for accepted, request in enumerate(requests, start=1):
            request.num_accepted = accepted
            table.add(request)
        a, b, c, d = requests
        table.remove(b)
        assert table.requests == [a, d, c]
        assert [table.place(request) for request in (a, d, c)] == [0, 1, 2]
        table.remove(c)
        assert table.requests == [a, d]
        assert table.moved == ["d"]
        assert [request.num_accepted for request in requests] == [1, 2, 3, 4]

    @pytest.mark.parametrize("regime", REGIMES)
    def test_a_move_changes_no_token(
        self, under: Under, mixed: Scenario, undisturbed: Answers, regime: Any
    ) -> None:
        """The first requests leave while later ones are in the middle of their answers."""
        requests = tuple(replace(r, max_tokens=5 + 5 * i) for i, r in enumerate(mixed.requests))
        scenario = replace(mixed, requests=requests, regime=regime)
        expected = {r.id: undisturbed[r.id][: r.max_tokens] for r in requests}
        trace = under("fixed").run(scenario)
        assert answers(trace) == expected
        assert [name for step in trace.steps for name in step.moved]
        assert answers(under("counts-do-not-move").run(scenario)) != expected


class TestPadding:
    def padded(self, loader: Loader, lab: Lab, name: str) -> Iterator[tuple[torch.Tensor, torch.Tensor, Any]]:
        """Lengths and slots of the padded rows of every captured step, and its batch."""
        running = engine(loader, name, capture_sizes=(16, 32))
        requests: Sequence[EngineRequest] = free(lab, 3, 4, 5)
        requests[0].max_tokens = 4
        for request in requests:
            running.add(request)
        while step := running.step():
            spec, real = step.batch.spec, len(step.rows)
            if spec is not None and step.batch.padded_tokens:
                assert (spec.num_accepted_tokens[real:] == 1).all()
                yield spec.query_start_loc.diff()[real:], spec.state_indices[real:], step.batch

    def test_its_tokens_are_in_rows_of_their_own_on_the_null_slot(self, loader: Loader, lab: Lab) -> None:
        seen = 0
        for lengths, slots, batch in self.padded(loader, lab, "fixed"):
            assert len(lengths) == batch.padded_rows > 0
            assert lengths.max() <= 4
            assert int(lengths.sum()) == min(batch.padded_tokens, 4 * batch.padded_rows)
            assert (slots == NULL_SLOT).all()
            assert slots.shape == (batch.padded_rows, 4)
            seen += 1
        assert seen > 3

    def test_slots_of_somebody_else_show(self, loader: Loader, lab: Lab) -> None:
        wrong = self.padded(loader, lab, "padded-rows-keep-slots")
        assert any((slots != NULL_SLOT).any() for _, slots, _ in wrong)
