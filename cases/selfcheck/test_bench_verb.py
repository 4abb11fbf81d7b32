"""`specharness bench` against real servers: the two by two, a kill in the middle, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from cases.selfcheck.bench_runs import per_second, run
from cases.selfcheck.benching import said
from cases.selfcheck.serving import MODEL, serving
from harness.bench.cells import AS_SERVED, OFF, Cell, cells_of, drafts_of
from harness.bench.costs import cost
from harness.bench.data.ask import Ask
from harness.bench.data.guides import bundled
from harness.bench.data.vocabulary import Vocabulary
from harness.bench.equality import greedy_equality
from harness.bench.history.dataset import Dataset
from harness.bench.history.history import History
from harness.bench.kept import require_kept
from harness.bench.load.health import Health
from harness.bench.load.run import LoadResult
from harness.bench.load.store import read_records
from harness.bench.machine import hardware
from harness.bench.measured import Measured, judged
from harness.bench.metrics.crossed import Crossed
from harness.bench.plan import USUAL, Plan
from harness.bench.record import RequestRecord
from harness.bench.result import read_result
from harness.bench.revision import Revision
from harness.bench.screen import crossed, ratios
from harness.bench.served import Served
from harness.bench.stats.run import Run, Validity
from harness.bench.tables import read_run
from harness.bench.ties import partings
from harness.bench_session import Session
from harness.bench_verbs import _figures, _verdict
from harness.cli import _parser, main
from harness.models.tiny import default_cache, ensure

SMALL = ["--requests", "4", "--concurrency", "2", "--output-tokens", "12", "--loop-lag", "5000"]
"""Tests run beside others: a client that waits for a core proves nothing here."""
NAMES = ["free-off", "guided-off", "free-mtp", "guided-mtp"]


@pytest.fixture(scope="module")
def model() -> Path:
    return ensure("peaked", cache=default_cache(os.environ))


def bench(
    capsys: pytest.CaptureFixture[str], *arguments: str, page: bool = False
) -> tuple[dict[str, Any], str]:
    """The JSON line, checked against the exit code, and everything above it."""
    code = main(["bench", *arguments, *([] if page else ["--no-page"])])
    said = capsys.readouterr()
    above, _, last = said.out.rstrip("\n").rpartition("\n")
    told: dict[str, Any] = json.loads(last)
    assert told["exit"] == code
    return told, above + said.err


def test_the_two_by_two_of_the_real_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, xml, step = str(tmp_path / "history"), tmp_path / "junit.xml", tmp_path / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    where = ["--reports", str(tmp_path), "--format", "vllm-0.10.2", "--history", url, "--junit", str(xml)]
    told, shown = bench(capsys, *SMALL, *where, page=True)
    assert told["exit"] == 0, shown
    assert len(told["filed"]) == 4
    with History(url) as history:
        runs = history.runs(series="nightly")
    assert {one.commit for one in runs} == {Revision(**run_of(told)["revision"]).name}
    assert {one.fingerprint["hardware"] for one in runs} == {hardware()}
    assert list(told["cells"]) == NAMES
    assert shown.count(" Serving Benchmark Result ") == shown.count(" specharness ") == 4
    assert "Failed requests:" not in shown  # the label set of 0.10.2
    assert shown.count("these are the server's figures") == 4
    assert "synthetic model" in shown
    for name in ("speedup_free", "speedup_guided", "interaction"):
        assert told[name] > 0
    run_dir = Path(told["run_dir"])
    assert f"report: {run_dir}/index.html" in shown
    for words in ("Right answers, measured by a healthy client", "Acceptance by position", "8 of 8", "<svg"):
        assert words in (run_dir / "index.html").read_text(encoding="utf-8")
    assert step.read_text() == (run_dir / "summary.md").read_text()
    assert "Benchmark: right answers" in step.read_text()
    assert 'tests="4" failures="0" skipped="0"' in xml.read_text()
    assert json.loads((run_dir / "outcome.json").read_text()) == told
    assert f"{run_dir.name}/index.html" in (tmp_path / "index.html").read_text(encoding="utf-8")
    digests, prompts = set(), {}
    for name in NAMES:
        found = read_result(run_dir / f"result-{name}.json")
        ours = found["specharness"]
        assert found["completed"] == 4
        assert found["failed"] == 0
        assert ours["valid"]
        assert not ours["health"]["client_bound"]
        stored = read_run(run_dir / "tables", name)
        assert sorted(r.id for r in stored.records) == [f"random-{place:05d}" for place in range(4)]
        assert not any(r.warm_up for r in stored.records)
        assert sum(len(r.token_ids) for r in stored.records) == found["total_output_tokens"]
        prompts[name] = found["total_input_tokens"]
        digests.add((name.split("-")[0], ours["fingerprint"]["data"]))
    assert len(digests) == 2  # the same requests with and without speculation
    assert set(prompts.values()) == {4 * 64}
    for name in ("free-mtp", "guided-mtp"):
        assert told["cells"][name]["equality"] == {"compared": 4, "equal": 4}
        assert told["cells"][name]["acceptance_length"] > 1
    assert told["cells"]["free-off"]["acceptance_length"] is None
    assert json.loads((run_dir / "run.json").read_text())["result"]["cells"] == told["cells"]


def run_of(told: dict[str, Any]) -> dict[str, Any]:
    """``run.json`` of a run."""
    found: dict[str, Any] = json.loads((Path(told["run_dir"]) / "run.json").read_text())
    return found


def test_a_killed_run_is_readable_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "harness.cli",
        "bench",
        *SMALL,
        "--requests",
        "6",
        "--output-tokens",
        "48",
    ]
    process = subprocess.Popen(
        [*command, "--reports", str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 120
        before: list[str] = []
        while len(before) < 2 and time.monotonic() < end and process.poll() is None:
            time.sleep(0.02)
            before = [
                line
                for path in tmp_path.glob("*/records/guided-off/records-0.jsonl")
                for line in path.read_text().split("\n")[:-1]  # whole: the head, and an answer
            ]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    (run_dir,) = tmp_path.iterdir()
    wait_until_gone(json.loads((run_dir / "run.json").read_text())["served"]["off"]["url"])
    first = read_records(run_dir / "records/guided-off").records
    assert first
    assert len(first) < 6
    assert len(read_records(run_dir / "records/free-off").records) == 6
    assert len(read_run(run_dir / "tables", "free-off").records) == 6

    told, shown = bench(capsys, "--resume", str(run_dir))
    assert told["exit"] == 0, shown
    assert [told["cells"][name]["streams"] for name in NAMES] == [{"complete": 6}] * 4
    assert told["cells"]["guided-mtp"]["equality"] == {"compared": 6, "equal": 6}
    again = read_records(run_dir / "records/guided-off").records
    assert all(record in again for record in first)  # what was measured was not measured again

    was = json.loads((run_dir / "run.json").read_text())
    other = was | {"revision": was["revision"] | {"tree": "0" * 40}}
    (run_dir / "run.json").write_text(json.dumps(other))
    refused, _ = bench(capsys, "--resume", str(run_dir))
    assert (refused["exit"], "began with the code of commit" in refused["error"]) == (2, True)
    (run_dir / "run.json").write_text(json.dumps(was))

    started = (run_dir / "server-mtp.log").stat().st_mtime_ns
    results = {path.name: path.read_bytes() for path in run_dir.glob("result-*.json")}
    once_more, _ = bench(capsys, "--resume", str(run_dir))
    # the same bytes are the same run of a history
    assert {path.name: path.read_bytes() for path in run_dir.glob("result-*.json")} == results
    assert once_more["cells"] == told["cells"]
    assert (run_dir / "server-mtp.log").stat().st_mtime_ns == started  # nothing was left to ask


def wait_until_gone(url: str) -> None:
    """A server does not outlive whoever started it."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            httpx.get(f"{url}/health", timeout=5)
        except httpx.HTTPError:
            return
        time.sleep(0.1)
    pytest.fail(f"{url} still answers")


