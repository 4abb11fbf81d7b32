"""What a benchmark leaves for people: figures that are the run's own numbers, a page, Markdown, JUnit, all runs."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from cases.browser import runs
from cases.selfcheck.benching import said, shifted
from cases.selfcheck.test_report import Page
from harness.bench.block import ABSENT
from harness.bench.cells import OFF, Cell
from harness.bench.costs import Cost
from harness.bench.data.ask import Ask
from harness.bench.load.health import Health
from harness.bench.load.run import LoadResult
from harness.bench.measured import Measured, judged
from harness.bench.record import Outcome, RequestRecord
from harness.bench.screen import table
from harness.bench_pages import _page, _trends
from harness.cli import main
from harness.report.bench.acceptance import by_position, by_schema
from harness.report.bench.answers import exchanges
from harness.report.bench.benchmark import Benchmark, problems
from harness.report.bench.busy import against_concurrency
from harness.report.bench.distributions import distributions
from harness.report.bench.groups import groups, right
from harness.report.bench.summary import junit, markdown
from harness.report.bench.tiles import HEAD, rows
from harness.report.bench.timeline import timelines
from harness.report.bench.trend import trend
from harness.report.figure import ticks
from harness.report.html import MOST
from harness.report.index import entry, file_outcome, index
from harness.rundir import RunDir


def measured(
    records: list[RequestRecord], speculation: str = OFF, number: int | None = None, **health: Any
) -> Measured:
    load = LoadResult(records=tuple(records), health=Health(**health), transport="raw", why_transport="")
    asks = [Ask(id=one.id, prompt=(1,), max_tokens=9) for one in records]
    return judged(Cell(speculation=speculation, guided=False, number=number), asks, load, Path("nowhere"))


def benchmark(*cells: Measured, code: int = 0, **more: Any) -> Benchmark:
    return Benchmark(name="bench", run={"setting": {}}, cells=cells, verdict="as it is", code=code, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.two_by_two(tmp_path_factory.mktemp("reports"))


def test_the_page_is_whole_loads_nothing_and_tells_the_runs_own_figures(run: Path) -> None:
    text = (run / "index.html").read_text(encoding="utf-8")
    parsed = Page(text)
    files = {path.name for path in run.iterdir()}
    assert set(parsed.loads) <= files | {"run.json"}
    assert not {"script", "iframe", "img", "object"} & parsed.tags
    assert not re.search(r"https?:|@import|url\((?!#)", text)
    assert set(re.findall(r"url\(#([\w-]+)\)", text)) <= set(parsed.ids)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert set(parsed.goals) <= {f"#{name}" for name in parsed.ids}
    words = re.sub(r"\s+", " ", parsed.text)
    for name in ("free-off", "guided-mtp"):
        found = json.loads((run / f"result-{name}.json").read_text())["specharness"]["metrics"]
        for metric in ("throughput.output", "tpot.mean_ms", "ttft.median_ms"):
            told = format(found[metric], ".2f" if metric.startswith("tpot") else ".1f")
            assert f" {told} " in words, f"{name} {metric}"
    assert "Right answers, measured by a healthy client" in words
    assert "answers equal48 of 48" in words


def test_hills_and_their_table_are_the_metrics_of_all_runs_of_a_group() -> None:
    one = [shifted(said([10, 20, 30, 50], id=str(n)), n) for n in range(3)]
    other = [shifted(said([30, 60, 90], id=str(n)), n) for n in range(2)]
    cells = [measured(one, number=0), measured(other, number=1)]
    assert [len(group.runs) for group in groups(cells)] == [2]
    found = {figure.title.split(":")[0]: figure.rows for figure in distributions(groups(cells))}
    assert found["TTFT"] == (("free, speculation off", "5", "18", "10", "30", "30", "10", "30"),)
    ((_, n, mean, median, *_),) = found["ITL"]
    assert (n, mean, median) == ("13", "18.5", "20")  # nine gaps of 10, 10, 20 and four of 30


def test_a_wrong_cell_has_no_speed_anywhere_but_its_lanes_are_drawn() -> None:
    failed = [said([10, 20], id=str(n), outcome=Outcome.CUT, detail="boom") for n in range(3)]
    cells = [measured(failed), measured([said([10, 20, 30], id="0")], "mtp")]
    assert [group.title for group in right(cells)] == ["free, speculation mtp"]
    assert [figure.title for figure in timelines(cells)] == ["free, speculation off", "free, speculation mtp"]
    assert [told[:2] for told in problems(cells)] == [
        ("free, speculation off", "fail"),
        ("free, speculation off", "open"),
    ]
    assert next(problems(cells))[2].startswith("nothing was measured")
    told = markdown(benchmark(*cells, code=1, speculation="mtp"))
    assert "| free, speculation off | wrong | – | – | – |" in told
    assert "boom" in told
    suite = ElementTree.fromstring(junit(benchmark(*cells, code=1)))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "0")
    assert "3 of 3" in suite.findall("testcase/failure")[0].get("message", "")


def test_the_terminal_and_the_page_tell_a_cell_alike() -> None:
    """Same names, same figures: one that is added to either stands in both."""
    cells = [measured([said([10, 20, 31], id="0")], way) for way in (OFF, "mtp")]
    shown = table(cells, "cells")
    heads = [str(column.header) for column in shown.columns]
    assert sorted(heads) == sorted(HEAD)
    terminal = [
        dict(zip(heads, row, strict=True)) for row in zip(*(c.cells for c in shown.columns), strict=True)
    ]
    for row, told in zip(rows(cells), terminal, strict=True):
        here = dict(zip(HEAD, (row.title, row.verdict, *row.figures), strict=True))
        assert here == {name: "–" if value == ABSENT else value for name, value in told.items()}
        assert here["TPOT ms"] == "10.50"


def test_a_late_client_is_skipped_and_a_wrong_fix_fails() -> None:
    late = measured([said([10, 20], id="0")], because=("it slept",))
    wrong = Cost(old="a", new="b", guided=True, wrong=("b is wrong in 1 of 1 runs",))
    suite = ElementTree.fromstring(junit(benchmark(late, costs=(wrong,))))
    assert [case.find("skipped") is not None for case in suite] == [True, False]
    assert [case.find("failure") is not None for case in suite] == [False, True]
    assert "client-bound" in markdown(benchmark(late, code=125))


@pytest.mark.parametrize(
    ("intervals", "words"),
    [
        ({"speedup_free": [1.1, 1.9]}, "speed-up free 1.50 × (1.10 to 1.90)"),
        ({"speedup_free": None}, "speed-up free 1.50 × (too few requests)"),
        (None, "speed-up free 1.50 ×"),
        ({"speedup_free": "?"}, "speed-up free 1.50 × (too few requests)"),
    ],
)
def test_the_page_of_all_runs_says_how_far_a_ratio_is_known(
    tmp_path: Path, intervals: object, words: str
) -> None:
    (tmp_path / "bench-1").mkdir()
    (tmp_path / "bench-1/run.json").write_text("{}")
    file_outcome(tmp_path / "bench-1", {"exit": 0, "speedup_free": 1.5, "intervals": intervals})
    assert entry(tmp_path / "bench-1").figures == (words,)


def test_throughput_is_told_for_each_number_of_requests_under_way() -> None:
    """One request alone for 1 s gives 10 tokens, two of them 20 tokens in the next second."""
    tenths = [100 * n for n in range(1, 11)]
    alone = replace(said(tenths, id="a"), closed=1.0)
    pair = [replace(shifted(said(tenths, id=name), 1.0), closed=2.0) for name in "bc"]
    figure = against_concurrency(groups([measured([alone, *pair])]))
    assert figure is not None
    assert figure.rows == (
        ("free, speculation off", "1", "1.0", "10.0"),
        ("free, speculation off", "2", "1.0", "20.0"),
    )


def test_lanes_are_as_many_as_requests_were_under_way() -> None:
    records = [shifted(said([100, 900], id=str(n)), 0.31 * n) for n in range(9)]
    (figure,) = timelines([measured(records)])
    assert "at most 3 at a time" in figure.says
    many = [shifted(said([10, 20], id=str(n)), n / 100) for n in range(401)]
    (figure,) = timelines([measured(many)])
    assert "401 requests" in figure.says
    assert str(figure.pictures[0]).count("<path") < 100  # a curve, not a bar for each


def test_acceptance_by_position_and_schema() -> None:
    def record(name: str, guide: str | None, *accepted: int) -> RequestRecord:
        drafted = (3,) * len(accepted)
        return said([10, 20], id=name, guide=guide, drafted=drafted, accepted=accepted)

    cell = measured([record("a", None, *[3] * 10), record("b", "<address>", *[0] * 8)], "mtp")
    figure = by_position(groups([cell]))
    assert figure is not None
    assert [row[1:3] for row in figure.rows] == [(str(place), f"{10 / 18:.1%}") for place in (1, 2, 3)]
    schemas = by_schema(groups([cell]))
    assert schemas is not None
    assert schemas.rows == (("free", "4.00", "10", "1"), ("<address>", "1.00", "8", "1"))
    assert "&lt;address&gt;" in schemas.pictures[0]
    assert by_position(groups([measured([said([10, 20], id="0")])])) is None


def test_texts_that_are_cut_are_whole_beside_the_page(tmp_path: Path) -> None:
    long = "x" * (MOST + 1)
    answers = [
        said([10, 20], id="short", text="y" * MOST),
        said([10, 20], id="long", text=long, outcome=Outcome.CUT),
    ]
    found = {one.id: one for one in exchanges([measured(answers)], lambda name, guided: "asked", tmp_path)}
    assert list(found) == ["long", "short"]  # what went wrong is first
    assert found["long"].answer.text == long[:MOST]
    assert (tmp_path / found["long"].answer.whole).read_text() == long
    assert found["short"].answer.whole == ""
    assert [path.name for path in (tmp_path / "texts").iterdir()] == ["free-off-0-answer.txt"]


def test_markdown_holds_what_servers_say_as_text() -> None:
    cell = measured(
        [said([1, 2], id="0", outcome=Outcome.CUT, detail=f"| {runs.HOSTILE}\n# x [a](b) `c` @all")]
    )
    (line,) = [line for line in markdown(benchmark(cell, code=1)).splitlines() if "document.title" in line]
    assert not re.search(r"[<>`|@\[\]\u2028\x1b]", line)
    assert r"&#92;u2028" in line


def test_a_page_that_cannot_be_drawn_costs_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = SimpleNamespace(run_dir=RunDir.create(tmp_path, "bench", {}))
    found = benchmark(measured([said([10, 20, 30], id="0")]))
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert re.fullmatch(
        r"no page: vl_convert is not installed; pip install .*--resume .*", _page(session, found)
    )
    broken: Any = SimpleNamespace(vegalite_to_svg=lambda *_, **__: 1 / 0)
    monkeypatch.setitem(sys.modules, "vl_convert", broken)
    assert "fault of specharness: ZeroDivisionError" in _page(session, found)
    assert not (session.run_dir.path / "index.html").exists()


def test_a_run_with_a_history_shows_its_nights(run: Path) -> None:
    lines: list[str] = []
    cells = [SimpleNamespace(cell=Cell(speculation=OFF, guided=False))]
    args = SimpleNamespace(history=str(run.parent / "history"), series="nightly", no_page=False)
    session: Any = SimpleNamespace(args=args, run_dir=RunDir(run, {}), cells=cells, say=lines.append)
    ((title, one),) = _trends(session)
    assert (title, one.metric, len(one.nights)) == ("free, speculation off", "throughput.output", 60)
    assert [change.state.value for change in one.changes] == ["fixed", "better"]
    figure = trend(one)
    assert figure is not None
    levels = [float(figure.rows[place][3]) for place in (0, 30, -1)]  # the newest first
    assert levels == pytest.approx([200, 178.5, 200], rel=0.01)
    args.series = "another"
    assert _trends(session) == []
    (run.parent / "history" / "index.sqlite").unlink()
    next((run.parent / "history").rglob("*.parquet")).write_bytes(b"damaged")
    assert _trends(session) == []
    assert "no nights on the page" in lines[0]


def test_ticks_are_round_and_few() -> None:
    assert ticks(9, 31, 8) == [9, 10, 15, 20, 25, 30]
    assert ticks(0.9, 1100, 8) == [1, 3, 10, 30, 100, 300, 1000]
    assert ticks(0.9, 2e6, 5) == [10.0**n for n in range(7)]


def test_all_runs_have_a_line_whatever_became_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = RunDir.create(tmp_path, "bench", {}).path
    killed, damaged, older = (tmp_path / f"live-2026010{n}-000000-1" for n in (1, 2, 3))
    for folder in (killed, damaged, older):
        folder.mkdir()
        (folder / "run.json").write_text("not read")
    (damaged / "outcome.json").write_text("[" * 100_000)
    (older / "index.html").write_text("")
    file_outcome(whole, {"verb": "bench", "exit": 125, "speedup_free": 1.234, "verdict": "a <b>"})
    found = [entry(path) for path in (whole, older, damaged, killed)]
    assert [one.word for one in found] == ["undecided", "not kept", "damaged", "unfinished"]
    assert found[0].figures == ("speed-up free 1.23 ×",)
    parsed = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert "a <b>" in parsed.text
    places = [parsed.text.index(path.name) for path in (whole, older, damaged, killed)]
    assert places == sorted(places)  # the newest first
    assert main(["index", str(tmp_path)]) == 0
    assert main(["index", str(tmp_path / "nowhere")]) == 2
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["verb"] == "index"
    assert "No run yet" in index(tmp_path / "nowhere")
