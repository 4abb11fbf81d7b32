"""The console block and the JSON are vLLM's to the letter, and ours beside them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from benching import said, shifted

from harness.bench.block import block
from harness.bench.importers.pasted import from_block
from harness.bench.importers.reading import import_file
from harness.bench.metrics.compat import COMPLETIONS
from harness.bench.metrics.summary import summarise
from harness.bench.own_block import own_block
from harness.bench.record import Outcome, RequestRecord
from harness.bench.result import Setting, metrics_of, read_result, result, write_result
from harness.bench.validity import Judged, Validities, Validity
from harness.errors import UsageError

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "bench"
THREAD = (FIXTURES / "pr24957_serving_benchmark.txt").read_text(encoding="utf-8")
RUN = [
    replace(
        shifted(said([100, 130, 160, 190], [1, 3, 2, 4], id=f"r{i}"), by=0.3 * i),
        drafted=(3, 3, 3),
        accepted=(2, 1, 3),
        guide="person",
        cached_tokens=0,
    )
    for i in range(8)
]
DEAD = [replace(record, id=f"d{record.id}", outcome=Outcome.HTTP_ERROR, chunks=()) for record in RUN]
SETTING = Setting(model_id="tiny", max_concurrency=4, date=datetime(2026, 12, 1))
KEYS = (
    "date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness "
    "max_concurrency duration completed failed total_input_tokens total_output_tokens request_throughput "
    "request_goodput output_throughput total_token_throughput input_lens output_lens ttfts itls latencies "
    "start_times queue_times generated_texts errors max_output_tokens_per_s max_concurrent_requests rtfx "
    "spec_decode_acceptance_rate spec_decode_acceptance_length spec_decode_num_drafts "
    "spec_decode_draft_tokens spec_decode_accepted_tokens spec_decode_per_position_acceptance_rates "
    "mean_ttft_ms median_ttft_ms std_ttft_ms p50_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms "
    "std_tpot_ms p50_tpot_ms p99_tpot_ms mean_itl_ms median_itl_ms std_itl_ms p50_itl_ms p99_itl_ms "
    "mean_e2el_ms median_e2el_ms std_e2el_ms p50_e2el_ms p99_e2el_ms specharness"
).split()


def made(records: list[RequestRecord], **more: object) -> dict[str, object]:
    return result(SETTING, records, summarise(records), percentiles=(50.0, 99.0), **more)


def labels(shown: str) -> list[str]:
    return [line[:40].rstrip() if line[:1] not in "-=" else line for line in shown.splitlines()]


def test_the_block_of_the_thread_is_read_and_printed_to_the_letter() -> None:
    (run,) = import_file(FIXTURES / "pr24957_serving_benchmark.txt")
    assert block(run.result, "vllm-0.10.2") == THREAD.rstrip("\n")
    assert run.metrics["throughput.output"] == 1348.89
    assert run.metrics["tpot.mean_ms"] == 6.88
    assert run.metrics["icl.mean_ms"] == 19.42
    assert run.metrics["chunks.tokens_per_chunk"] == pytest.approx(2.8, abs=0.05)
    assert run.warnings[0].startswith("mean TTFT is 3.2 x the median: a few requests paid for warm-up")


@pytest.mark.parametrize(
    "mangled",
    [
        THREAD.replace("\n", "\r\n"),
        "\n".join(f"> {line}" for line in THREAD.splitlines()),
        "\n".join(f"    {line}" for line in THREAD.splitlines()),
        "Namespace(backend='vllm')\n100%|####| 100/100\n" + THREAD + "\nthanks for the fix!\n",
        THREAD.replace("540.71", "\x1b[1m540.71\x1b[0m"),
        "```\n" + THREAD.rstrip() + "```",
    ],
    ids=["windows", "quoted", "indented", "in a log", "coloured", "fenced"],
)
def test_a_pasted_block_is_read_however_it_was_pasted(mangled: str) -> None:
    (run,) = from_block(mangled)
    assert run.result == from_block(THREAD)[0].result


def test_two_blocks_in_one_paste_are_two_runs() -> None:
    first, second = from_block(THREAD + THREAD.replace("1348.89", "1400.00"))
    assert (first.result["output_throughput"], second.result["output_throughput"]) == (1348.89, 1400.0)


@pytest.mark.parametrize(
    "nothing", ["", "hello", "==== Serving ====", "= Serving Benchmark Result =\nnothing: 3"]
)
def test_what_is_no_block_is_refused(nothing: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        from_block(nothing)


def test_the_current_block_has_the_labels_of_vllm_0_33_0_in_their_order() -> None:
    shown = block(made(RUN, limits={"ttft": 1.0}))
    assert labels(shown) == [
        "============ Serving Benchmark Result ============",
        "Successful requests:",
        "Failed requests:",
        "Maximum request concurrency:",
        "Benchmark duration (s):",
        "Total input tokens:",
        "Total generated tokens:",
        "Request throughput (req/s):",
        "Request goodput (req/s):",
        "Output token throughput (tok/s):",
        "Peak output token throughput (tok/s):",
        "Peak concurrent requests:",
        "Total token throughput (tok/s):",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):",
        "Median TTFT (ms):",
        "P50 TTFT (ms):",
        "P99 TTFT (ms):",
        "-----Time per Output Token (excl. 1st token)------",
        "Mean TPOT (ms):",
        "Median TPOT (ms):",
        "P50 TPOT (ms):",
        "P99 TPOT (ms):",
        "---------------Inter-token Latency----------------",
        "Mean ITL (ms):",
        "Median ITL (ms):",
        "P50 ITL (ms):",
        "P99 ITL (ms):",
        "----------------End-to-end Latency----------------",
        "Mean E2EL (ms):",
        "Median E2EL (ms):",
        "P50 E2EL (ms):",
        "P99 E2EL (ms):",
        "---------------Speculative Decoding---------------",
        "Acceptance rate (%):",
        "Acceptance length:",
        "Drafts:",
        "Draft tokens:",
        "Accepted tokens:",
        "Per-position acceptance (%):",
        "  Position 0:",
        "  Position 1:",
        "  Position 2:",
        "=" * 50,
    ]
    assert "Mean ITL (ms):                           30.00     " in shown.splitlines()
    assert "  Position 1:                            66.67     " in shown.splitlines()


def test_the_block_of_0_10_2_knows_neither_failures_nor_drafts() -> None:
    shown = block(made(RUN), "vllm-0.10.2")
    assert "Total Token throughput (tok/s):" in shown
    assert not any(word in shown for word in ("Failed", "Peak", "Acceptance", "goodput"))
    with pytest.raises(UsageError, match="expected one of"):
        block({}, "vllm-0.9")


@pytest.mark.parametrize("style", ["vllm-0.10.2", "current"])
def test_a_block_that_is_read_back_is_the_result_to_two_decimals(style: str) -> None:
    told = made(RUN, clocks=("ttft", "tpot", "itl", "e2el", "client_queue_time"), limits={"tpot": 1.0})
    (back,) = from_block(block(told, style))
    assert len(back.result) > 20
    for key, value in back.result.items():
        assert value == pytest.approx(told[key], abs=0.0051), key


def test_a_rate_is_shown_where_there_was_one() -> None:
    told = result(replace(SETTING, request_rate=2.5, max_concurrency=None), RUN, summarise(RUN))
    assert "Request rate configured (RPS):           2.50      " in block(told).splitlines()
    assert "Maximum request concurrency" not in block(told)
    assert told["request_rate"] == 2.5
    assert made(RUN)["request_rate"] == "inf"


def test_the_json_has_vllms_keys_in_its_order_and_one_of_ours() -> None:
    told = made(RUN, detailed=True)
    assert list(told) == KEYS
    kept = [key for key in made(RUN) if key in KEYS]
    gone = {"input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors"}
    assert kept == [key for key in KEYS if key not in gone]
    json.dumps(told, allow_nan=False)
    assert told["specharness"]["acceptance_by_guide"]["person"]["steps"] == 24


def test_nothing_measured_is_null_in_the_json_and_absent_in_the_block(tmp_path: Path) -> None:
    told = made(DEAD)
    assert told["mean_ttft_ms"] is None
    assert told["output_throughput"] is None
    shown = block(told)
    assert "Mean TTFT (ms):                          n/a       " in shown.splitlines()
    assert "0.00" not in shown.replace("100.00", "").split("Total input")[1]
    ours = told["specharness"]
    assert isinstance(ours, dict)
    assert ours["valid"] is False
    assert "nothing was measured" in ours["invalid_because"][0]
    write_result(told, tmp_path / "r.json")
    (back,) = import_file(tmp_path / "r.json")
    assert back.metrics["ttft.mean_ms"] is None


def test_a_result_is_written_whole_and_read_back(tmp_path: Path) -> None:
    told = made(RUN, detailed=True)
    write_result(told, tmp_path / "run.json")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert read_result(tmp_path / "run.json") == json.loads(json.dumps(told))
    flat = metrics_of(read_result(tmp_path / "run.json"))
    assert flat["compat.mean_itl_ms"] == pytest.approx(30)
    assert flat["itl_amortised.mean_ms"] == pytest.approx(10)
    assert "compat.num_prompts" not in flat
    for content in ("", "[]", "{}", "nope", "[" * 10000):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(UsageError):
            read_result(tmp_path / "bad.json")


def test_details_give_the_records_back() -> None:
    told = made(RUN, detailed=True, dialect=COMPLETIONS)
    from harness.bench.importers.vllm import from_vllm

    records = from_vllm(json.loads(json.dumps(told))).records
    again = summarise(records)
    ours = summarise(RUN)
    for name in ("ttft", "tpot", "icl", "e2el"):
        before, after = ours.clocks[name], again.clocks[name]
        assert before is not None
        assert after is not None
        assert (after.n, after.mean) == (before.n, pytest.approx(before.mean))
    assert again.clocks["itl_amortised"] is None  # tokens of a chunk are not in it


def test_our_block_says_what_vllms_cannot() -> None:
    judged = Validities(
        answers=tuple(
            Judged(id=record.id, guide="person", validity=Validity.TRUNCATED if i else Validity.VALID)
            for i, record in enumerate(RUN)
        )
    )
    found = summarise(RUN + DEAD[:1], limits={"ttft": 1.0}, invalid=judged.invalid)
    told = result(SETTING, RUN, found, validity=judged)
    assert metrics_of(told)["validity.share"] == 0.125
    assert "validity.share" not in metrics_of(made(RUN))
    shown = own_block(found, judged)
    lines = shown.splitlines()
    assert {len(line) for line in lines[: lines.index("=" * 50) + 1]} <= {50, 51}
    for wanted in (
        "Streams complete:                        8         ",
        "  http error:                            1         ",
        "Mean inter-chunk latency (ms):           30.00     ",
        "Mean ITL, amortised (ms):                10.00     ",
        "Tokens per chunk:                        2.50      ",
        "  truncated by length:                   7         ",
        "Valid goodput (%):                       11.11     ",
    ):
        assert wanted in lines, shown
    assert any(line.startswith("INVALID RUN: 1 of 9 streams failed") for line in lines)


def test_our_block_prints_no_percentile_without_its_number() -> None:
    lines = own_block(summarise(RUN)).splitlines()
    assert "Samples (requests):                      8         " in lines
    assert any(line.startswith("note: P99 of 8 samples") for line in lines)
