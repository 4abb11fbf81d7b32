"""Drawn scenarios: the same everywhere, legal, of every shape; and the campaigns that run them."""

from __future__ import annotations

import json
import os
import shlex
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from harness import Sampling, Scenario
from harness.cli import _parser, main
from harness.errors import EngineError
from harness.explore.campaign import Job, Log, campaign
from harness.explore.coverage import Coverage
from harness.explore.digest import digests, first_difference
from harness.explore.farm import unordered
from harness.explore.generate import FEATURES, scenario
from harness.explore.words import Words
from harness.explore.workbench import Record, Setting, Workbench
from harness.explore_verbs import _command
from harness.lab import Lab
from harness.models.tiny import ensure
from harness.rundir import RunDir
from harness.trace import Trace
from harness.verdict import Verdict

DRAWN = 300
SHAPES: dict[str, Callable[[Scenario], object]] = {
    "forced": lambda s: s.forced,
    "natural with the MTP head": lambda s: not s.forced and s.drafter == "mtp",
    "natural by lookup": lambda s: not s.forced and s.drafter == "ngram",
    "sampled": lambda s: any(request.sampling.temperature for request in s.requests),
    "placeholder": lambda s: s.regime == "placeholder",
    "prefix caching": lambda s: s.prefix_caching,
    "small pool": lambda s: s.kv_blocks,
    "captured": lambda s: s.capture_sizes,
    "reversed": lambda s: s.reverse_rows,
    "small budget": lambda s: s.token_budget <= s.k + 1,
    "one row fewer than requests": lambda s: s.max_num_seqs < len(s.requests),
    "short prompt": lambda s: any(len(request.prompt) <= s.k for request in s.requests),
    "prompt of one token": lambda s: any(len(request.prompt) == 1 for request in s.requests),
    "prompt that goes on from another": lambda s: any(
        one is not other and other.prompt[: len(one.prompt)] == one.prompt
        for one in s.requests
        for other in s.requests
        if len(one.prompt) > 1
    ),
    "grammar": lambda s: any(request.grammar for request in s.requests),
    "reasoning": lambda s: any(request.reasoning_end is not None for request in s.requests),
    "stop token": lambda s: any(request.stop_token_ids for request in s.requests),
    "stop text": lambda s: any(request.stop for request in s.requests),
    "ignored end": lambda s: any(request.ignore_eos for request in s.requests),
    **{
        what: lambda s, what=what: any(event.what == what for event in s.events)
        for what in ("preempt", "abort", "dummy", "draft length")
    },
    "trim to zero after several accepted": lambda s: any(
        earlier.accepted > 1 and later.drafts and later.accepted == 1
        for turns in (s.script or {}).values()
        for earlier, later in pairwise(turns)
    ),
}


@pytest.fixture(scope="module")
def narrow(models: Path) -> Path:
    """The model that campaigns use."""
    return ensure("narrow", 0, models)


@pytest.fixture(scope="module")
def words(narrow: Path) -> Words:
    return Words.of(Lab(narrow, Path()))


@pytest.fixture(scope="module")
def bench(narrow: Path) -> Workbench:
    return Workbench(Setting(model=str(narrow), kernels="naive"))


def test_the_same_seed_draws_the_same_scenarios(words: Words) -> None:
    first = [scenario(words, 7, i) for i in range(20)]
    assert first == [scenario(words, 7, i) for i in range(20)]
    drawn = {replace(scenario(words, seed, i), name="").to_json() for seed in (7, 8) for i in range(20)}
    assert len(drawn) == 40


def test_drawn_scenarios_are_legal_and_survive_json(words: Words) -> None:
    for i in range(DRAWN):
        drawn = scenario(words, 0, i)
        assert Scenario.from_json(drawn.to_json()) == drawn


def test_every_shape_is_drawn(words: Words) -> None:
    drawn = [scenario(words, 0, i) for i in range(DRAWN)]
    rare = {name: n for name, shape in SHAPES.items() if (n := sum(map(bool, map(shape, drawn)))) < 5}
    assert not rare


def test_what_a_target_lacks_is_not_drawn(words: Words) -> None:
    for i in range(DRAWN):
        drawn = scenario(words, 0, i, features=frozenset())
        assert drawn.regime == "trim"
        assert not drawn.prefix_caching
        assert not drawn.events
        assert drawn.kv_blocks is None
        for request in drawn.requests:
            assert not request.stop_token_ids
            assert not request.stop
            assert request.reasoning_end is None
        assert not drawn.forced or drawn.token_budget == 512
    everything = [scenario(words, 0, i, features=FEATURES) for i in range(DRAWN)]
    assert everything == [scenario(words, 0, i) for i in range(DRAWN)]


def answers(trace: Trace) -> dict[str, tuple[int, ...]]:
    return {name: completion.tokens for name, completion in trace.completions.items()}


def test_an_answer_does_not_depend_on_company_or_order(bench: Workbench) -> None:
    """Greedy answers: alone, in company, and in company with the rows in the opposite order."""
    tried = 0
    for i in range(60):
        drawn = scenario(bench.words, 3, i, features=FEATURES - {"events", "pressure"})
        if drawn.forced or len(drawn.requests) not in (2, 3):
            continue
        tried += 1
        greedy = tuple(replace(one, sampling=Sampling()) for one in drawn.requests)
        together = replace(drawn, requests=greedy, sample_drafts=False)
        expected = {}
        for request in greedy:
            expected |= answers(bench.run(replace(together, requests=(request,)), "fixed"))
        assert answers(bench.run(together, "fixed")) == expected
        turned = replace(together, reverse_rows=not together.reverse_rows)
        assert answers(bench.run(turned, "fixed")) == expected
    assert tried >= 5