def test_a_server_of_the_users_has_two_cells(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(model) as server:
        where = ["--base-url", f"{server.url}/v1", "--tokenizer", str(model), "--reports", str(tmp_path)]
        told, shown = bench(capsys, *SMALL, *where)
        chat, _ = bench(capsys, *SMALL, *where, "--chat", "--rate", "50")
        url = str(tmp_path / "history")
        wrong_name, _ = bench(
            capsys, *SMALL, *where, "--model", "another", "--history", url, "--commit", "abc1234"
        )
    assert told["exit"] == 0, shown
    assert list(told["cells"]) == ["free", "guided"]
    assert "speedup_free" not in told
    assert read_result(Path(told["run_dir"]) / "result-free.json")["model_id"] == MODEL
    assert chat["exit"] == 0
    assert read_result(Path(chat["run_dir"]) / "result-free.json")["request_rate"] == 50
    assert (wrong_name["exit"], wrong_name["filed"]) == (1, [])
    assert not Dataset(url).names()
    assert read_result(Path(told["run_dir"]) / "result-free.json")["specharness"]["commit"] is None
    assert not wrong_name["cells"]["free"]["comparable"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--base-url", "http://127.0.0.1:9"], "--tokenizer"),
        (["--base-url", "ftp://nowhere", "--tokenizer", "."], "base URL"),
        (["--model", "x"], "--base-url"),
        (["--seed", "-1"], "seed"),
        (["--requests", "0"], "at least 1"),
        (["--rate", "nan"], "above 0"),
        (["--preset-workload", "none"], "pr24957"),
        (["--resume", "nowhere"], "run.json"),
        (["--api-key-file", "nowhere"], "nowhere"),
        (["--compare", "fixed"], "two different variants"),
        (
            ["--compare", "fixed,as-merged", "--base-url", "http://127.0.0.1:9", "--tokenizer", "."],
            "embedded",
        ),
        (["--variant", "no-such-variant"], "no-such-variant"),
        (["--compare", "fixed,as-merged", "--history", "nights"], "expected one of them"),
        (["--history", "nosuch://x"], "cannot be opened"),
        (["--history", "/dev/null/x"], "cannot be written"),
        (
            ["--history", "nights", "--base-url", "http://127.0.0.1:9", "--tokenizer", "."],
            "nobody knows the commit",
        ),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, shown = bench(capsys, *arguments, "--reports", str(tmp_path))
    assert told["exit"] == 2
    assert words in told["error"]
    assert "Traceback" not in shown.split("the server did not start")[0]


def test_a_server_that_is_not_there_is_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, _ = bench(
        capsys, "--base-url", "http://127.0.0.1:9", "--tokenizer", str(model), "--reports", str(tmp_path)
    )
    assert told["exit"] == 2
    assert "127.0.0.1:9" in told["error"]


def test_a_run_directory_of_another_verb_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text('{"name": "live", "setting": {"seed": 0}}')
    told, _ = bench(capsys, "--resume", str(tmp_path))
    assert told["exit"] == 2
    assert "not of a benchmark" in told["error"]


BEGUN = {
    "setting": dict.fromkeys(("base_url", "model", "tokenizer", "loop_lag"))
    | dict.fromkeys(("format", "variant", "spec", "regime", "preset"), "x")
    | {"k": 3, "rounds": 4, "compare": []},
    "plan": Plan(workload=USUAL).as_dict(),
    "revision": {"commit": "c", "dirty": False, "tree": "t"},
    "served": {"off": {"url": "http://127.0.0.1:9", "model": "m"}},
    "began": {"free-off": "2026-12-01T02:00:00"},
    "partings": {"free-mtp": ["near"]},
    "repeated": {"free-off": "late"},
}


def test_a_run_that_goes_on_is_read_as_it_was_written() -> None:
    assert require_kept(BEGUN).plan == Plan(workload=USUAL)


@pytest.mark.parametrize("value", [float("nan"), 10**400, {"a": 1}])
@pytest.mark.parametrize(
    "place",
    "setting plan plan.workload plan.workload.requests plan.seed setting.k setting.compare setting.tokenizer served "
    "served.off served.off.url revision revision.tree began began.free-off partings.free-mtp repeated".split(),
)
def test_a_damaged_run_directory_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, value: object
) -> None:
    run = json.loads(json.dumps(BEGUN))
    *path, last = place.split(".")
    inner = run
    for key in path:
        inner = inner[key]
    inner[last] = value
    (tmp_path / "run.json").write_text(text := json.dumps(run))
    told, shown = bench(capsys, "--resume", str(tmp_path))
    assert told["exit"] == 2, shown
    assert (tmp_path / "run.json").read_text() == text


def test_a_plan_survives_its_way_through_json() -> None:
    assert msgspec.convert(json.loads(json.dumps(usual().as_dict())), Plan) == usual()


def usual() -> Plan:
    return Plan(workload=USUAL, seed=3, rate=2.5, most_in_flight=7)


def test_a_plan_asks_the_same_with_and_without_a_guide(model: Path) -> None:
    vocabulary = Vocabulary(model)
    free, guided = (usual().asks(vocabulary, guided=guided) for guided in (False, True))
    assert [(a.id, a.prompt, a.max_tokens) for a in free] == [(a.id, a.prompt, a.max_tokens) for a in guided]
    assert all(a.guide is None for a in free)
    assert all(a.guide is not None for a in guided)


def test_a_warm_up_has_every_guide_and_no_prompt_of_the_run(model: Path) -> None:
    asks = usual().asks(Vocabulary(model), guided=True)
    warm = usual().warm_up(asks, "m")
    assert {call.guide for call in warm} == {ask.guide.name for ask in asks if ask.guide}
    prompts = {ask.prompt for ask in asks}
    assert not any(tuple(json.loads(call.body)["prompt"]) in prompts for call in warm)
    assert len({call.id for call in warm}) == len(warm)


def test_arrivals_of_a_seed_leave_its_prompts_alone(model: Path) -> None:
    one, other = usual(), replace(usual(), rate=5.0)
    assert one.asks(Vocabulary(model), guided=False) == other.asks(Vocabulary(model), guided=False)
    assert one.shape != other.shape


def cell(
    records: list[RequestRecord],
    *,
    guided: bool = False,
    speculation: str = OFF,
    because: tuple[str, ...] = (),
) -> Measured:
    """A cell that was measured so."""
    load = LoadResult(
        records=tuple(records), health=Health(because=because), transport="raw", why_transport=""
    )
    asks = [
        Ask(id=r.id, prompt=(1, 2), max_tokens=9, guide=bundled("sentiment")[0] if guided else None)
        for r in records
    ]
    return judged(Cell(speculation=speculation, guided=guided), asks, load, Path("nowhere"))


def answers(*ids: tuple[int, ...], **more: Any) -> list[RequestRecord]:
    return [said([10, 20, 30], id=str(place), token_ids=tokens, **more) for place, tokens in enumerate(ids)]


def test_right_cells_are_compared() -> None:
    cells = [cell(answers((1, 2, 3))), cell(answers((1, 2, 3)), speculation="mtp")]
    assert crossed(cells, OFF, "mtp").speedup_free == 1
    assert _verdict(cells)[1] == 0


def test_another_answer_with_speculation_makes_the_run_wrong_and_its_speed_is_not_compared() -> None:
    off, on = cell(answers((1, 2, 3))), cell(answers((1, 5, 3)), speculation="mtp")
    on = on.beside(greedy_equality(off.records, on.records))
    assert crossed([off, on], OFF, "mtp").speedup_free is None
    assert _figures(off)["output_throughput"] > 0
    assert _figures(on)["output_throughput"] is None
    words, code = _verdict([off, on])
    assert code == 1
    assert "1 of 1 greedy answers differ" in words


def test_a_wrong_guided_answer_makes_the_run_wrong_and_one_that_was_cut_does_not() -> None:
    broken = cell(answers((1,), text="{nonsense", guide="sentiment", finish_reason="stop"), guided=True)
    assert _verdict([broken])[1] == 1
    cut = cell(answers((1,), text='{"', guide="sentiment", finish_reason="length"), guided=True)
    assert _verdict([cut])[1] == 0


def test_a_client_bound_cell_is_not_compared_and_wrong_answers_weigh_more() -> None:
    off, late = cell(answers((1,))), cell(answers((1,)), speculation="mtp", because=("late",))
    assert crossed([off, late], OFF, "mtp").speedup_free is None
    assert _verdict([off, late])[1] == 125
    wrong = late.beside(greedy_equality(off.records, answers((2,))))
    assert _verdict([off, wrong])[1] == 1


def test_a_client_bound_cell_is_measured_again_once(model: Path, tmp_path: Path) -> None:
    class Late(Session):
        late = 1

        def judge(self, cell: Cell, served: Served) -> Measured:
            found = super().judge(cell, served)
            because = ("late",) if Late.late > 0 else ()
            Late.late -= 1
            return replace(found, load=replace(found.load, health=Health(because=because)))

    with serving(model) as server:
        where = ["--base-url", server.url, "--tokenizer", str(model), "--reports", str(tmp_path), "--json"]
        session = Late.begun(_parser().parse_args(["bench", *SMALL, *where]))
        served = Served(url=server.url, model=MODEL)
        for times, name, comparable in ((1, "free", True), (9, "guided", False)):
            Late.late = times
            cell = Cell(speculation=AS_SERVED, guided=name == "guided")
            found, result = session.measure(cell, served)
            assert found.comparable is comparable
            assert Late.late == times - 2  # twice, and no third time
            first = read_records(session.folder(cell).with_name(f"{name}-client-bound")).records
            assert len(first) == len(found.records) == 4
            assert first[0].sent != found.records[0].sent or first[0].chunks != found.records[0].chunks
            assert any("measured twice" in note for note in result["specharness"]["notes"])
        again, _ = session.measure(cell, served)  # a resumed run
        assert Late.late == 9 - 3
        assert not again.comparable


def test_a_near_tie_is_named_by_the_scores_of_a_prefill(model: Path) -> None:
    one, other = answers((5, 6, 7)), answers((5, 8, 7))
    asks = [Ask(id="0", prompt=(1, 2), max_tokens=9)]
    equality = greedy_equality(one, other)

    class Scorer(Served):
        def score(self, prompt: Any, token: int) -> float | None:
            assert list(prompt) == [1, 2, 5]
            return {6: -1.0, 8: -1.00001}[token]

    (found,) = partings(equality, asks, one, other, Scorer(url="", model=""))
    assert found.near
    assert "a near tie" in str(found)
    (silent,) = partings(equality, asks, one, other, None)
    assert silent.gap is None
    assert not silent.near


def test_a_real_server_scores_a_token_as_it_decoded_it(model: Path) -> None:
    with serving(model) as server:
        told = server.complete([5, 6, 7], max_tokens=1, logprobs=1)
        token, served = told["token_ids"][0], Served(url=server.url, model=MODEL)
        score = served.score([5, 6, 7], token)
        assert score == pytest.approx(told["logprobs"]["token_logprobs"][0], abs=1e-4)
        assert "vllm:spec_decode" in (served.metrics() or "")


def test_acceptance_of_a_cell_is_what_the_counters_grew_by(tmp_path: Path) -> None:
    def text(drafts: int, drafted: int, accepted: int) -> str:
        names = {"num_drafts": drafts, "num_draft_tokens": drafted, "num_accepted_tokens": accepted}
        return "".join(f"vllm:spec_decode_{name}_total {value}\n" for name, value in names.items())

    (tmp_path / "metrics-0-before.txt").write_text(text(10, 30, 20))
    assert drafts_of(tmp_path)[0] is None
    assert "unknown" in drafts_of(tmp_path)[1]
    (tmp_path / "metrics-0-after.txt").write_text(text(20, 60, 25))
    found, note = drafts_of(tmp_path)
    assert found is not None
    assert (found.length, found.rate, note) == (1.5, 5 / 30, "")
    (tmp_path / "metrics-1-before.txt").write_text(text(50, 160, 75))  # others were asked in between
    assert drafts_of(tmp_path)[0] == found
    assert "without the requests of 1 of 2 parts" in drafts_of(tmp_path)[1]
    (tmp_path / "metrics-1-after.txt").write_text(text(60, 200, 110))
    both, note = drafts_of(tmp_path)
    assert both is not None
    assert (both.length, both.rate, note) == (3.0, 40 / 70, "")
    (tmp_path / "metrics-1-after.txt").unlink()
    (tmp_path / "metrics-1-before.txt").unlink()
    (tmp_path / "metrics-0-after.txt").write_text(text(20, 30, 20))
    assert drafts_of(tmp_path) == (None, "")  # rows without drafts are no speculation


@pytest.mark.parametrize(
    ("guided_on", "words"),
    [
        (150.0, "50% survives"),
        (90.0, "none of the gain"),
        (None, "guided:  n/a"),
    ],
)
def test_what_survives_the_grammar_is_said_in_words(guided_on: float | None, words: str) -> None:
    found = Crossed(free_off=100.0, free_on=200.0, guided_off=100.0, guided_on=guided_on)
    told = "\n".join(ratios(found))
    assert words in told
    assert "gains nothing" not in told
    assert "gains nothing" in "\n".join(ratios(replace(found, free_on=90.0)))


def test_cells_are_named_for_files() -> None:
    assert [one.name for one in cells_of([OFF, "mtp"])] == NAMES
    again = Cell(speculation="mtp", guided=True, variant="as-merged", number=0)
    assert again.name == "as-merged-guided-mtp-0"


def rates(*numbers: float, correct: bool = True, client_bound: bool = False) -> list[Run]:
    validity = Validity(correct=correct, client_bound=client_bound, why="so")
    return [run({"throughput.output": per_second(one)}, validity=validity) for one in numbers]


def test_a_fix_is_priced_where_both_are_right() -> None:
    found = cost(rates(100, 101, 100, 99), rates(80, 81, 80, 79), old="old", new="new", guided=False)
    (row,) = found.rows
    assert row[0] == "throughput.output"
    assert row[-1] == "regression"
    assert "worse by +25" in str(found)
    assert found.as_dict()["metrics"]["throughput.output"]["worse_by"] == pytest.approx(0.25, abs=0.01)


def test_speed_of_a_wrong_variant_is_not_told() -> None:
    wrong = rates(500, 500, correct=False)
    found = cost(wrong, rates(80, 81), old="old", new="new", guided=True)
    assert (list(found.rows), found.exit_code) == ([], 0)
    assert "no price, old is wrong in 2 of 2 runs" in str(found)
    assert "500" not in json.dumps(found.as_dict())
    assert cost(rates(80, 81), wrong, old="old", new="new", guided=True).exit_code == 1


def test_a_price_that_is_not_known_is_undecided() -> None:
    bound = [*rates(80), *rates(80, client_bound=True)]
    found = cost(rates(80, 81), bound, old="old", new="new", guided=True)
    assert found.exit_code == 125
    assert "2 and 1 runs" in str(found)
    assert cost(rates(50, 90), rates(90, 50), old="old", new="new", guided=True).exit_code == 125


def test_variants_are_measured_in_turn_and_the_wrong_ones_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--requests", "4", "--output-tokens", "40", "--loop-lag", "5000", "--rounds", "2"]
    told, shown = bench(capsys, *sizes, "--compare", "before-fix,as-merged,fixed", "--reports", str(tmp_path))
    ran = [line.split(",")[0] for line in shown.splitlines() if ", run " in line]
    assert [line.split(": ")[0] for line in ran[:6]] == [
        *("before-fix", "as-merged", "fixed"),
        *("fixed", "as-merged", "before-fix"),
    ]
    wrong = {(one["old"], one["guided"]): one["wrong"] for one in told["compared"]}
    assert not wrong["before-fix", False]
    assert not wrong["as-merged", False]
    assert "failed" in wrong["before-fix", True][0]
    assert "greedy answers differ" in wrong["as-merged", True][0]
    assert told["exit"] in (0, 125)  # two runs on a busy machine rarely show a price
    results = {path.name for path in Path(told["run_dir"]).glob("result-fixed-*.json")}
    assert results == {f"result-fixed-{kind}-mtp-{n}.json" for kind in ("free", "guided") for n in (0, 1)}
