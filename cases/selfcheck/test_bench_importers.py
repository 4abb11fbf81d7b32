"""Result files that other tools really wrote, in our names: what their words mean is not what ours do."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bench.block import block
from harness.bench.history.results import read_all
from harness.bench.importers.imported import Imported
from harness.bench.importers.pasted import from_block
from harness.bench.importers.reading import import_file, import_text
from harness.bench.metrics.compat import CHAT, compat
from harness.bench.metrics.summary import summarise
from harness.errors import HarnessError, UsageError

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "bench"


def one(name: str) -> Imported:
    (run,) = import_file(FIXTURES / name)
    return run


def raw(name: str) -> dict[str, Any]:
    return json.loads((FIXTURES / name).read_text(encoding="utf-8"))


# vLLM: 12 requests against our own server, MTP k = 3, with --save-detailed


def test_vllms_own_figures_come_out_of_its_raw_data() -> None:
    told, run = raw("vllm-0.32.0.json"), one("vllm-0.32.0.json")
    again = compat(run.records, dialect=CHAT, percentiles=(50, 90, 99))
    same = [key for key in again if key.endswith("_ms")]
    assert len(same) == 24
    for key in [*same, "completed", "failed", "total_input_tokens", "total_output_tokens"]:
        assert again[key] == pytest.approx(told[key], rel=1e-12), key
    assert again["max_output_tokens_per_s"] == told["max_output_tokens_per_s"]
    assert again["max_concurrent_requests"] == told["max_concurrent_requests"] == 8
    assert summarise(run.records).concurrency is not None
    assert summarise(run.records).concurrency.peak == 4


def test_vllms_block_comes_out_of_its_json_to_the_letter() -> None:
    printed = (FIXTURES / "vllm-0.32.0.txt").read_text(encoding="utf-8").rstrip("\n")
    assert block(one("vllm-0.32.0.json").result) == printed
    assert block(from_block(printed)[0].result) == printed


def test_vllms_itl_is_ours_between_chunks() -> None:
    told, run = raw("vllm-0.32.0.json"), one("vllm-0.32.0.json")
    assert run.tool == "vllm"
    assert run.model == "peaked"
    assert run.metrics["icl.mean_ms"] == told["mean_itl_ms"]
    assert run.metrics["acceptance.rate"] == pytest.approx(189 / 261)
    assert run.metrics["acceptance.length"] == pytest.approx(1 + 189 / 87)
    assert run.metrics["chunks.tokens_per_chunk"] == pytest.approx(told["mean_itl_ms"] / told["mean_tpot_ms"])
    assert not any(key.startswith("itl_") for key in run.metrics)


def test_vllms_zeros_of_a_run_without_success_are_no_figures() -> None:
    told = {
        key: 0.0 if key.endswith(("_ms", "throughput")) else value
        for key, value in raw("vllm-0.32.0.json").items()
    }
    (run,) = import_text(json.dumps(told | {"completed": 0, "failed": 12}))
    assert run.metrics["failed"] == 12
    assert {value for key, value in run.metrics.items() if key not in ("completed", "failed")} == {None}
    assert run.warnings == ("nothing was completed: none of its figures was measured",)


def test_a_failed_request_of_vllm_stays_one() -> None:
    told = raw("vllm-0.32.0.json")
    told["errors"][3] = "Traceback"
    (run,) = import_text(json.dumps(told | {"failed": 1}))
    assert sum(record.outcome.name == "COMPLETE" for record in run.records) == 11
    assert "1 requests failed" in run.warnings


@pytest.mark.parametrize(
    "spoil",
    [
        lambda told: told.pop("itls"),
        lambda told: told["ttfts"].pop(),
        lambda told: told.update(itls=3),
        lambda told: told["itls"].__setitem__(0, "x"),
        lambda told: told["itls"][0].__setitem__(0, None),
        lambda told: told["ttfts"].__setitem__(0, None),
    ],
)
def test_raw_data_that_does_not_fit_gives_figures_and_no_records(spoil: Any) -> None:
    told = raw("vllm-0.32.0.json")
    spoil(told)
    (run,) = import_text(json.dumps(told))
    assert run.records == ()
    assert run.metrics["ttft.mean_ms"] == told["mean_ttft_ms"]


# SGLang: 8 requests against a mock server of 40 ms TTFT and 5 ms per token


def test_sglangs_latency_lasts_until_the_stream_is_closed() -> None:
    told, run = raw("sglang-0.5.23.jsonl"), one("sglang-0.5.23.jsonl")
    assert run.tool == "sglang"
    assert run.metrics["until_closed.mean_ms"] == told["mean_e2e_latency_ms"]
    assert not any(key.startswith("e2el.") for key in run.metrics)
    assert "mean_e2el_ms" not in block(run.result)
    assert run.metrics["icl.p95_ms"] == told["p95_itl_ms"]
    assert run.metrics["throughput.total"] == told["total_throughput"]
    assert run.metrics["concurrency.mean"] == told["concurrency"]
    assert any("mean TTFT is 2.3 x the median" in line for line in run.warnings)


@pytest.mark.parametrize(
    ("backend", "accept", "ours"),
    [
        ("vllm", 2.5, "icl"),
        ("sglang", None, "itl_amortised"),
        ("sglang-native", 2.5, "itl_amortised"),
        ("sglang-oai", None, "icl"),
        ("sglang-oai", 2.5, "itl_amortised"),
        ("sglang-oai-chat", 2.5, "itl_amortised"),
    ],
)
def test_sglangs_itl_depends_on_its_backend(backend: str, accept: float | None, ours: str) -> None:
    told = raw("sglang-0.5.23.jsonl") | {"backend": backend, "accept_length": accept}
    (run,) = import_text(json.dumps(told))
    assert run.metrics[f"{ours}.mean_ms"] == told["mean_itl_ms"]
    assert ("icl.mean_ms" in run.metrics) == (ours == "icl")
    assert any("server's lifetime" in note for note in run.notes) == (accept is not None)


def test_every_line_of_sglangs_file_is_a_run() -> None:
    line = (FIXTURES / "sglang-0.5.23.jsonl").read_text()
    assert [run.tool for run in import_text(line + "\n" + line)] == ["sglang", "sglang"]


def test_sglangs_block_is_known_for_what_it_is() -> None:
    pasted, run = one("sglang-0.5.23.txt"), one("sglang-0.5.23.jsonl")
    assert pasted.tool == "sglang"
    for key in ("completed", "throughput.total", "until_closed.p99_ms", "icl.median_ms", "concurrency.mean"):
        assert pasted.metrics[key] == pytest.approx(run.metrics[key], abs=0.0051), key


# GuideLLM


def test_guidellms_words_mean_other_things() -> None:
    figures, run = raw("guidellm-0.8.1.json")["benchmarks"][0]["metrics"], one("guidellm-0.8.1.json")
    assert (run.tool, run.version, run.model) == ("guidellm", "0.8.1", "peaked")
    itl = figures["inter_token_latency_ms"]["successful"]
    assert run.metrics["itl_request_mean.mean_ms"] == run.metrics["tpot.mean_ms"] == itl["mean"]
    assert run.metrics["guidellm.tpot.mean_ms"] == figures["time_per_output_token_ms"]["successful"]["mean"]
    assert run.metrics["until_closed.median_ms"] == pytest.approx(
        figures["request_latency"]["successful"]["median"] * 1000
    )
    assert (
        run.metrics["ttft.p99.9_ms"] == figures["time_to_first_token_ms"]["successful"]["percentiles"]["p999"]
    )
    assert run.metrics["completed"] == 8
    assert run.metrics["duration_s"] == pytest.approx(0.785, abs=0.001)
    assert "mean_itl_ms" not in run.result


def test_guidellms_run_of_failures_has_no_figures() -> None:
    run = one("guidellm-0.8.1-failed.json")
    assert (run.metrics["completed"], run.metrics["failed"]) == (0, 6)
    assert run.metrics["ttft.mean_ms"] is None
    assert run.warnings == ("nothing was completed: none of its figures was measured",)
    assert "0.00" not in block(run.result)


# AIPerf


def test_aiperfs_metrics_have_their_units() -> None:
    told, run = raw("aiperf-0.13.0.json"), one("aiperf-0.13.0.json")
    assert (run.tool, run.version, run.model) == ("aiperf", "0.13.0", "peaked")
    assert run.metrics["ttft.mean_ms"] == pytest.approx(told["time_to_first_token"]["avg"])
    assert run.metrics["itl_request_mean.p99_ms"] == pytest.approx(told["inter_token_latency"]["p99"])
    assert run.metrics["icl.mean_ms"] == pytest.approx(told["inter_chunk_latency"]["avg"])
    assert run.metrics["duration_s"] == told["benchmark_duration"]["avg"]
    assert (run.metrics["completed"], run.metrics["failed"]) == (8, 0)
    told["time_to_first_token"] = {"unit": "ns", "avg": 46e6}
    assert import_text(json.dumps(told))[0].metrics["ttft.mean_ms"] == pytest.approx(46)


def test_an_aiperf_run_that_did_not_finish_says_so() -> None:
    told = raw("aiperf-0.13.0.json") | {
        "was_cancelled": True,
        "is_complete": False,
        "incomplete_reason": "stalled",
    }
    (run,) = import_text(json.dumps(told))
    assert "the run was cancelled" in run.warnings
    assert "the run is not complete: stalled" in run.warnings


# all of them


@pytest.mark.parametrize(
    "content", ["", "nope", "[]", "3", "{}", '{"a": 1}', "{", "[" * 100_000, "null\nnull"]
)
def test_what_nobody_wrote_is_one_clear_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="expected a result of vLLM, SGLang, GuideLLM or AIPerf"):
        import_file(path)


def test_files_that_cannot_be_read_are_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "bytes"):
        with pytest.raises(UsageError, match="cannot be read"):
            import_file(path)


def leaves(value: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    return [where, *(path for key, one in inner for path in leaves(one, (*where, key)))]


JUNK = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.just([])
    | st.just({})
    | st.just([{}])
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_and_never_a_traceback(data: st.DataObject) -> None:
    name = data.draw(
        st.sampled_from(
            ["vllm-0.32.0.json", "sglang-0.5.23.jsonl", "guidellm-0.8.1.json", "aiperf-0.13.0.json"]
        )
    )
    told = raw(name)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(leaves(told)[1:]))
        holder: Any = told
        try:
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = deepcopy(data.draw(JUNK))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier damage took the place away
    try:
        for run in import_text(json.dumps(told)):
            block(run.result)
            summarise(run.records)
    except HarnessError:
        pass


def test_compare_parses_a_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result of another tool may have 100 MB, and whose it is was asked of it three times."""
    parsed: list[int] = []
    real = json.loads

    def loads(text: str, **how: Any) -> Any:
        parsed.append(len(text))
        return real(text, **how)

    monkeypatch.setattr(json, "loads", loads)
    (runs,) = read_all([FIXTURES / "vllm-0.32.0.json"], imports=True).values()
    assert len(runs) == 1
    assert len([size for size in parsed if size > 1000]) == 1
