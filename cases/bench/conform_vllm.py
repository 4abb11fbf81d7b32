"""vLLM's own Python request function on every script: ``python cases/bench/conform_vllm.py``."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import uvloop
from clients import VLLM, vllm_functions

from harness.bench.conformance.outsider import Claim, judged_claim
from harness.bench.conformance.process import scripted_server
from harness.bench.conformance.score import Score, truth_log
from harness.bench.conformance.script import Script
from harness.bench.conformance.scripts import every_script
from harness.bench.load.call import CHAT

PATIENCE = 3.0
"""Seconds; its own are six hours."""
TOLERANCE = 0.02


async def claims(url: str, scripts: dict[str, Script], module: ModuleType) -> dict[str, Claim]:
    """What it says of each, eight at a time."""
    places = asyncio.Semaphore(8)

    async def one(name: str, script: Script) -> Claim:
        chat = script.path == CHAT
        ask: Any = (
            module.async_request_openai_chat_completions if chat else module.async_request_openai_completions
        )
        told = module.RequestFuncInput(
            prompt="tell",
            api_url=f"{url}{script.path}",
            prompt_len=4,
            output_len=8,
            model=script.name,
            request_id=name,
        )
        async with places:
            try:
                answer = await asyncio.wait_for(ask(told, session), PATIENCE)
            except TimeoutError:
                return Claim(is_success=False)
        n = answer.output_tokens
        tpot = (answer.latency - answer.ttft) / (n - 1) if n and n > 1 else None
        return Claim(is_success=answer.success, ttft=answer.ttft, tpot=tpot, tokens=n)

    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(one(name, script) for name, script in scripts.items()))
    return dict(zip(scripts, answers, strict=True))


def main() -> int:
    """Print what it gets wrong."""
    module = vllm_functions(Path.home() / ".cache" / "specharness")
    scripts = {f"vllm-{i}": script for i, script in enumerate(every_script().values())}
    with scripted_server() as url:
        answers = uvloop.run(claims(url, scripts, module))
        log = truth_log(url)
    scores: list[Score] = [
        judged_claim(script, answers[name], log.get(name, {}), TOLERANCE) for name, script in scripts.items()
    ]
    for each in scores:
        if not each.is_right:
            print(f"{each.path:22s}{each.name:30s}{'; '.join(each.faults)}")
    wrong = [each for each in scores if not each.is_right]
    told = {"verb": "conform-vllm", "vllm": VLLM, "scripts": len(scores), "wrong": len(wrong), "exit": 0}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
