"""The history: nothing lost, nothing half-written, the index never the truth."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest

from cases.selfcheck.bench_runs import SETTING, START, ms, per_second, run, runs
from harness.bench.history.dataset import Dataset
from harness.bench.history.history import History
from harness.bench.history.index import Index
from harness.bench.history.rows import SCHEMA, VERSION_KEY, from_parquet, to_parquet
from harness.bench.stats.fingerprint import identity
from harness.bench.stats.run import Direction, Run, Validity
from harness.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["folder", "file URL", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        name = uuid.uuid4().hex
        yield f"memory://{name}"
        fsspec.filesystem("memory").rm(f"/{name}", recursive=True)
    else:
        yield str(tmp_path / "history") if request.param == "folder" else (tmp_path / "history").as_uri()


def rich() -> Run:
    values = {"ttft_p99": ms(12.5, quantile=0.99, count=1000), "null": ms(None), "rate": per_second(0.0)}
    validity = Validity(correct=False, client_bound=True, why="<why> | \u2028 ü")
    return run(values, validity=validity, setting={"z": "1", "a": "ü"}, series="calibrate")


def test_a_run_comes_back_as_it_was(url: str) -> None:
    with History(url) as history:
        sent = [rich(), run({}), *runs([1.0, None, 3.0])]
        for one in sent:
            history.append(one)
        found = {one.id: one for one in history.runs()}
        assert found == {one.id: one for one in sent}
        assert list(found[sent[0].id].values) == ["ttft_p99", "null", "rate"]
        assert list(found[sent[0].id].fingerprint) == ["z", "a"]


def test_microseconds_and_time_zones_survive(url: str) -> None:
    east = datetime(2026, 1, 1, 1, 30, 0, 123457, tzinfo=timezone(timedelta(hours=5)))
    with History(url) as history:
        name = history.append(dataclasses.replace(run({}), time=east))
        (found,) = history.runs()
    assert found.time == east
    assert found.time.tzinfo is UTC
    assert name.startswith("runs/month=2025-12/"), "the month is that of UTC"


def test_files_lie_by_month_and_pandas_reads_them_all(tmp_path: Path) -> None:
    with History(str(tmp_path)) as history:
        for one in runs([1.0, 2.0, 3.0]):
            history.append(dataclasses.replace(one, time=one.time + timedelta(days=30) * (one.time.day - 1)))
    months = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert months == ["month=2026-03", "month=2026-04", "month=2026-05"]
    frame = pq.read_table(tmp_path / "runs").to_pandas()
    assert sorted(frame["value"]) == [1.0, 2.0, 3.0]
    assert set(frame["month"]) == {"2026-03", "2026-04", "2026-05"}


def test_questions_narrow_down(url: str) -> None:
    other = {**SETTING, "hardware": "L40S"}
    with History(url) as history:
        nightly = runs([1.0, 2.0, None, 4.0])
        elsewhere = run({"tpot": ms(9.0)}, day=1.5, setting=other, commit="b" * 40, series="calibrate")
        for one in [*nightly, elsewhere]:
            history.append(one)

        def numbers(**question: object) -> list[float | None]:
            return [one.values["tpot"].value for one in history.runs(**question)]

        assert numbers() == [1.0, 2.0, 9.0, None, 4.0]
        assert numbers(fingerprint=SETTING) == numbers(fingerprint=identity(SETTING)) == [1.0, 2.0, None, 4.0]
        assert numbers(metric="tpot") == [1.0, 2.0, 9.0, 4.0]
        assert numbers(metric="tpot", limit=2) == [9.0, 4.0]
        assert numbers(series="calibrate") == numbers(commit="bbb") == [9.0]
        assert numbers(commit="b_b") == numbers(commit="%") == numbers(metric="TPOT") == []
        assert numbers(since=START + timedelta(days=1), until=START + timedelta(days=2)) == [2.0, 9.0]
        with pytest.raises(UsageError, match="without a time zone"):
            numbers(since=datetime(2026, 3, 1))
        first, second = history.settings()
        assert (dict(first.fingerprint), first.runs) == (SETTING, 4)
        assert (dict(second.fingerprint), second.runs) == (other, 1)


def test_a_night_is_one_point_and_invalid_runs_are_none(url: str) -> None:
    broken = Validity(correct=False)
    with History(url) as history:
        for one in [
            run({"tpot": ms(4.0)}, commit="a" * 40),
            run({"tpot": ms(9.0)}, day=0.1, commit="b" * 40),
            run({"tpot": ms(1.0)}, day=0.2, validity=broken),
            run({"tpot": ms(0.0)}, day=1),
            run({"tpot": ms(5.0)}, day=2),
            run({"tpot": ms(5.0)}, day=3, series="compare"),
        ]:
            history.append(one)
        direction, nights = history.nights("tpot", fingerprint=SETTING)
    assert direction is Direction.LOWER
    assert [night.value for night in nights] == pytest.approx([6.0, 5.0])
    assert nights[0].commit == "b" * 40


def test_the_same_run_again_changes_nothing_and_another_of_its_name_is_refused(url: str) -> None:
    one = rich()
    with History(url) as history:
        history.append(one)
        history.append(one)
        assert history.runs() == (one,)
        with pytest.raises(UsageError, match="another run of this id"):
            history.append(dataclasses.replace(one, commit="c" * 40))
        assert history.runs() == (one,)


@pytest.mark.parametrize("name", ["", "../../evil", "a/b", ".hidden", "x" * 101])
def test_ids_that_are_no_file_names_are_refused(name: str, tmp_path: Path) -> None:
    with History(str(tmp_path / "h")) as history, pytest.raises(UsageError, match="run id"):
        history.append(dataclasses.replace(run({}), id=name))


# Writers


def write(url: str, writer: int, count: int) -> None:
    with History(url) as history:
        for at in range(count):
            history.append(dataclasses.replace(run({"tpot": ms(1.0)}, day=at), id=f"w{writer}-{at}"))
            if at % 5 == 0:
                history.runs(limit=1)  # questions of one writer bring the index up to date beside the others


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")  # a fork of pyarrow's threads may hang
    writers = [spawn.Process(target=write, args=(str(tmp_path), number, 15)) for number in range(3)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert [one.exitcode for one in writers] == [0] * 3
    with History(str(tmp_path)) as history:
        assert len(history.runs()) == 45
        assert history.rebuild() == 45


KILLED = """
import sys
from harness.bench.history.history import History
from cases.selfcheck.bench_runs import ms, run
with History(sys.argv[1]) as history:
    while True:
        print(history.append(run({"tpot": ms(1.0)})), flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_runs_only(tmp_path: Path) -> None:
    told: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            told.append(line.strip())
            if len(told) == 20:
                writer.send_signal(signal.SIGKILL)
    with History(str(tmp_path)) as history:
        assert set(told) <= set(history.dataset.names())
        assert len(history.runs()) >= 20


class Interrupted(Exception):
    pass


def test_a_run_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever instant the writer dies in: the file appears under its name by one move."""
    dataset = Dataset(str(tmp_path))

    def dies(*_: object, **__: object) -> None:
        raise Interrupted

    monkeypatch.setattr(dataset.fs, "mv", dies)
    with pytest.raises(Interrupted):
        dataset.append(rich())
    assert dataset.names() == {}
    leftover = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert [name.startswith("_") and not name.endswith(".parquet") for name in leftover] == [True]
    assert pq.read_table(tmp_path / "runs").num_rows == 0


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file stands here")
    with pytest.raises(UsageError, match="cannot be written"):
        Dataset(str(tmp_path)).append(rich())


def test_an_unknown_protocol_is_one_clear_error() -> None:
    with pytest.raises(UsageError, match="cannot be opened"):
        History("nonsense://bucket/history")


# The index


def test_the_index_is_made_anew_where_it_is_lost_damaged_or_old(tmp_path: Path) -> None:
    index = tmp_path / "index.sqlite"
    with History(str(tmp_path)) as history:
        for one in runs([1.0, 2.0]):
            history.append(one)
        expected = history.runs()

    def damage() -> None:
        index.write_bytes(b"this is no database" * 100)

    def damage_inside() -> None:
        whole = index.read_bytes()
        index.write_bytes(whole[:4096] + bytes(255 for _ in whole[4096:]))  # the header stays as it is

    def age() -> None:
        with sqlite3.connect(index) as db:
            db.execute("PRAGMA user_version = 99")
            db.execute("DELETE FROM metrics")
        db.close()

    for spoil in (index.unlink, damage, damage_inside, age):
        spoil()
        with History(str(tmp_path)) as history:
            assert history.runs() == expected, spoil


def test_rebuilding_forgets_what_the_files_do_not_say(tmp_path: Path) -> None:
    with History(str(tmp_path)) as history:
        for one in runs([1.0, 2.0]):
            history.append(one)
        expected = history.runs()
        with sqlite3.connect(tmp_path / "index.sqlite") as db:
            db.execute("UPDATE metrics SET value = 7")
        db.close()
        assert history.runs() != expected
        assert history.rebuild() == 2
        assert history.runs() == expected


def test_a_file_that_is_taken_away_is_no_longer_there(tmp_path: Path) -> None:
    with History(str(tmp_path)) as history:
        names = [history.append(one) for one in runs([1.0, 2.0])]
        assert len(history.runs()) == 2
        (tmp_path / names[0]).unlink()
        assert [one.values["tpot"].value for one in history.runs()] == [2.0]


def test_what_another_index_appended_is_seen(tmp_path: Path) -> None:
    with History(str(tmp_path)) as here, History(str(tmp_path), tmp_path / "other.sqlite") as there:
        assert here.runs() == ()
        there.append(rich())
        assert len(here.runs()) == 1


def test_an_id_in_two_files_is_refused_and_the_index_stays_as_it_was(tmp_path: Path) -> None:
    dataset, index = Dataset(str(tmp_path)), Index(None)
    one = rich()
    name = dataset.append(one)
    dataset.write(name.replace("runs/month=", "runs/month=9"), dataset.content(name))  # somebody's copy
    with pytest.raises(UsageError, match="stands in"):
        index.sync(dataset)
    assert index.ask("SELECT COUNT(*) FROM runs") == [(0,)]


# Versions


def test_files_of_another_version_and_damaged_ones_are_named(tmp_path: Path) -> None:
    history = History(str(tmp_path))
    place = tmp_path / history.append(rich())
    table = pq.read_table(place, schema=SCHEMA)
    for spoil, complaint in {
        "newer": "saw history schema 2, expected 1",
        "foreign": "saw history schema none",
        "cut": "is no Parquet file",
        "columns": "does not hold what its schema says",
    }.items():
        if spoil == "cut":
            place.write_bytes(to_parquet(rich())[:-10])
        elif spoil == "columns":
            pq.write_table(table.drop_columns(["commit"]), place)
        else:
            pq.write_table(
                table.replace_schema_metadata({VERSION_KEY: b"2"} if spoil == "newer" else {}), place
            )
        history = History(str(tmp_path), tmp_path / f"{spoil}.sqlite")
        with pytest.raises(UsageError, match=complaint) as refusal:
            history.runs()
        assert place.name in str(refusal.value)


def test_the_schema_of_version_1_is_pinned() -> None:
    """Whoever changes a column raises the version, and keeps reading this one."""
    data = to_parquet(rich())
    assert from_parquet(data, "here")[0].id
    assert [f"{field.name}: {field.type}" for field in SCHEMA] == [
        "run: string",
        "time: timestamp[us, tz=UTC]",
        "commit: string",
        "series: string",
        "fingerprint: string",
        "setting: string",
        "correct: bool",
        "client_bound: bool",
        "why: string",
        "metric: string",
        "value: double",
        "unit: string",
        "direction: string",
        "quantile: double",
        "count: int64",
    ]
