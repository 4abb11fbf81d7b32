"""Small parts that a benchmark's figures rest on, timed alone: `make micro`. Not part of `make test`.

Times go into a history (`make micro HISTORY=...`), where a change of 10 % matters; nothing is asserted about them here.
Kernels are timed on a GPU only: under the interpreter, or as torch twins on a CPU, they say nothing about kernels.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from harness.bench.load.call import completion
from harness.bench.load.reply import Reply
from harness.bench.load.sse import Framer
from harness.bench.metrics.summary import flat, summarise
from harness.bench.record import Chunk, Kind, Outcome, RequestRecord
from harness.engine.guided import Grammars, Vocabulary
from harness.engine.kernels.samples import QWEN3_NEXT, Row, batch
from harness.engine.kernels.select import select

Timed = Callable[..., object]
CHUNKS = 1000
READS = [
    b'data: {"id":"cmpl-1","object":"text_completion","model":"tiny","choices":[{"index":0,"text":" word%d",'
    b'"logprobs":null,"finish_reason":null}]}\n\n' % place
    for place in range(CHUNKS)
]
SCHEMA = json.dumps({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels are timed on a GPU only")


def test_sse_parser_1000_chunks(benchmark: Timed) -> None:
    def parse() -> int:
        framer, reply = Framer(), Reply(completion("r", "tiny", [1, 2], CHUNKS), 0.0, 0.0)
        for at, read in enumerate(READS):
            for event in framer.feed(read):
                reply.reads(event, at * 1e-3, False)
        return len(reply.record(1.0).chunks)

    assert benchmark(parse) == CHUNKS


def test_metrics_1000_records(benchmark: Timed) -> None:
    records = [
        RequestRecord(
            id=f"r{n}",
            scheduled=n * 0.01,
            sent=n * 0.01,
            closed=n * 0.01 + 1.0,
            outcome=Outcome.COMPLETE,
            chunks=tuple(
                Chunk(at=n * 0.01 + 0.1 + at * 0.014, kind=Kind.CONTENT, tokens=1 + at % 3)
                for at in range(64)
            ),
            prompt_tokens=64,
            completion_tokens=sum(1 + at % 3 for at in range(64)),
        )
        for n in range(1000)
    ]
    found = benchmark(lambda: flat(summarise(records)))
    assert isinstance(found, dict)
    assert found["completed"] == 1000


def test_mask_fill_8_rows_of_4(benchmark: Timed, peaked: Path) -> None:
    grammars = Grammars(Vocabulary.load(peaked))
    guides = [grammars.guide("json_schema", SCHEMA) for _ in range(8)]
    text = '{"'
    drafts = [list(_legal(guides[0], grammars, 3, text))] * 8
    masks = benchmark(lambda: grammars.masks(guides, drafts))
    assert isinstance(masks, torch.Tensor)
    assert len(masks) == 8 * 4


def _legal(guide: object, grammars: Grammars, count: int, text: str) -> list[int]:
    """Drafts that the grammar allows: the first allowed token, again and again."""
    found: list[int] = []
    for _ in range(count):
        row = grammars.masks([guide], [found])[-1]
        word = int(torch.nonzero(row)[0])
        bits = int(row[word]) & 0xFFFFFFFF
        found.append(32 * word + (bits & -bits).bit_length() - 1)
    return found


@on_a_gpu
@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("kernel", ["conv_update", "gdn_verify"])
def test_kernel(benchmark: Timed, kernel: str, rows: int) -> None:
    kernels = select("triton", "cuda").kernels
    sample = batch(QWEN3_NEXT, [Row(length=4)] * rows, device="cuda", dtype=torch.bfloat16)
    positional, named = (
        (sample.conv(), sample.update()) if kernel == "conv_update" else (sample.gdn(), sample.verify())
    )
    call = getattr(kernels, kernel)

    def launch() -> None:
        call(*positional, **named)
        torch.cuda.synchronize()

    launch()  # compiled
    benchmark.extra_info["device"] = torch.cuda.get_device_name()
    benchmark(launch)
