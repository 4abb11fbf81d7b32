"""``compare``, ``calibrate``, ``gate`` and ``history`` over result files: answers, exit codes, and every refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from cases.selfcheck.benching import said, shifted
from harness.bench.history.results import read_all
from harness.bench.metrics.compat import COMPLETIONS
from harness.bench.metrics.summary import summarise
from harness.bench.result import Setting, result, write_result
from harness.cli import main

ROOT = Path(__file__).parents[2]
FINGERPRINT = {"hardware": "2 CPUs", "model": "tiny", "server": "--spec mtp", "data": "d1", "seed": "0"}
FIRST = datetime(2026, 3, 1, 2)
Made = Callable[..., Path]
Call = Callable[..., tuple[int, dict[str, Any], str, str]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Makes a run directory with one result: real records of 12 requests, through the library."""
    rng = np.random.default_rng(7)

    def make(
        name: str,
        *,
        tpot: float = 10.0,
        noise: float = 0.005,
        day: float = 0,
        cell: str = "free-mtp",
        fingerprint: dict[str, str] = FINGERPRINT,
        **ours: Any,
    ) -> Path:
        gap = tpot * float(np.exp(rng.normal(0, noise)))
        records = [
            shifted(said([5 * gap + gap * at for at in range(20)], id=f"r{n}"), n * 0.01) for n in range(12)
        ]
        health = {"client_bound": False, "because": []}
        extra = {"cell": cell, "fingerprint": fingerprint, "health": health, **ours}
        found = result(
            Setting(model_id="tiny", date=FIRST + timedelta(days=day), max_concurrency=12),
            records,
            summarise(records),
            dialect=COMPLETIONS,
            extra=extra,
        )
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        write_result(found, folder / f"result-{cell}.json")
        return folder

    return make


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls the command: exit code, JSON line, standard output and error; never a traceback."""

    def ask(*arguments: object) -> tuple[int, dict[str, Any], str, str]:
        code = main([str(one) for one in arguments])
        out, err = capsys.readouterr()
        line = json.loads(out.splitlines()[-1], parse_constant=pytest.fail)
        assert line["exit"] == code
        assert "Traceback" not in err
        return code, line, out, err

    return ask


def several(made: Made, name: str, count: int = 4, **more: Any) -> Path:
    """A folder of so many run directories."""
    for number in range(count):
        made(f"{name}/run-{number}", day=number / 24, **more)
    return made(f"{name}/run-0", day=0, **more).parent


def nights(made: Made, call: Call, url: Path, tpots: Sequence[float], **more: Any) -> None:
    """A history of one night after the other."""
    for day, tpot in enumerate(tpots):
        run = made(f"night-{day}", tpot=tpot, day=day, commit=f"{day:040x}", **more)
        assert call("history", "add", url, run)[0] == 0


@pytest.mark.parametrize(
    ("factor", "call_word", "code"), [(1.0, "pass", 0), (1.2, "regression", 1), (0.8, "improvement", 0)]
)
def test_compare_says_what_four_runs_of_either_side_show(
    made: Made, call: Call, factor: float, call_word: str, code: int
) -> None:
    left, right = several(made, "a"), several(made, "b", tpot=10 * factor)
    got, line, out, _ = call("compare", left, right)
    assert (got, line["call"]) == (code, call_word)
    metric = line["cells"]["free-mtp"]["metrics"]["tpot.mean_ms"]
    assert metric["low"] <= factor - 1 + 0.02
    assert metric["high"] >= factor - 1 - 0.02
    assert metric["low"] < metric["worse_by"] < metric["high"]
    row = next(text for text in out.splitlines() if "tpot.mean_ms" in text)
    assert call_word in row
    assert " to " in row


def test_one_run_of_either_side_shows_nothing_yet_the_change_is_printed(made: Made, call: Call) -> None:
    code, line, out, _ = call(
        "compare", made("a", noise=0) / "result-free-mtp.json", made("b", tpot=20, noise=0)
    )
    assert (code, line["call"]) == (125, "inconclusive")
    row = next(text for text in out.splitlines() if "tpot.mean_ms" in text)
    assert "+100.0%" in row
    assert "2 are needed" in row


def test_more_runs_of_a_side_are_named_one_by_one(made: Made, call: Call) -> None:
    names = [made(name, day=day) for day, name in enumerate("abcdef")]
    code, line, _, _ = call(
        "compare",
        *names[:2],
        "--more-a",
        names[2],
        "--more-a",
        names[3],
        "--more-b",
        names[4],
        "--more-b",
        names[5],
    )
    assert (code, line["cells"]["free-mtp"]["pairs"]) == (0, 3)


def test_different_settings_are_refused_with_every_key_unless_meant(made: Made, call: Call) -> None:
    other = {**FINGERPRINT, "model": "huge", "seed": "1"}
    left, right = several(made, "a"), several(made, "b", fingerprint=other)
    code, line, _, err = call("compare", left, right)
    assert code == 2
    for told in ("model: tiny | huge", "seed: 0 | 1", "--across", str(left), str(right)):
        assert told in line["error"]
        assert told in err
    assert "hardware" not in err
    assert call("compare", left, right, "--across", "model")[0] == 2
    assert call("compare", left, right, "--across", "model", "--across", "seed")[0] == 0


def test_runs_that_are_wrong_or_client_bound_are_left_out_and_named(made: Made, call: Call) -> None:
    wrong = several(made, "a", tpot=5, valid=False, invalid_because=["3 answers differ"])
    bound = several(made, "b", health={"client_bound": True, "because": ["its loop lagged"]})
    code, line, out, _ = call("compare", wrong, bound)
    assert (code, line["call"]) == (125, "inconclusive")
    assert "not correct: 3 answers differ" in out
    assert "client-bound: its loop lagged" in out


def test_cells_are_held_against_their_own_kind_and_share_alpha(made: Made, call: Call) -> None:
    guided = {**FINGERPRINT, "data": "d2"}
    for name, tpot in (("a", 10.0), ("b", 13.0)):
        several(made, name)
        several(made, name, cell="guided-mtp", fingerprint=guided, tpot=tpot)
    folder = Path(made("a/run-0")).parent
    code, line, _, _ = call("compare", folder, folder.parent / "b")
    calls = {name: one["call"] for name, one in line["cells"].items()}
    assert (code, calls) == (1, {"free-mtp": "pass", "guided-mtp": "regression"})
    code, line, _, _ = call("compare", folder, folder.parent / "b", "--cell", "free-mtp")
    assert (code, list(line["cells"])) == (0, ["free-mtp"])


def test_a_cell_that_is_missing_on_one_side_is_no_pass(made: Made, call: Call) -> None:
    left, right = several(made, "a"), several(made, "b")
    several(made, "a", cell="guided-mtp")
    code, line, _, _ = call("compare", left, right)
    assert code == 2
    assert "saw cells free-mtp, guided-mtp in A and free-mtp in B" in line["error"]
    assert "--cell free-mtp" in line["error"]


def test_more_cells_leave_less_alpha_for_each(made: Made, call: Call, tmp_path: Path) -> None:
    runs, smallest = several(made, "quiet", 5), []
    for _ in range(2):
        _, line, _, _ = call("calibrate", runs, "--out", tmp_path / "floors")
        smallest.append(line["cells"]["free-mtp"]["tpot.mean_ms"]["smallest"])
        several(made, "more", 5, cell="guided-mtp")
        for number in range(5):
            source = tmp_path / f"more/run-{number}/result-guided-mtp.json"
            source.rename(runs / f"run-{number}/result-guided-mtp.json")
    assert smallest[1] > smallest[0] * 1.01


def test_runs_are_taken_in_the_order_they_were_made(made: Made) -> None:
    last, first = made("runs/a", day=1), made("runs/b", day=0)
    (runs,) = read_all([last.parent]).values()
    assert [one.path.parent for one in runs] == [first, last]


def test_a_calibration_is_written_used_and_refused_elsewhere(made: Made, call: Call, tmp_path: Path) -> None:
    runs, folder = several(made, "quiet", 10), tmp_path / "floors"
    code, line, out, _ = call("calibrate", runs, "--out", folder)
    assert (code, line["files"]) == (0, {"free-mtp": str(folder / "free-mtp.json")})
    assert 0 < line["cells"]["free-mtp"]["tpot.mean_ms"]["sd"] < 0.02
    assert "tpot.mean_ms" in out
    left, right = several(made, "a"), several(made, "b")
    for path in (folder, folder / "free-mtp.json"):
        assert call("compare", left, right, "--calibration", path)[0] == 0
    other = {**FINGERPRINT, "model": "huge"}
    left, right = several(made, "c", fingerprint=other), several(made, "d", fingerprint=other)
    code, line, _, _ = call("compare", left, right, "--calibration", folder / "free-mtp.json")
    assert code == 2
    assert "model: tiny | huge" in line["error"]
    code, line, _, _ = call("compare", left, right, "--calibration", folder)
    assert code == 2
    assert "specharness calibrate" in line["error"]


@pytest.mark.parametrize(("tonight", "code", "word"), [(10.0, 0, "pass"), (14.0, 1, "regression")])
def test_gate_holds_tonight_against_past_nights_and_writes_for_ci(
    made: Made, call: Call, tmp_path: Path, tonight: float, code: int, word: str
) -> None:
    url, summary, xml = tmp_path / "history", tmp_path / "summary.md", tmp_path / "junit.xml"
    nights(made, call, url, [10.0] * 10)
    summary.write_text("before\n", encoding="utf-8")
    run = made("tonight", tpot=tonight, day=10)
    got, line, _, _ = call("gate", "--history", url, run, "--markdown", summary, "--junit", xml)
    assert (got, line["call"], line["cells"]["free-mtp"]["nights"]) == (code, word, 10)
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert f"Benchmark gate: {word}" in text
    assert "tpot.mean_ms" in text
    root = ElementTree.parse(xml).getroot()
    assert [suite.get("name") for suite in root] == ["benchmark gate: free-mtp"]
    assert bool(root.findall(".//failure")) is (code == 1)


def test_gate_without_a_run_judges_the_newest_night(made: Made, call: Call, tmp_path: Path) -> None:
    url = tmp_path / "history"
    nights(made, call, url, [10.0] * 9 + [14.0])
    code, line, _, _ = call("gate", "--history", url)
    (cell,) = line["cells"].values()
    assert (code, cell["nights"]) == (1, 9)


def test_gate_says_125_for_too_few_nights_and_what_differs(made: Made, call: Call, tmp_path: Path) -> None:
    url = tmp_path / "history"
    nights(made, call, url, [10.0] * 3)
    code, line, _, _ = call("gate", "--history", url, made("tonight", day=3))
    assert code == 125
    assert "3 past nights" in line["cells"]["free-mtp"]["why"]
    moved = made("moved", day=3, fingerprint={**FINGERPRINT, "hardware": "H200"})
    code, line, out, _ = call("gate", "--history", url, moved)
    assert (code, line["cells"]["free-mtp"]["differs"]) == (125, ["hardware: H200 | 2 CPUs"])
    assert "another setting: hardware: H200 | 2 CPUs" in out


def test_measuring_needs_one_run_directory_and_an_earlier_night(
    made: Made, call: Call, tmp_path: Path
) -> None:
    url, run = tmp_path / "history", made("tonight", commit="a" * 40)
    call("history", "add", url, run)
    code, line, out, _ = call("gate", "--history", url, run, "--measure")
    assert (code, line["baseline"]) == (125, None)
    assert "no earlier night of this setting with a commit as it is" in out
    for given in ([], [run / "result-free-mtp.json"], [run, made("other")]):
        code, line, _, _ = call("gate", "--history", url, *given, "--measure")
        assert (code, "the run directory of one benchmark" in line["error"]) == (2, True)
    later = made("later", day=1)
    code, line, _, _ = call("gate", "--history", url, later, "--measure")
    assert (code, "this clone does not hold it" in line["error"]) == (2, True)
    code, line, _, _ = call("gate", "--history", url, later, "--pairs", "5")
    assert (code, "expected even numbers" in line["error"]) == (2, True)


def test_other_cells_of_the_same_night_are_no_other_setting(made: Made, call: Call, tmp_path: Path) -> None:
    url = tmp_path / "history"
    made("tonight", commit="a" * 40)
    run = made(
        "tonight", commit="a" * 40, cell="guided-mtp", fingerprint={**FINGERPRINT, "data": "d2"}, day=0.01
    )
    call("history", "add", url, run)
    code, line, out, _ = call("gate", "--history", url)
    assert (code, len(line["cells"])) == (125, 2)
    assert [one["differs"] for one in line["cells"].values()] == [[], []]
    assert "verdict" not in out


def test_the_same_file_added_twice_is_one_run_and_is_listed(made: Made, call: Call, tmp_path: Path) -> None:
    url, run = tmp_path / "history", made("a")
    for _ in range(2):
        assert call("history", "add", url, run, "--commit", "c" * 40)[0] == 0
    code, line, out, _ = call("history", "list", url)
    assert code == 0
    assert [(one["commit"], one["valid"]) for one in line["runs"]] == [("c" * 40, True)]
    assert list(line["settings"].values()) == [FINGERPRINT]
    assert "hardware: 2 CPUs" in out


def test_changes_are_new_until_somebody_says_they_know(made: Made, call: Call, tmp_path: Path) -> None:
    url, known = tmp_path / "history", tmp_path / "known.toml"
    nights(made, call, url, [10.0] * 10 + [12.0] * 8)
    ask = ("history", "changes", url, "--metric", "tpot.mean_ms")
    code, line, out, _ = call(*ask)
    (change,) = line["changes"]
    assert (code, change["state"], change["suspects"]) == (1, "new", f"{9:040x}..{10:040x}")
    assert change["share"] == pytest.approx(0.2, abs=0.02)
    assert f"suspects {9:040x}..{10:040x}" in out
    entry = '[[known]]\nmetric = "{}"\ncommit = "{}"\nreason = "wanted"\n'
    known.write_text(
        entry.format("tpot.mean_ms", f"{10:040x}")
        + entry.format("tpot.mean_ms", "f" * 40).replace("wanted", "old"),
        encoding="utf-8",
    )
    code, line, out, _ = call(*ask, "--known", known)
    assert (code, line["changes"][0]["state"], line["changes"][0]["reason"]) == (0, "known", "wanted")
    assert [one["reason"] for one in line["outdated"]] == ["old"]
    assert "outdated" in out


def test_a_change_that_went_away_is_fixed(made: Made, call: Call, tmp_path: Path) -> None:
    url = tmp_path / "history"
    nights(made, call, url, [10.0] * 9 + [12.0] * 9 + [10.0] * 9)
    code, line, _, _ = call("history", "changes", url, "--metric", "tpot.mean_ms")
    assert (code, [one["state"] for one in line["changes"]]) == (0, ["fixed", "better"])
    assert line["changes"][0]["fixed_by"] == f"{18:040x}"


BENCH = ROOT / "fixtures/bench"
ACROSS = [part for key in ("tool", "version", "model", "load", "data") for part in ("--across", key)]


def theirs(tmp_path: Path, name: str, factor: float = 1.0, **more: Any) -> Path:
    """Four results of vLLM in a folder of their own, a quarter of a percent apart."""
    found = json.loads((BENCH / "vllm-0.32.0.json").read_text(encoding="utf-8"))
    folder = tmp_path / name
    folder.mkdir()
    for number in range(4):
        by = factor * (1 + number / 400)
        scaled = {key: value * by for key, value in found.items() if key.endswith("_ms")}
        rate = {"output_throughput": found["output_throughput"] / by}
        path = folder / f"{number}.json"
        path.write_text(json.dumps(found | scaled | rate | more), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("factor", "code", "word"), [(1.0, 0, "pass"), (1.3, 1, "regression")])
def test_results_of_vllm_are_compared_as_they_are(
    call: Call, tmp_path: Path, factor: float, code: int, word: str
) -> None:
    left, right = theirs(tmp_path, "a"), theirs(tmp_path, "b", factor, date="20261202-030518")
    sides = [left / "0.json", right / "0.json"]
    more = [part for n in "123" for part in ("--more-a", left / f"{n}.json", "--more-b", right / f"{n}.json")]
    got, line, out, _ = call("compare", *sides, *more)
    assert (got, line["call"]) == (code, word)
    assert "vllm: its ITL is one sample per chunk: here icl" in out
    assert "nobody checked the answers" in out
    metric = line["cells"]["imported"]["metrics"]["tpot.mean_ms"]
    assert metric["worse_by"] == pytest.approx(factor - 1, abs=1e-9)
    assert call("compare", left, right)[:2] == (got, line)  # folders hold the same


def test_settings_that_a_tool_tells_must_agree(call: Call, tmp_path: Path) -> None:
    left = theirs(tmp_path, "a")
    for key, value, told in (
        ("model_id", "other", "model: peaked | other"),
        ("max_concurrency", 8, "load: all at once, 4 at a time | all at once, 8 at a time"),
        ("total_input_tokens", 400, "data: 385 prompt tokens in 12 requests | 400 prompt tokens"),
    ):
        code, line, _, _ = call("compare", left, theirs(tmp_path, key, **{key: value}))
        assert (code, told in line["error"]) == (2, True), line["error"]


def test_what_two_tools_define_alike_is_compared_and_the_rest_is_named(call: Call) -> None:
    pair = (BENCH / "guidellm-0.8.1.json", BENCH / "aiperf-0.13.0.json")
    code, line, _, _ = call("compare", *pair)
    assert (code, "tool: guidellm | aiperf" in line["error"]) == (2, True)
    code, line, out, _ = call("compare", *pair, *ACROSS)
    assert code == 125  # one run of either side
    gated = {name for name, one in line["cells"]["imported"]["metrics"].items() if one["effect"]}
    assert gated == {"ttft.median_ms", "ttft.p99_ms", "throughput.output"}
    assert "tpot.mean_ms is not compared: aiperf of B has nothing of this definition" in out
    assert "e2el.mean_ms is not compared: guidellm of A" in out


def test_a_run_of_another_tool_that_dropped_requests_is_not_fast(call: Call, tmp_path: Path) -> None:
    failed = theirs(tmp_path, "b", 0.5, failed=3)
    code, line, out, _ = call("compare", theirs(tmp_path, "a"), failed, *ACROSS)
    assert (code, line["call"]) == (125, "inconclusive")
    assert "not correct: 3 of 15 requests failed" in out
    nothing = BENCH / "guidellm-0.8.1-failed.json"
    code, _, out, _ = call("compare", BENCH / "guidellm-0.8.1.json", nothing, *ACROSS)
    assert (code, "not correct: nothing was completed" in out) == (125, True)


def test_ours_and_theirs_are_of_different_settings_until_that_is_meant(made: Made, call: Call) -> None:
    code, line, _, _ = call("compare", BENCH / "vllm-0.32.0.json", made("a"))
    assert (code, "hardware: (absent) | 2 CPUs" in line["error"]) == (2, True)


def test_a_history_takes_no_run_of_another_tool(made: Made, call: Call, tmp_path: Path) -> None:
    code, line, _, _ = call("history", "add", tmp_path / "h", BENCH / "vllm-0.32.0.json", "--commit", "a" * 7)
    assert code == 2
    assert "another tool made it" in line["error"]
    assert "specharness bench --base-url" in line["error"]


def changed(path: Path, **ours: Any) -> None:
    """Overwrites keys of our section; ``date`` is the result's own."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if "date" in ours:
        found["date"] = ours.pop("date")
    found["specharness"] |= ours
    path.write_text(json.dumps(found), encoding="utf-8")


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        ({"fingerprint": None}, "fingerprint None"),
        ({"fingerprint": {"k": 3}}, "expected an object of texts"),
        ({"metrics": [1]}, "metrics [1]"),
        ({"metrics": {"tpot.mean_ms": "fast"}}, "'tpot.mean_ms': 'fast'"),
        ({"metrics": {"tpot.mean_ms": float("nan")}}, "expected a finite number or null"),
        ({"metrics": {"tpot.mean_ms": 10**400}}, "expected a finite number or null"),
        ({"metrics": {"tpot.n": float("inf")}}, "expected a finite number or null"),
        ({"health": [1]}, "of another form"),
        ({"health": {"client_bound": True, "because": 3}}, "of another form"),
        ({"invalid_because": 3}, "of another form"),
        ({"date": "yesterday"}, "date 'yesterday'"),
        ({"date": None}, "date None"),
    ],
)
def test_a_damaged_result_is_one_message(made: Made, call: Call, ours: dict[str, Any], told: str) -> None:
    run = made("a")
    changed(run / "result-free-mtp.json", **ours)
    code, line, _, _ = call("compare", run, made("b"))
    assert code == 2
    assert told in line["error"]
    assert str(run) in line["error"]
    assert "next:" in line["error"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compare", "{gone}", "{a}"], "no such file"),
        (["compare", "{empty}", "{a}"], "saw no result-*.json"),
        (["compare", "{text}", "{a}"], "expected a result of vLLM, SGLang, GuideLLM or AIPerf"),
        (["calibrate", "{text}"], "cannot be read as JSON"),
        (["compare", "{b}", "{a}", "--more-b", "{a}"], "is the same run as"),
        (["compare", "{a}", "{a}"], "is the same run as"),
        (["compare", "{a}", "{b}", "--cell", "guided-mtp"], "no 'guided-mtp'"),
        (["compare", "{a}", "{b}", "--trim", "0.6"], "trim: saw 0.6"),
        (["compare", "{a}", "{b}", "--effect", "tpot"], "expected METRIC=SHARE"),
        (["compare", "{a}", "{b}", "--effect", "tpot.mean_ms=-1"], "the practical effect of tpot.mean_ms"),
        (["compare", "{a}", "{b}", "--calibration", "{text}"], "holds no noise floors"),
        (["compare", "{a}", "{b}", "--calibration", "{gone}"], "gone"),
        (["compare", "{a}"], "required: B"),
        (["calibrate", "{a}", "{b}"], "free-mtp: calibrate: saw 2 valid runs of 2, expected 4"),
        (["gate", "{a}"], "required: --history"),
        (["gate", "--history", "{gone}", "{a}"], "holds no runs"),
        (["gate", "--history", "{text}", "{a}"], "holds no runs"),
        (["gate", "--history", "nosuch://x", "{a}"], "cannot be opened"),
        (["gate", "--history", "{history}", "--series", "x"], "saw no run of series 'x'"),
        (["gate", "--history", "{history}", "{a}", "--known", "{gone}"], "no such file"),
        (["gate", "--history", "{history}", "{a}", "--markdown", "{empty}"], "cannot be written"),
        (["gate", "--history", "{history}", "{a}", "--junit", "{gone}/x.xml"], "cannot be written"),
        (["history", "list", "{gone}"], "holds no runs"),
        (["history", "list", "{history}", "--limit", "0"], "at least 1"),
        (["history", "add", "{history}", "{a}"], "says no commit"),
        (["history", "add", "{text}", "{a}", "--commit", "abc"], "cannot be written"),
        (["history", "changes", "{history}", "--known", "{text}"], "cannot be read"),
        (["history", "changes", "{history}", "--metric", "speed"], "no run of series 'nightly' has it"),
        (["history"], "required: WHAT"),
    ],
)
def test_what_cannot_be_done_is_one_message(
    made: Made, call: Call, tmp_path: Path, arguments: Sequence[str], told: str
) -> None:
    history, text, empty = tmp_path / "history", tmp_path / "text", tmp_path / "empty"
    text.write_text("no JSON = [", encoding="utf-8")
    empty.mkdir()
    places = {"a": made("a"), "b": made("b"), "text": text, "empty": empty, "history": history}
    call("history", "add", history, made("old", day=-1), "--commit", "a" * 40)
    code, line, _, err = call(*(one.format(gone=tmp_path / "gone", **places) for one in arguments))
    assert (code, line["error"].count("\n  next: ")) == (2, 1), line
    assert told in line["error"]
    assert told in err
    assert not (tmp_path / "gone").exists()
