"""Traces on disk: they come back equal, with and without what a target cannot tell, and junk is refused."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import UsageError
from harness.lab import Lab, Plan
from harness.targets.embedded import under_each_variant
from harness.trace import VERSION, Completion, Coordinate, Crash, RowTrace, StepTrace, Trace, Writes

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.fixture(scope="module")
def trace(peaked: Path) -> Trace:
    scenario = Lab(peaked, FIXTURES).forced(
        "on disk",
        k=2,
        plans={
            "r0": Plan(guided=True, turns=((2, 2), (0, 1))),
            "r1": Plan(prompt=9, arrival=1, turns=((1, 1),)),
        },
        capture_sizes=(8,),
        token_budget=6,
    )
    return under_each_variant(peaked, kernels="naive")("fixed").run(scenario)


def same(left: Any, right: Any) -> bool:
    """Equal in types, values, dtypes and shapes; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    if is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def saved(trace: Trace, folder: Path) -> Trace:
    trace.save(folder / "t.npz")
    return Trace.load(folder / "t.npz")


def test_a_trace_comes_back_equal(trace: Trace, tmp_path: Path) -> None:
    rows = [row for step in trace.steps for row in step.rows]
    assert any(row.mask is not None for row in rows)
    assert any(row.logits is None for row in rows)  # a piece of a prompt
    assert any(row.logits is not None and row.state is not None for row in rows)
    assert any(step.padded_rows for step in trace.steps)
    assert same(saved(trace, tmp_path), trace)


def test_the_comparison_above_sees_one_changed_number(trace: Trace) -> None:
    row = trace.steps[-1].rows[-1]
    assert row.state is not None
    other = replace(row.state, conv=row.state.conv + 1e-7)
    steps = (*trace.steps[:-1], replace(trace.steps[-1], rows=(replace(row, state=other),)))
    assert not same(replace(trace, steps=steps), trace)
    assert not same(replace(trace, notes={}), trace)
    assert not same(replace(trace, linear_layers=[0, 1, 2]), trace)


def test_a_trace_without_optional_parts_comes_back_equal(tmp_path: Path) -> None:
    row = RowTrace(
        request="a.b/c", prompt_tokens=2, kept=(), committed=(7,), num_computed=2, previous_accepted=1
    )
    bare = Trace(
        scenario="é",
        target="t",
        steps=(StepTrace(index=0, rows=(row,)),),
        completions={"a.b/c": Completion(tokens=(7,), finish_reason=None)},
        linear_layers=(),
    )
    assert same(saved(bare, tmp_path), bare)
    assert same(
        saved(replace(bare, steps=(), completions={}), tmp_path), replace(bare, steps=(), completions={})
    )


def test_a_crash_counts_and_numbers_that_are_none_come_back_equal(trace: Trace, tmp_path: Path) -> None:
    row = trace.steps[0].rows[0]
    assert row.state is not None
    broken = replace(row, state=replace(row.state, conv=np.full_like(row.state.conv, np.nan)))
    dead = replace(
        trace,
        steps=(
            replace(
                trace.steps[0], rows=(broken,), k=0, preempted=("r1",), writes=Writes(conv=(-1, 7), kv=(3,))
            ),
        ),
        counters={"num_drafts": 3},
        crash=Crash(step=1, kind="RuntimeError", message="shape '[15, -1]'\n é", where="conv.py:3 run"),
        compilations={"conv": 3},
        notes={"kernels": "naive"},
    )
    assert same(saved(dead, tmp_path), dead)


def write(path: Path, text: bytes, **arrays: Any) -> Path:
    np.savez_compressed(path, trace=np.frombuffer(text, dtype=np.uint8), **arrays)
    return path


def as_json(trace: Trace, folder: Path) -> dict[str, Any]:
    trace.save(folder / "whole.npz")
    with np.load(folder / "whole.npz") as arrays:
        content: dict[str, Any] = json.loads(bytes(arrays["trace"]).decode())
    return content


