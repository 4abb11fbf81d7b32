"""A run's directory: readable whenever the run is killed, completed by ``--resume``, and the same for the same seed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli import _parser, main
from harness.errors import UsageError
from harness.models.tiny import default_cache, ensure
from harness.rundir import RunDir, replay, slug
from harness.scenario import Scenario
from harness.targets.embedded import EmbeddedTarget
from harness.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("before-fix", "as-merged", "fixed")
NAMES = ("a: trims", "b: chain", "c: natural", "d: natural, tight", "e: more")
CASE = '''"""Five scenarios, so that a run can be killed among them."""
from harness import Documented, Lab, Plan, Request, issue

LOST = Documented(failure="state", layer=0)


@issue("tiny#1", title="several scenarios")
def scenarios(lab):
    turns = ((3, 4), (0, 1), (2, 1), (1, 2))
    yield lab.forced(
        "a: trims",
        k=3,
        plans={f"r{i}": Plan(guided=i == 0, turns=turns) for i in range(3)},
        documented={"as-merged": LOST},
    )
    yield lab.forced("b: chain", k=3, plans={f"r{i}": Plan(turns=lab.chain(8, k=3)) for i in range(3)})
    prompts = [lab.encode("The river runs, and the river runs, and the river"), lab.prompt(6)]
    requests = [
        Request(id=f"r{i}", prompt=prompt, max_tokens=32, ignore_eos=True) for i, prompt in enumerate(prompts)
    ]
    yield lab.natural("c: natural", requests=requests)
    yield lab.natural(
        "d: natural, tight",
        requests=requests,
        drafter="ngram",
        token_budget=5,
        documented={"as-merged": LOST},
    )
    yield lab.forced("e: more", k=2, plans={f"r{i}": Plan(turns=lab.chain(6, k=2)) for i in range(3)})
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "cases" / "issues").mkdir(parents=True)
    (folder / "cases" / "issues" / "issue_1.py").write_text(CASE)
    return folder


@pytest.fixture(scope="module")
def words(place: Path, peaked: Path) -> list[str]:
    """The command line without seed and place."""
    return [
        *("repro", "1", "--cases", str(place), "--json"),
        *("--model", str(peaked), "--kernels", "naive", "--device", "cpu"),
    ]


Finish = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def finish(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Finish:
    """Run to the end in this process: exit code and JSON line."""

    def run(*more: object, reports: Path = tmp_path) -> tuple[int, dict[str, Any]]:
        code = main([*words, "--reports", str(reports), *map(str, more)])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Every (scenario, variant) that a target runs from here on; A/A runs have names of their own."""
    seen: list[tuple[str, str]] = []
    real = EmbeddedTarget.run

    def counted(self: EmbeddedTarget, scenario: Scenario, *, reverse_rows: bool = False) -> Trace:
        seen.append((scenario.name, self.policy.name))
        return real(self, scenario, reverse_rows=reverse_rows)

    monkeypatch.setattr(EmbeddedTarget, "run", counted)
    return seen


