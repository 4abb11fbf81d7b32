"""The clients that are compared: ours, aiohttp, the stock one, and the request function that vLLM's own tool uses.

vLLM's function is taken out of the released wheel when it is needed, and run as it is.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.bench.load.call import CHAT, Call, chat
from harness.bench.load.clock import Clock
from harness.bench.load.collector import rarely_collecting
from harness.bench.load.drive import drive
from harness.bench.load.shape import Closed
from harness.bench.load.store import RecordFile
from harness.bench.load.transport import Endpoint, open_transport
from harness.bench.record import Outcome
from harness.targets.upstream.download import Wheel, fill

VLLM = "0.33.0"
CLIENTS = ("raw", "aiohttp", "openai", "vllm", "vllm-default-loop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a client says of one request, in seconds of the monotonic clock; ``stamps`` are its chunks with tokens."""

    id: str
    sent: float
    stamps: list[float]
    is_success: bool


def calls_for(lengths: Sequence[int]) -> list[Call]:
    """Chat calls of so many tokens each."""
    return [chat(f"call-{i}", "ticking", "tell me a story", length) for i, length in enumerate(lengths)]


async def run_ours(name: str, url: str, lengths: Sequence[int], streams: int, folder: Path) -> list[Seen]:
    """Ours as a run uses it: driven by a shape, parsed live, every record written to disk."""
    clock = Clock(0.0)
    transport = open_transport(Endpoint(url=url), clock, name)
    records: list[Any] = []
    with RecordFile(folder / f"{name}.jsonl") as file:

        def keep(record: Any) -> None:
            file.keep(record)
            records.append(record)

        with rarely_collecting():
            await drive(transport, calls_for(lengths), Closed(concurrency=streams), clock, keep)
    await transport.close()
    return [
        Seen(
            id=record.id,
            sent=record.sent,
            stamps=[chunk.at for chunk in record.chunks if chunk.kind.has_tokens],
            is_success=record.outcome is Outcome.COMPLETE,
        )
        for record in records
    ]


async def run_vllm(url: str, lengths: Sequence[int], streams: int, module: ModuleType) -> list[Seen]:
    """vLLM's function behind a semaphore and one session, as its ``bench serve`` calls it."""
    import aiohttp

    ask: Callable[..., Awaitable[Any]] = module.async_request_openai_chat_completions
    places = asyncio.Semaphore(streams)
    connector = aiohttp.TCPConnector(
        limit=streams,
        limit_per_host=streams,
        ttl_dns_cache=300,
        keepalive_timeout=60,
        enable_cleanup_closed=True,
    )
    async with aiohttp.ClientSession(
        connector=connector, trust_env=True, timeout=module.AIOHTTP_TIMEOUT
    ) as session:

        async def one(i: int, length: int) -> Any:
            told = module.RequestFuncInput(
                prompt="tell me a story",
                api_url=f"{url}{CHAT}",
                prompt_len=5,
                output_len=length,
                model="ticking",
                request_id=f"call-{i}",
            )
            async with places:
                return await ask(request_func_input=told, session=session)

        answers = await asyncio.gather(*(one(i, length) for i, length in enumerate(lengths)))
    return [_seen(i, answer) for i, answer in enumerate(answers)]


def _seen(i: int, answer: Any) -> Seen:
    stamps = [answer.start_time + answer.ttft]
    for gap in answer.itl:
        stamps.append(stamps[-1] + gap)
    return Seen(id=f"call-{i}", sent=answer.start_time, stamps=stamps, is_success=answer.success)


def vllm_functions(cache: Path) -> ModuleType:
    """The module of the released wheel; it needs nothing else of vLLM."""
    wheel = Wheel(distribution="vllm", version=VLLM, wanted=("vllm/benchmarks/lib/*.py",), needs_mib=1200)
    root = fill(cache / "upstream" / f"vllm-bench-{VLLM}", wheel, lambda line: print(line, file=sys.stderr))
    path = root / "vllm/benchmarks/lib/endpoint_request_func.py"
    spec = importlib.util.spec_from_file_location("vllm_request_functions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module