def test_a_trace_from_before_graphs_is_read(trace: Trace, tmp_path: Path) -> None:
    """It does not say what was replayed: nothing was."""
    whole = as_json(trace, tmp_path)
    for step in whole["steps"]:
        del step["replayed"]
    with np.load(tmp_path / "whole.npz") as kept:
        arrays = {name: kept[name] for name in kept.files if name != "trace"}
    assert same(Trace.load(write(tmp_path / "old.npz", json.dumps(whole).encode(), **arrays)), trace)


@pytest.mark.parametrize("version", [None, 0, VERSION + 1, str(VERSION)])
def test_a_trace_of_another_version_is_refused(trace: Trace, tmp_path: Path, version: Any) -> None:
    data = {**as_json(trace, tmp_path), "version": version}
    path = write(tmp_path / "other.npz", json.dumps(data).encode())
    with pytest.raises(
        UsageError, match=rf"other\.npz: saw a trace of version {version!r}, expected {VERSION}"
    ):
        Trace.load(path)


def test_what_is_no_trace_is_refused_with_its_path(trace: Trace, tmp_path: Path) -> None:
    whole = as_json(trace, tmp_path)
    paths = {
        "absent": tmp_path / "absent.npz",
        "a folder": tmp_path,
        "text": tmp_path / "text.npz",
        "empty": tmp_path / "empty.npz",
        "cut": tmp_path / "cut.npz",
        "no json": write(tmp_path / "nojson.npz", b"{"),
        "a list": write(tmp_path / "list.npz", b"[]"),
        "no text": write(tmp_path / "notext.npz", b"\xff"),
        "arrays lost": write(tmp_path / "lost.npz", json.dumps(whole).encode()),
        "no steps": write(tmp_path / "nosteps.npz", json.dumps({"version": VERSION}).encode()),
        "a field too many": write(
            tmp_path / "field.npz",
            json.dumps({**whole, "steps": [{"index": 0, "rows": [], "colour": 1}]}).encode(),
        ),
        "completions lost": write(
            tmp_path / "done.npz", json.dumps({"version": VERSION, "steps": [], "scenario": "x"}).encode()
        ),
    }
    paths["text"].write_text("hello")
    paths["empty"].write_bytes(b"")
    content = (tmp_path / "whole.npz").read_bytes()
    paths["cut"].write_bytes(content[: len(content) // 2])
    for what, path in paths.items():
        with pytest.raises(UsageError) as caught:
            Trace.load(path)
        assert f"{path}: is no readable trace" in str(caught.value), what
        assert caught.value.hint, what


def test_a_row_counts_its_tokens() -> None:
    base = {"request": "r", "num_computed": 9, "previous_accepted": 1}
    verify = RowTrace(prompt_tokens=0, kept=(1, 2), committed=(1, 5), **base)
    prompt = RowTrace(prompt_tokens=4, kept=(), committed=(), **base)
    assert (verify.tokens, verify.accepted) == (3, 2)
    assert (prompt.tokens, prompt.accepted) == (4, 0)


def test_the_least_coordinate_is_the_earliest() -> None:
    in_order = [
        Coordinate(step=0, layer=2, tensor="recurrent", request="r1", head=3),
        Coordinate(step=1),
        Coordinate(step=1, tensor="logits", request="r0"),
        Coordinate(step=1, layer=0, tensor="conv", request="r1"),
        Coordinate(step=1, layer=0, tensor="recurrent", request="r0", head=0),
        Coordinate(step=1, layer=0, tensor="recurrent", request="r0", head=2),
        Coordinate(step=1, layer=1, tensor="conv", request="r0"),
        Coordinate(step=2),
    ]
    backwards = in_order[::-1]
    assert sorted(backwards) == in_order


def test_a_coordinate_says_only_what_is_known() -> None:
    assert str(Coordinate(step=3)) == "step 3"
    whole = Coordinate(step=0, request="r1", layer=0, tensor="recurrent", head=0)
    assert str(whole) == "step 0, request r1, layer 0, recurrent, head 0"
