"""Runs as Parquet tables: what is read back is what was measured, and a killed run leaves what it had."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from benching import chunk, said, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bench.metrics.summary import flat, summarise
from harness.bench.record import Chunk, Kind, Outcome, RequestRecord
from harness.bench.tables import read_run, read_runs, write_part, write_run
from harness.errors import UsageError

WORD = st.text(max_size=8)
MAYBE = st.none() | st.integers(0, 2**40)
SMALL = st.lists(st.integers(0, 2**20), max_size=4).map(tuple)
CHUNKS = st.lists(
    st.builds(
        Chunk,
        at=st.floats(0, 1e6),
        kind=st.sampled_from(Kind),
        tokens=st.none() | st.integers(0, 99),
        coalesced=st.booleans(),
    ),
    max_size=4,
).map(tuple)
RECORDS = st.lists(
    st.builds(
        RequestRecord,
        id=st.uuids().map(str),
        scheduled=st.floats(-10, 1e6),
        sent=st.floats(0, 1e6),
        closed=st.floats(0, 1e6),
        outcome=st.sampled_from(Outcome),
        chunks=CHUNKS,
        detail=WORD,
        status=MAYBE,
        finish_reason=st.none() | WORD,
        prompt_tokens=MAYBE,
        cached_tokens=MAYBE,
        completion_tokens=MAYBE,
        requested_tokens=MAYBE,
        guide=st.none() | WORD,
        text=WORD,
        token_ids=SMALL,
        drafted=SMALL,
        accepted=SMALL,
        warm_up=st.booleans(),
        extra=st.dictionaries(WORD, WORD, max_size=2),
    ),
    max_size=5,
)


@settings(max_examples=40, deadline=None)
@given(RECORDS)
def test_every_field_comes_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[RequestRecord]
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    write_part(folder, "a", 0, records)
    assert read_run(folder, "a").records == tuple(records)


def test_parts_and_row_make_one_run(tmp_path: Path) -> None:
    records = [said([100, 130], [1, 3], id=f"r{i}") for i in range(6)]
    for part in range(3):
        write_part(tmp_path, "night-1", part, records[2 * part : 2 * part + 2])
    write_part(tmp_path, "night", 0, [said([5, 6], id="other")])
    write_run(tmp_path, "night-1", {"seed": 3, "note": "<script>\u2028"})
    found = read_run(tmp_path, "night-1")
    assert found.records == tuple(records)
    assert found.about == {"seed": 3, "note": "<script>\u2028"}
    assert flat(summarise(found.records)) == flat(summarise(records))
    assert [record.id for record in read_run(tmp_path, "night").records] == ["other"]
    assert read_runs(tmp_path) == ["night", "night-1"]


def test_a_killed_run_leaves_the_parts_it_had_written(tmp_path: Path) -> None:
    write_part(tmp_path, "dead", 0, [said([100, 130])])
    (tmp_path / "requests" / ".dead-00001.part").write_bytes(b"half a")  # killed while it wrote the second
    write_part(tmp_path, "lost", 0, [stream(chunk(1))])
    (tmp_path / "requests" / "lost-00000.parquet").unlink()  # killed between chunks and requests
    found = read_run(tmp_path, "dead")
    assert (len(found.records), found.about) == (1, {})
    assert read_runs(tmp_path) == ["dead"]


def test_half_a_surrogate_pair_spoils_no_table(tmp_path: Path) -> None:
    write_part(tmp_path, "odd", 0, [said([1, 2], text="a\ud83db", id="x"), said([1, 2], text="ok")])
    assert [record.text for record in read_run(tmp_path, "odd").records] == ["a?b", "ok"]


def test_a_run_that_is_not_there_or_damaged_is_one_clear_error(tmp_path: Path) -> None:
    write_part(tmp_path, "one", 0, [said([1, 2])])
    with pytest.raises(UsageError, match="saw no run 'two', expected one of: one"):
        read_run(tmp_path, "two")
    with pytest.raises(UsageError, match="expected letters"):
        write_run(tmp_path, "../up", {})
    (tmp_path / "chunks" / "one-00000.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UsageError, match="cannot be read as a table"):
        read_run(tmp_path, "one")


def test_a_night_of_chunks_is_small_and_quick(tmp_path: Path) -> None:
    times = [20.0 * i for i in range(500)]
    records = [replace(said(times), id=f"r{i}") for i in range(200)]
    start = time.perf_counter()
    write_part(tmp_path, "night", 0, records)
    found = read_run(tmp_path, "night")
    assert time.perf_counter() - start < 10
    assert len(found.records) == 200
    assert (tmp_path / "chunks" / "night-00000.parquet").stat().st_size < 1_000_000  # 100,000 chunks
