"""The table by several processes, and the table of a GPU beside the CPU's: made-up suspects, real processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from harness import cli
from harness.codec import encode
from harness.errors import EngineError
from harness.rundir import RunDir
from harness.scenario import Request, Scenario
from harness.suspects import Cell, Suspect, Tell
from harness.targets.registry import left_out
from harness.upstream_native import Native
from harness.upstream_table import Table, judge_releases
from harness.upstream_workers import judge_ahead
from harness.verdict import Verdict

RELEASES = ["0.1.0", "0.2.0", "0.3.0"]
SCENARIOS = [
    Scenario(name=name, requests=(Request(id="r", prompt=(1,), max_tokens=1),))
    for name in ("1 a", "1 b", "1 c")
]


class Part:
    """A suspect that says which process asked it, and ends it where it is told so."""

    def __init__(self, name: str, deadly: str | None) -> None:
        self.name = name
        self._deadly = deadly

    def left_out(self, scenario: Scenario) -> str | None:
        return "it is too long" if scenario.name == "1 c" else None

    def judge(self, release: str, scenarios: Sequence[Scenario]) -> Mapping[str, Cell]:
        if release == self._deadly:
            os._exit(9)
        said = f"{release} by {os.getpid()}"
        return {scenario.name: Cell(verdict=Verdict.PASS, summary=said) for scenario in scenarios}


def parts(tell: Tell, deadly: str | None = None) -> list[Suspect]:
    return [Part("conv", deadly), Part("recurrence", deadly)]


def never(tell: Tell) -> list[Suspect]:
    raise AssertionError("nothing is left to judge")


def run_dir_in(folder: Path) -> RunDir:
    return RunDir.create(folder, "table", {"cells": {}})


def test_workers_judge_everything_once_and_the_table_finds_it(tmp_path: Path) -> None:
    run_dir, told = run_dir_in(tmp_path), list[str]()
    judge_ahead(parts, RELEASES, SCENARIOS, run_dir, told.append, 2)
    assert told[0] == "6 entries to judge, 2 at a time"
    assert sorted(told[1:]) == sorted(
        f"{r}  {part}: judged" for r in RELEASES for part in ("conv", "recurrence")
    )
    resumed = RunDir.resume(run_dir.path)
    table = judge_releases(RELEASES, SCENARIOS, parts(told.append, deadly="0.1.0"), resumed, told.append)
    assert table.decided == (12, 12)
    said = {cell.summary for cells in table.cells.values() for cell in cells.values()}
    assert all(not text.endswith(f" by {os.getpid()}") for text in said), "the parent judged something itself"
    assert {text.split()[0] for text in said} == set(RELEASES)


def test_what_is_recorded_is_not_asked_of_a_worker_again(tmp_path: Path) -> None:
    run_dir, told = run_dir_in(tmp_path), list[str]()
    run_dir.record("conv", "0.1.0", {"1 a": {"verdict": "FAIL", "summary": "known"}})
    judge_ahead(parts, RELEASES[:2], SCENARIOS, run_dir, told.append, 1)
    assert told[0] == "3 entries to judge, 1 at a time"
    assert run_dir.cell("conv", "0.1.0") == {"1 a": {"verdict": "FAIL", "summary": "known"}}


def test_a_worker_that_dies_is_one_clear_error_and_loses_nothing_else(tmp_path: Path) -> None:
    run_dir, told = run_dir_in(tmp_path), list[str]()
    with pytest.raises(EngineError, match="worker process died") as caught:
        judge_ahead(partial(parts, deadly="0.3.0"), RELEASES, SCENARIOS, run_dir, told.append, 1)
    assert str(run_dir.path) in str(caught.value.hint)
    assert RunDir.resume(run_dir.path).cell("recurrence", "0.2.0") is not None
    judge_ahead(parts, RELEASES, SCENARIOS, run_dir, told.append, 2)
    assert run_dir.cell("conv", "0.3.0") is not None


def test_natural_runs_are_interpreted_only_where_somebody_asks_for_them() -> None:
    natural = Scenario(name="1 n", requests=SCENARIOS[0].requests)
    assert "too long" in str(left_out("vllm==", "cpu", natural))
    assert left_out("vllm==", "cpu", natural, natural=True) is None
    assert left_out("vllm==", "cuda", natural) is None
    padded = replace(natural, capture_sizes=(4,))
    assert "metadata builder" in str(left_out("vllm==", "cpu", padded, natural=True)), "other reasons stay"


PASS = Cell(verdict=Verdict.PASS, summary="")


def fail(kind: str) -> Cell:
    return Cell(verdict=Verdict.FAIL, summary=f"step 2, r0 | {kind}", symptoms=(kind,))


def table_of(cells: Mapping[str, Cell]) -> Table:
    return Table(
        releases=("0.1.0",),
        scenarios=tuple(SCENARIOS),
        cells={("conv", "0.1.0"): cells},
        left_out={"conv": {}},
        searches={},
    )


def native_of(tmp_path: Path, cells: Mapping[str, Cell]) -> Native:
    run_dir = run_dir_in(tmp_path)
    run_dir.run |= {"command": "specharness upstream-table --device cuda", "made_with": "a card"}
    run_dir.record("conv", "0.1.0", {name: encode(cell) for name, cell in cells.items()})
    run_dir.record("conv, small batches", "0.1.0", {"reason": "not asked"})
    return Native.of(RunDir.resume(run_dir.path))


def test_verdicts_that_agree_are_counted(tmp_path: Path) -> None:
    cells = {"1 a": PASS, "1 b": fail("state")}
    text = native_of(tmp_path, cells).compared(table_of(cells), "specharness upstream-table")
    assert "Made by `specharness upstream-table --device cuda` (a card)." in text
    assert "**2 of 2 verdicts agree**" in text
    assert "with those of a CPU:\n`specharness upstream-table`." in text
    assert "| conv | 0.1.0 | 2 | 1 | 1 | 0 | 2 |" in text
    assert "differ" not in text
    assert "alone" not in text


@pytest.mark.parametrize("gpu", [PASS, fail("crash")])
def test_a_verdict_or_a_kind_that_differs_is_shown_with_both_sides(tmp_path: Path, gpu: Cell) -> None:
    text = native_of(tmp_path, {"1 a": gpu}).compared(table_of({"1 a": fail("state")}), "c")
    assert "**0 of 1 verdicts agree**" in text
    assert "conv, 0.1.0, 1 a: the verdicts differ." in text
    assert "- CPU: **FAIL** state: step 2, r0 \\| state" in text
    assert "- GPU: PASS" in text or "- GPU: **FAIL** crash: step 2, r0 \\| crash" in text


def test_what_the_gpu_judged_alone_agrees_with_nothing_and_is_listed(tmp_path: Path) -> None:
    text = native_of(tmp_path, {"1 a": PASS, "1 c": fail("state")}).compared(table_of({"1 a": PASS}), "c")
    assert "**1 of 1 verdicts agree**" in text
    assert "1 more cells were judged on the GPU alone." in text
    assert "| conv | 0.1.0 | 1 c | **FAIL** state | step 2, r0 \\| state |" in text


@pytest.mark.slow
def test_the_command_takes_workers_and_a_native_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that cannot exist is refused without a network, and both runs say so alike."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    words = ["upstream-table", "--json", "--issues", "24881", "--scenario", "a", "--releases", "0.0.0.0"]
    words += ["--suspects", "metadata", "--reports", str(tmp_path), "--out", str(tmp_path / "table.md")]
    assert cli.main([*words, "--workers", "2"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["cells"] == {"0.0.0.0 metadata builder": {"24881 a: the public dump": "INCONCLUSIVE"}}
    assert cli.main([*words, "--native", first["run_dir"]]) == 0
    assert "**1 of 1 verdicts agree**" in (tmp_path / "table.md").read_text(encoding="utf-8")
