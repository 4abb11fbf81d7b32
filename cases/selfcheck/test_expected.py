"""Known failures of a target are quiet while they stay as they are, and loud once they go, change or expire."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from harness import Lab, Plan
from harness.cli import main
from harness.errors import UsageError
from harness.expected import Expected, Settlement, read_expected, settle
from harness.run import Judgement
from harness.trace import Coordinate
from harness.verdict import Divergence, Evidence, Verdict

TODAY = date(2026, 12, 1)
ENTRY = Expected(
    scenario="d", check="state", cause="lost accepted tokens", issue="vllm#39273", expires=date(2027, 3, 1)
)
FILE = """
[[expected]]
scenario = "d"
check = "state"
cause = "lost accepted tokens"
issue = "vllm#39273"
expires = 2027-03-01
"""


def judged(verdict: Verdict, check: str = "state", cause: str | None = "lost accepted tokens") -> Judgement:
    where = Coordinate(step=2, request="r0", layer=0, tensor="conv")
    first = Divergence(kind="state", at=where, message="differs", cause=cause)
    failed = Evidence(check=check, verdict=verdict, summary="", divergences=(first,))
    return Judgement(
        scenario="d",
        target="embedded:as-merged",
        verdict=verdict,
        evidence=(failed,),
        observed={},
        first=first if verdict is Verdict.FAIL else None,
    )


def settled(judgement: Judgement, entry: Expected = ENTRY, today: date = TODAY) -> Settlement:
    return settle([entry], {("d", "as-merged"): judgement}, today)


def test_what_is_known_is_not_red() -> None:
    found = settled(judged(Verdict.FAIL))
    assert found.exit_code == 0
    assert not found.red
    assert "vllm#39273" in found.known[0]


def test_a_repaired_failure_is_red_until_its_entry_goes() -> None:
    found = settled(judged(Verdict.PASS))
    assert found.exit_code == 1
    assert "passes now" in found.red[0]
    assert "remove the entry" in found.red[0]


@pytest.mark.parametrize("verdict", [Verdict.INCONCLUSIVE, Verdict.UNSUPPORTED])
def test_a_failure_that_nobody_can_see_any_more_is_red(verdict: Verdict) -> None:
    assert settled(judged(verdict)).exit_code == 1


@pytest.mark.parametrize(
    "other",
    [judged(Verdict.FAIL, cause="lags"), judged(Verdict.FAIL, check="logits")],
    ids=["cause", "check"],
)
def test_another_failure_in_the_same_place_is_red(other: Judgement) -> None:
    found = settled(other)
    assert found.exit_code == 1
    assert "otherwise than expected" in found.red[0]


def test_an_entry_without_a_cause_takes_any() -> None:
    anything = Expected(scenario="d", check="state", issue="vllm#39273", expires=ENTRY.expires)
    assert settled(judged(Verdict.FAIL, cause="lags"), anything).exit_code == 0


def test_an_entry_expires() -> None:
    assert settled(judged(Verdict.FAIL), today=date(2027, 2, 28)).exit_code == 0
    found = settled(judged(Verdict.FAIL), today=date(2027, 3, 1))
    assert found.exit_code == 1
    assert "expired" in found.red[0]


def test_an_entry_speaks_of_its_own_cell_alone() -> None:
    cells = {("d", "fixed"): judged(Verdict.FAIL), ("e", "as-merged"): judged(Verdict.PASS)}
    for_one = Expected(
        scenario="d", variant="as-merged", check="state", issue="vllm#39273", expires=ENTRY.expires
    )
    found = settle([for_one], cells, TODAY)
    assert found.rest == (Verdict.FAIL, Verdict.PASS)
    assert found.exit_code == 1


def test_what_is_left_decides() -> None:
    cells = {("d", "as-merged"): judged(Verdict.FAIL), ("e", "as-merged"): judged(Verdict.INCONCLUSIVE)}
    assert settle([ENTRY], cells, TODAY).exit_code == 125


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(FILE)
    assert read_expected(path) == (ENTRY,)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[expected", "cannot be read"),
        ("a = 1", "expected \\[\\[expected\\]\\] entries"),
        ("expected = [1]", "entry 1: saw 1"),
        (FILE.replace('issue = "vllm#39273"', ""), "lacks issue"),
        (FILE.replace("2027-03-01", '"2027-03-01"'), "cannot use expires"),
        (FILE.replace("2027-03-01", "2027-03-01T00:00:00"), "cannot use expires"),
        (FILE + 'colour = "red"', "cannot use colour"),
    ],
)
def test_a_wrong_file_is_told_where(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        read_expected(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_expected(tmp_path / "none.toml")


# On the command line.

CASE = '''"""Told in our words."""
from harness import Plan, issue


@issue("tiny#1", title="a tiny case", variants=("as-merged", "fixed"))
def scenarios(lab):
    yield lab.forced("d", k=2, plans={"r0": Plan(turns=((2, 3), (0, 1), (1, 1))), "r1": Plan(turns=((2, 1), (1, 2)))})
'''
OF_ONE = FILE.replace("check =", 'variant = "as-merged"\ncheck =')
Call = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def call(peaked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """``specharness VERB WHAT`` on a case and a scenario that both lose accepted tokens in ``as-merged``, with a file
    of known failures: the JSON line, and all that was printed."""
    (tmp_path / "cases" / "issues").mkdir(parents=True)
    (tmp_path / "fixtures").mkdir()
    (tmp_path / "cases" / "issues" / "issue_1.py").write_text(CASE)
    plans = {"r0": Plan(turns=((2, 3), (0, 1), (1, 1))), "r1": Plan(turns=((2, 1), (1, 2)))}
    scenario = tmp_path / "d.json"
    scenario.write_text(Lab(peaked, tmp_path / "fixtures").forced("d", k=2, plans=plans).to_json())
    here = ["--cases", tmp_path, "--reports", tmp_path / "reports", "--model", peaked]

    def call(verb: str, known: str) -> tuple[dict[str, Any], str]:
        path = tmp_path / "expected.toml"
        path.write_text(known)
        what = "1" if verb == "repro" else scenario
        words = [verb, what, *here, "--kernels", "naive", "--device", "cpu", "--expected", path]
        code = main([str(word) for word in [*words, "--variant", "as-merged"]])
        out = capsys.readouterr().out
        line = json.loads(out.splitlines()[-1])
        assert line["exit"] == code
        return line, out

    return call


@pytest.mark.parametrize("verb", ["run", "repro"])
class TestCommandLine:
    def test_a_known_failure_exits_with_0(self, call: Call, verb: str) -> None:
        line, out = call(verb, OF_ONE)
        assert line["exit"] == 0
        assert line["variants"]["as-merged"]["verdict"] == "FAIL"
        assert line["known"] == ["'d' on as-merged: known, vllm#39273"]
        assert line["red"] == []
        assert line["known"][0] in out.splitlines()

    def test_a_failure_of_another_cause_and_one_that_nobody_knows_are_red(
        self, call: Call, verb: str
    ) -> None:
        line, out = call(verb, OF_ONE.replace("lost accepted tokens", "lags"))
        assert line["exit"] == 1
        assert "otherwise than expected" in line["red"][0]
        assert line["red"][0] in out.splitlines()
        line, _ = call(verb, OF_ONE.replace('"d"', '"another"'))
        assert (line["exit"], line["known"], line["red"]) == (1, [], [])

    def test_an_entry_that_names_no_variant_is_red_where_one_passes(self, call: Call, verb: str) -> None:
        line, _ = call(verb, FILE)
        assert line["exit"] == 1
        assert line["known"] == ["'d' on as-merged: known, vllm#39273"]
        assert [red.split(":")[0] for red in line["red"]] == ["'d' on fixed"]

    def test_a_wrong_file_costs_no_run(self, call: Call, verb: str, tmp_path: Path) -> None:
        line, _ = call(verb, "a = 1")
        assert line["exit"] == 2
        assert not (tmp_path / "reports").exists()
