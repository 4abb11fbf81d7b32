"""Bisection over releases and over commits, and the table: against made-up releases and made-up suspects."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from harness import cli
from harness.bisect import KNOWN, Boundary, Symptoms, bisect, released
from harness.errors import EngineError, HarnessError, TargetError, Unsupported, UsageError
from harness.lab import Lab, Plan
from harness.models.tiny import ensure
from harness.run import Judge
from harness.rundir import RunDir
from harness.scenario import Request, Scenario
from harness.suspects import Cell, EngineSuspect
from harness.targets.protocols import EngineTarget
from harness.targets.registry import TargetOptions, open_target
from harness.targets.upstream.metadata_versions import version_key
from harness.upstream_table import judge_once, judge_releases, markdown
from harness.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]
LINE = [f"0.{minor}.0" for minor in range(1, 17)]
BROKEN, HARMLESS = "conv: tokens are mixed", "conv: known and not looked for"


def silent(line: str) -> None:
    """Progress nobody reads."""


class Fake:
    """Releases in which something is broken from one index to another; counts how often it is asked."""

    def __init__(self, broken: range, unjudged: Sequence[str] = ()) -> None:
        self.broken = {LINE[i] for i in broken}
        self.unjudged = unjudged
        self.asked: list[str] = []

    def __call__(self, release: str) -> Symptoms | None:
        self.asked.append(release)
        if release in self.unjudged:
            return None
        return frozenset({HARMLESS, BROKEN} if release in self.broken else {HARMLESS})


@pytest.mark.parametrize("at", range(1, len(LINE)))
@pytest.mark.parametrize("breaks", [True, False])
def test_every_boundary_is_found_in_few_tries(at: int, breaks: bool) -> None:
    fake = Fake(range(at, len(LINE)) if breaks else range(at))
    good, bad = (LINE[0], LINE[-1]) if breaks else (LINE[-1], LINE[0])
    found = bisect(LINE[::-1], good, bad, fake, silent)
    assert isinstance(found, Boundary)
    assert (found.last, found.first) == (LINE[at - 1], LINE[at])
    assert (found.symptoms, found.older_is_good, found.exit_code) == ({BROKEN}, breaks, 0)
    assert f"{LINE[at]} {'breaks' if breaks else 'repairs'} it" in str(found)
    assert len(fake.asked) <= 2 + 4
    assert len(set(fake.asked)) == len(fake.asked)


def test_a_release_that_cannot_be_judged_is_passed_over() -> None:
    found = bisect(LINE, LINE[0], LINE[-1], Fake(range(12, 16), unjudged=LINE[7:9]), silent)
    assert isinstance(found, Boundary)
    assert (found.last, found.first, found.skipped, found.exit_code) == (LINE[11], LINE[12], (), 0)


def test_a_boundary_among_those_is_undecided_and_says_so() -> None:
    found = bisect(LINE, LINE[0], LINE[-1], Fake(range(8, 16), unjudged=LINE[6:10]), silent)
    assert isinstance(found, Boundary)
    assert (found.last, found.first, found.skipped) == (LINE[5], LINE[10], tuple(LINE[6:10]))
    assert found.exit_code == 125
    assert "cannot be judged" in str(found)


def test_neighbours_need_no_try_between_them() -> None:
    fake = Fake(range(5))
    found = bisect(LINE, LINE[5], LINE[4], fake, silent)
    assert isinstance(found, Boundary)
    assert (found.first, len(fake.asked)) == (LINE[5], 2)


def test_ends_that_tell_nothing_apart_are_no_bisection() -> None:
    same = bisect(LINE, LINE[0], LINE[1], Fake(range(0)), silent)
    assert same == f"{LINE[1]} shows nothing that {LINE[0]} does not show too"
    assert "cannot be judged" in str(
        bisect(LINE, LINE[0], LINE[1], Fake(range(0), unjudged=LINE[:1]), silent)
    )


@pytest.mark.parametrize(("good", "bad"), [("9.9.9", LINE[0]), (LINE[0], "main"), (LINE[0], LINE[0])])
def test_ends_that_are_no_two_releases_are_bad_input(good: str, bad: str) -> None:
    with pytest.raises(UsageError):
        bisect(LINE, good, bad, Fake(range(0)), silent)


def test_releases_come_from_the_package_index(tmp_path: Path) -> None:
    (tmp_path / "pip.py").write_text(
        "print('vllm (0.3.0)')\nprint('Available versions: 0.3.0, 0.2.0.post1, 0.2.0rc1')"
    )
    assert released("vllm", silent, pip=(sys.executable, str(tmp_path / "pip.py"))) == [
        "0.3.0",
        "0.2.0.post1",
    ]


@pytest.mark.parametrize("pip", [("false",), ("no-such-pip-anywhere",)])
def test_without_an_index_the_known_releases_serve_and_that_is_said(pip: tuple[str, ...]) -> None:
    told: list[str] = []
    assert released("vllm", told.append, pip=pip) == list(KNOWN)
    assert "known here" in told[0]
    assert sorted(KNOWN, key=version_key) == list(KNOWN)


SCENARIOS = [
    Scenario(name=name, requests=(Request(id="r", prompt=(1,), max_tokens=1),))
    for name in ("1 a", "1 b", "1 c")
]


class FakeSuspect:
    """A part that fails one scenario in one release; and another that is of no known layout."""

    name = "conv"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def left_out(self, scenario: Scenario) -> str | None:
        return "it is too long" if scenario.name == "1 c" else None

    def judge(self, release: str, scenarios: Sequence[Scenario]) -> Mapping[str, Cell]:
        self.asked.append(release)
        if release == "0.3.0":
            return {s.name: Cell(verdict=Verdict.UNSUPPORTED, summary="no such layout") for s in scenarios}
        bad = Cell(verdict=Verdict.FAIL, summary="step 1: tokens | mixed", symptoms=("wrong tokens",))
        good = Cell(verdict=Verdict.PASS, summary="4 steps")
        return {s.name: bad if release == "0.1.0" and s.name == "1 a" else good for s in scenarios}


def test_the_table_has_a_row_for_a_release_and_a_reason_for_every_cell(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path, "table", {"cells": {}})
    table = judge_releases(["0.1.0", "0.2.0", "0.3.0"], SCENARIOS, [FakeSuspect()], run_dir, silent)
    text = markdown(table, "specharness upstream-table", "seed 0")
    for line in (
        "Made by `specharness upstream-table` (seed 0). 4 of 6 cells are PASS or FAIL (66 %); 3 more are left out",
        "| 0.1.0 | **FAIL** wrong tokens | PASS |",
        "| 0.3.0 | UNSUPPORTED | UNSUPPORTED |",
        "| 0.1.0 | 1 | step 1: tokens \\| mixed |",
        "| 0.3.0 | 2 | no such layout |",
        "Left out, as it is too long: 1 c.",
    ):
        assert line in text, text


def test_a_cell_that_is_known_is_not_asked_again(tmp_path: Path) -> None:
    suspect = FakeSuspect()
    run_dir = RunDir.create(tmp_path, "bisect", {"cells": {}})
    first = judge_once("0.1.0", SCENARIOS, suspect, run_dir, silent)
    again = judge_once("0.1.0", SCENARIOS, suspect, RunDir.resume(run_dir.path), silent)
    assert again == first
    assert suspect.asked == ["0.1.0"]


def test_kernels_of_a_release_are_judged_by_the_states_they_leave() -> None:
    """The variants of the embedded engine stand for releases."""
    folder = ensure("peaked")
    lab = Lab(folder, ROOT / "fixtures")
    plans = {f"r{i}": Plan(guided=True, turns=((n, n), (n, 1))) for i, n in enumerate((3, 1))}
    scenario = lab.forced("rows of 4 and 2", k=3, plans=plans)
    under = open_target("embedded", TargetOptions(folder=folder))

    def open_release(name: str) -> EngineTarget:
        if name == "0.1.0":
            raise Unsupported("no such kernel")
        if name == "0.2.0":
            raise TargetError("the package index does not answer")
        return under(name)

    suspect = EngineSuspect(
        "conv", open_release, lambda scenario: None, under("fixed"), Judge(folder), silent
    )
    cells = {
        name: suspect.judge(name, [scenario])[scenario.name]
        for name in ("0.1.0", "0.2.0", "before-fix", "fixed")
    }
    assert [cell.verdict.value for cell in cells.values()] == ["UNSUPPORTED", "INCONCLUSIVE", "FAIL", "PASS"]
    assert cells["before-fix"].symptoms == ("state",)
    assert "step 1" in cells["before-fix"].summary
    assert "no such kernel" in cells["0.1.0"].summary


ENDS: list[tuple[Exception | int, int, int]] = [
    (0, 0, 0),
    (1, 1, 1),
    (125, 125, 125),
    (Unsupported("cannot"), 125, 125),
    (EngineError("died"), 1, 1),
    (UsageError("bad input"), 2, 128),
    (HarnessError("ours"), 3, 129),
    (ValueError("ours"), 3, 129),
]


@pytest.mark.parametrize(("end", "plain", "bisecting"), ENDS, ids=lambda value: str(value) or "none")
def test_bisecting_moves_what_says_nothing_of_a_commit_above_127(
    end: Exception | int,
    plain: int,
    bisecting: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def repro(args: object) -> dict[str, object]:
        if isinstance(end, Exception):
            raise end
        return {"verb": "repro", "exit": end}

    monkeypatch.setattr(cli, "_repro", repro)
    for words, code in ((["repro", "1"], plain), (["repro", "1", "--bisect"], bisecting)):
        assert cli.main(words) == code
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["exit"] == code


def test_a_word_that_is_no_argument_stops_a_bisection(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["repro", "1", "--bisect", "--no-such-thing"]) == 128
    assert cli.main(["repro", "1", "--no-such-thing"]) == 2
    capsys.readouterr()


Git = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def history(tmp_path: Path) -> Git:
    """Ten commits of a fork: its suspect is right in the first six, except that one cannot be judged, then wrong."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        identity = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    git("init", "-q", ".")
    for i in range(10):
        (tmp_path / "exit").write_text("125" if i == 4 else "0" if i < 6 else "1")
        (tmp_path / "number").write_text(str(i))
        git("add", ".")
        git("commit", "-qm", f"commit {i}")
    return git


SHIM = """
    import sys
    from pathlib import Path
    from harness import cli
    from harness.errors import UsageError

    def repro(args):
        code = int(Path("exit").read_text())
        if args.seed == 9:
            raise UsageError("no such model")
        return {"verb": "repro", "exit": code}

    cli._repro = repro
    sys.exit(cli.main(["repro", "24881", "--bisect", *sys.argv[1:]]))
"""


def test_git_bisect_run_finds_the_commit(
    history: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shim = tmp_path.parent / f"{tmp_path.name}-shim.py"
    shim.write_text(dedent(SHIM))
    history("bisect", "start", "HEAD", "HEAD~9")
    answer = history("bisect", "run", sys.executable, str(shim))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "commit 6" in history("show", "-s", "--format=%s", "refs/bisect/bad").stdout


def test_git_bisect_run_stops_at_an_error_of_ours(
    history: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shim = tmp_path.parent / f"{tmp_path.name}-shim.py"
    shim.write_text(dedent(SHIM))
    history("bisect", "start", "HEAD", "HEAD~9")
    answer = history("bisect", "run", sys.executable, str(shim), "--seed", "9")
    assert answer.returncode != 0
    assert "128" in answer.stdout + answer.stderr