def test_a_digest_tells_two_runs_apart_and_where(bench: Workbench) -> None:
    drawn = scenario(bench.words, 0, 0)
    trace = bench.run(drawn, "fixed")
    seen = digests(trace)
    assert len(seen) == len(trace.steps) + 1
    assert digests(bench.run(drawn, "fixed")) == seen
    assert first_difference(seen, seen) is None
    moved = replace(trace.steps[2], k=99)
    other = replace(trace, steps=(*trace.steps[:2], moved, *trace.steps[3:]))
    assert first_difference(digests(other), seen) == 2
    counted = replace(trace, counters={**trace.counters, "num_drafts": -1})
    assert first_difference(digests(counted), seen) == len(trace.steps)


def test_a_state_in_which_nearly_everything_cancelled_is_no_false_alarm(
    bench: Workbench, words: Words
) -> None:
    """After one token a head holds 1/50 of what it usually holds, and the rounding error of what cancelled: 1e-5 of
    itself. A percent of that state is 2e-4 of the usual one, and is found."""
    drawn = scenario(words, 0, 707)
    trace = bench.run(drawn, "fixed")
    assert bench.judge(drawn, trace).verdict is Verdict.PASS
    (row,) = (row for row in trace.steps[0].rows if row.request == "r1")
    assert row.state is not None
    row.state.recurrent[2, 3] *= 1.01
    judgement = bench.judge(drawn, trace)
    assert judgement.verdict is Verdict.FAIL
    assert judgement.first is not None
    assert (judgement.first.at.step, judgement.first.at.request, judgement.first.at.head) == (0, "r1", 3)


def record(name: str, *observed: str) -> Record:
    return Record(
        scenario=name, variant="fixed", verdict=Verdict.PASS, steps=1, tokens=1, digest="", observed=observed
    )


def test_coverage_counts_runs_and_pairs() -> None:
    coverage = Coverage.of([record("a", "abort", "preemption"), record("b", "preemption")])
    assert coverage.runs == 2
    assert coverage.events == {"preemption": 2, "abort": 1}
    assert coverage.together("preemption", "abort") == 1
    assert coverage.empty(("abort", "preemption", "resume")) == [
        ("abort", "resume"),
        ("preemption", "resume"),
    ]


def test_an_interrupted_campaign_goes_on_from_its_log(narrow: Path, tmp_path: Path) -> None:
    setting = Setting(model=str(narrow), kernels="naive")
    path = tmp_path / "records.jsonl"
    jobs = [Job(setting=setting, variant="fixed", seed=0, generated=range(i, i + 1)) for i in range(2)]
    before = Log(path)
    before.add(jobs[0].key, (record("as it was logged"),))
    path.write_text(path.read_text() + json.dumps({"job": jobs[1].key})[:9])  # it was killed while it wrote
    found = dict(campaign(jobs, Log(path), workers=1))
    assert found[jobs[0].key] == (record("as it was logged"),)
    assert [one.scenario for one in found[jobs[1].key]] == ["generated 0/1"]


def test_tasks_run_elsewhere_and_a_dead_worker_is_told() -> None:
    assert sorted(unordered(abs, (-i for i in range(5)), workers=2)) == [0, 1, 2, 3, 4]
    with pytest.raises(EngineError, match="worker process died"):
        list(unordered(os._exit, [3], workers=1))


def test_a_worker_that_is_fresh_does_one_task() -> None:
    """On a GPU a fault may kill its process's context: whoever comes next must not find it dead."""
    asked = ["__import__('os').getpid()"] * 3
    assert len(set(unordered(eval, asked, workers=1, fresh=True))) == 3
    assert len(set(unordered(eval, asked, workers=1))) == 1


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--quick --layout replay",
        "--seed 3 --clean 5 --fault dropped-last --fault zero-draft-row --preset flat --device cpu --graphs off",
    ],
)
def test_a_matrix_tells_the_command_that_makes_it_again(words: str) -> None:
    def asked(words: str) -> dict[str, object]:
        return {**vars(_parser().parse_args(["matrix", *words.split()])), "run": None}

    args = asked(words)
    made, _, given = _command(Namespace(**args)).partition(" ARGS=")
    assert made == "make matrix"
    assert asked(" ".join(shlex.split(given))) == args


@pytest.mark.parametrize(("began", "goes_on"), [("matrix-quick", []), ("matrix", ["--quick"])])
def test_a_quick_matrix_and_a_whole_one_are_not_resumed_as_each_other(
    began: str, goes_on: list[str], narrow: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs of both have the same names, and those of a quick one stop after one kill."""
    kept = {
        "seed": 0,
        "preset": "narrow",
        "kernels": "auto",
        "device": "cpu",
        "graphs": "on",
        "layout": "slots",
    }
    begun = RunDir.create(tmp_path, "m", {"name": began, **kept, "fault": ["zero-draft-row"]})
    words = ["--device", "cpu", "--fault", "zero-draft-row", "--clean", "0", "--resume", str(begun.path)]
    assert main(["matrix", *words, *goes_on]) == 2
    assert "is another run (name: '" in capsys.readouterr().err