@pytest.fixture(scope="module")
def left_whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run with seed 3 that nobody interrupted."""
    reports = tmp_path_factory.mktemp("whole")
    main([*words, "--reports", str(reports), "--seed", "3"])
    return only(reports)


@pytest.fixture(scope="module")
def whole(left_whole: Path) -> dict[str, Any]:
    """Its ``run.json``."""
    return run_of(left_whole)


def only(reports: Path) -> Path:
    (folder,) = (path for path in reports.iterdir() if path.is_dir())  # beside the page of all runs
    return folder


def run_of(folder: Path) -> dict[str, Any]:
    """``run.json``, as JSON is defined."""
    run: dict[str, Any] = json.loads((folder / "run.json").read_text(), parse_constant=pytest.fail)
    return run


def scenario_of(folder: Path, name: str) -> Scenario:
    return Scenario.read(folder / f"{slug(name)}.json")


def cells(run: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for scenario, variants in run["cells"].items():
        for variant in variants:
            yield scenario, variant


def test_a_whole_run_has_every_cell_and_says_what_it_was(whole: dict[str, Any]) -> None:
    assert set(cells(whole)) == {(name, variant) for name in NAMES for variant in VARIANTS}
    assert set(whole["gauges"]) == set(NAMES)
    assert whole["seed"] == 3
    assert whole["versions"]["torch"]
    assert {"target", "kernels", "device", "state_dtype", "variants"} <= set(whole)
    verdicts = {whole["cells"]["a: trims"][variant]["verdict"] for variant in VARIANTS}
    assert verdicts == {"FAIL", "PASS"}


def stopped(words: list[str], reports: Path, how: signal.Signals, cells_before: int) -> tuple[str, str]:
    """Start a run with seed 3, and stop it once some cells are recorded: what it printed."""
    run = subprocess.Popen(
        [sys.executable, "-m", "harness.cli", *words, "--reports", str(reports), "--seed", "3"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and run.poll() is None:
            found = list(reports.glob("*/run.json"))  # read while it is written: always whole
            if found and len(list(cells(run_of(found[0].parent)))) >= cells_before:
                break
            time.sleep(0.005)
        assert run.poll() is None, "it was over before it could be stopped"
    finally:
        run.send_signal(how)
        printed = run.communicate()
    return printed


def test_an_interrupted_run_says_how_to_go_on(words: list[str], tmp_path: Path) -> None:
    out, err = stopped(words, tmp_path, signal.SIGTERM, 1)
    assert json.loads(out.splitlines()[-1])["exit"] == 130
    assert f"--resume {only(tmp_path)}" in err
    assert "Traceback" not in err
    assert list(cells(run_of(only(tmp_path))))


def test_a_killed_run_is_readable_and_resume_completes_it_as_the_same_seed_did_elsewhere(
    words: list[str],
    finish: Finish,
    ran: list[tuple[str, str]],
    whole: dict[str, Any],
    left_whole: Path,
    tmp_path: Path,
) -> None:
    stopped(words, tmp_path, signal.SIGKILL, 4)
    folder = only(tmp_path)
    left = run_of(folder)
    recorded = set(cells(left))
    assert 4 <= len(recorded) < len(NAMES) * len(VARIANTS)
    for scenario, variant in recorded:
        assert left["cells"][scenario][variant] == whole["cells"][scenario][variant]
        assert scenario_of(folder, scenario).name == scenario
        assert scenario_of(folder, scenario) == scenario_of(left_whole, scenario)

    ran.clear()
    code, line = finish("--resume", folder, "--seed", 3)
    assert line["run_dir"] == str(folder)
    assert code == line["exit"] == 0
    again = {cell for cell in ran if cell[0] in NAMES and cell[1] != "fixed"} & recorded
    assert not again
    now = run_of(folder)
    assert now["cells"] == whole["cells"]
    assert now["gauges"] == whole["gauges"]
    assert (folder / "index.html").is_file()


@pytest.mark.parametrize(
    "lost",
    [
        {("a: trims", "before-fix")},
        {("b: chain", "fixed")},
        {("d: natural, tight", "as-merged")},
        {(name, variant) for name in NAMES[2:] for variant in VARIANTS},
        set(),
    ],
    ids=["one of a scenario", "the reference", "one that needs the reference", "the last three", "none"],
)
def test_resume_runs_what_is_missing_and_nothing_else(
    finish: Finish,
    ran: list[tuple[str, str]],
    whole: dict[str, Any],
    tmp_path: Path,
    lost: set[tuple[str, str]],
) -> None:
    folder = tmp_path / "interrupted"
    folder.mkdir()
    left = json.loads(json.dumps(whole))
    for scenario, variant in lost:
        del left["cells"][scenario][variant]
    for scenario in {scenario for scenario, _ in lost} - {scenario for scenario, _ in cells(left)}:
        left["gauges"].pop(scenario)
    (folder / "run.json").write_text(json.dumps(left))
    (folder / "run.json.new").write_text("{ half of a fi")
    code, line = finish("--resume", folder, "--seed", 3, reports=tmp_path / "unused")
    assert code == 0
    wanted = {cell for cell in ran if cell[0] in NAMES}
    extra = wanted - lost
    assert lost <= wanted
    assert extra <= {(scenario, "fixed") for scenario, _ in lost if scenario.startswith(("c", "d"))}
    assert run_of(folder)["cells"] == whole["cells"]
    assert {name: found["verdict"] for name, found in line["variants"].items()} == {
        "before-fix": "FAIL",
        "as-merged": "FAIL",
        "fixed": "PASS",
    }
    assert not (tmp_path / "unused").exists()


def test_another_seed_gives_other_scenarios(finish: Finish, left_whole: Path, tmp_path: Path) -> None:
    finish("--seed", 4, "--variant", "fixed", reports=tmp_path / "other")
    other = only(tmp_path / "other")
    for name in NAMES:
        one, different = (scenario_of(folder, name) for folder in (left_whole, other))
        assert one.name == different.name == name
        assert [r.prompt for r in one.requests] != [r.prompt for r in different.requests]
    assert {variants["fixed"]["verdict"] for variants in run_of(other)["cells"].values()} == {"PASS"}


def test_a_run_is_not_resumed_with_other_scenarios(
    finish: Finish, whole: dict[str, Any], tmp_path: Path, place: Path
) -> None:
    """Cells of one scenario say nothing of another that has its name."""
    folder = tmp_path / "interrupted"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(whole))
    assert finish("--resume", folder, "--seed", 3)[0] == 0
    case = place / "cases" / "issues" / "issue_1.py"
    try:
        case.write_text(CASE.replace("max_tokens=32", "max_tokens=31"))
        code, line = finish("--resume", folder, "--seed", 3)
    finally:
        case.write_text(CASE)
    assert code == 2
    assert "c-natural.json: the case builds another scenario now" in line["error"]
    assert "next: run it anew" in line["error"]


# The directory by itself.


def scenario(name: str = "A: one, two") -> Scenario:
    from harness.scenario import Request

    return Scenario(name=name, requests=(Request(id="r", prompt=(1,), max_tokens=1),))


def test_what_is_recorded_is_on_disk_at_once(tmp_path: Path) -> None:
    directory = RunDir.create(tmp_path / "deep" / "reports", "repro-1", {"seed": 1})
    assert run_of(directory.path) == {"seed": 1}
    directory.record("s", "fixed", {"verdict": "PASS"})
    directory.record("s", "as-merged", {"verdict": "FAIL"})
    there = RunDir.resume(directory.path)
    assert there.cell("s", "fixed") == {"verdict": "PASS"}
    assert there.cell("s", "as-merged") == {"verdict": "FAIL"}
    assert there.cell("s", "other") is None
    assert there.cell("t", "fixed") is None
    assert [path.name for path in directory.path.iterdir()] == ["run.json"]


def test_a_run_that_dies_while_it_writes_leaves_the_last_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDir.create(tmp_path, "repro-1", {"seed": 1})
    directory.record("s", "fixed", {"verdict": "PASS"})

    def half(self: Path, text: str, **_: Any) -> None:
        with self.open("w") as file:
            file.write(text[: len(text) // 2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half)
        with pytest.raises(KeyboardInterrupt):
            directory.record("s", "as-merged", {"verdict": "FAIL"})
    assert RunDir.resume(directory.path).cell("s", "fixed") == {"verdict": "PASS"}
    assert RunDir.resume(directory.path).cell("s", "as-merged") is None


def test_two_runs_of_one_process_in_one_second_have_two_directories(tmp_path: Path) -> None:
    made = [RunDir.create(tmp_path, "repro-1", {}).path for _ in range(4)]
    assert len(set(made)) == 4
    assert all((path / "run.json").is_file() for path in made)


def test_a_place_that_cannot_be_written_is_told_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for reports in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="cannot be created: Not a directory") as caught:
            RunDir.create(reports, "repro-1", {})
        assert "next: pass --reports FOLDER" in str(caught.value)


def test_a_scenario_is_written_as_run_takes_it(tmp_path: Path) -> None:
    directory = RunDir.create(tmp_path, "repro-1", {})
    path = directory.write_scenario(scenario())
    assert path.name == "a-one-two.json"
    assert Scenario.read(path) == scenario()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"preset": "flat", "layout": "replay", "graphs": "off", "state_dtype": "bfloat16"},
        {"preset": None, "model": "a folder", "device": "cpu", "kernels": "naive"},
        {"preset": "narrow", "target": "vllm==0.10.2", "device": None, "model": None},
    ],
)
def test_a_replay_is_a_command_with_the_settings_of_its_run(settings: dict[str, Any]) -> None:
    words = shlex.split(replay(settings, Path("s.json"), "fixed"))
    args = vars(_parser().parse_args(words[1:]))
    told = {name: str(args[name]) for name, value in settings.items() if value is not None}
    assert told == {name: value for name, value in settings.items() if value is not None}
    assert (args["verb"], args["scenario"], args["variant"]) == ("run", Path("s.json"), ["fixed"])


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a: the public dump", "a-the-public-dump"),
        ("b1: silent, rows (4,2)", "b1-silent-rows-4-2"),
        ("../../etc/passwd", "etc-passwd"),
        ("UPPER_case", "upper-case"),
    ],
)
def test_a_name_becomes_a_part_of_a_file_name(name: str, part: str) -> None:
    assert slug(name) == part


def test_a_run_of_an_earlier_version_had_what_came_later_as_it_was() -> None:
    """Runs that were made before `--layout` say none, and no argument could be the same as that."""
    asked = {"seed": 0, "device": "cpu", "layout": "slots", "state_dtype": "float32", "graphs": "on"}
    old = RunDir(Path("old"), {"seed": 0, "device": "cpu"})
    assert old.differing(asked) == []
    assert old.differing(asked | {"layout": "replay"}) == ["layout: 'slots' there, 'replay' here"]
    on_a_gpu = RunDir(Path("old"), {"device": "cuda"})
    assert on_a_gpu.differing({"device": "cuda", "graphs": "on", "seed": 0}) == [
        "graphs: nothing (of an earlier version) there, 'on' here",
        "seed: nothing (of an earlier version) there, 0 here",
    ]


def test_a_model_that_was_named_from_here_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ensure("narrow", cache=default_cache(os.environ)).resolve()
    path = tmp_path / "one.json"
    path.write_text(scenario().to_json(), encoding="utf-8")
    monkeypatch.chdir(model.parent)
    main(["run", str(path), "--variant", "fixed", "--model", model.name, "--reports", str(tmp_path)])
    run_dir = Path(json.loads(capsys.readouterr().out.splitlines()[-1])["run_dir"])
    assert f"--model {model} " in RunDir.resume(run_dir).replay("one", "fixed")
