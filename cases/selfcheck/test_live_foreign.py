"""Audits of servers that offer less than ours: what cannot be asked is said, and what is left is judged."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from cases.selfcheck.foreign import running
from cases.selfcheck.serving import serving
from harness.live.audit import judge
from harness.live.judges import Judges
from harness.live.run import Audited, listen
from harness.live.subjects import legs
from harness.live.transcript import Transcript
from harness.models.tiny import ensure
from harness.verdict import Verdict

PLAIN = {"model", "prompt", "max_tokens", "temperature", "seed", "stream", "stream_options", "stop", "top_p"}
"""What a server knows that speaks OpenAI's completions and nothing else."""


def plain_server(url: str, known: set[str], cut_after: int | None = None) -> FastAPI:
    """A server in front of ours that knows fewer fields and has no pages. ``cut_after``: answers from that request on
    end in the middle of their stream."""
    app = FastAPI()
    seen = iter(range(10**6))

    @app.get("/v1/models")
    async def models() -> Response:
        async with httpx.AsyncClient() as client:
            return JSONResponse((await client.get(f"{url}/v1/models")).json())

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await request.json()
        if strange := set(body) - known:
            message = f"Unrecognized request argument supplied: {', '.join(sorted(strange))}"
            return JSONResponse({"error": {"message": message}}, 400)
        cuts = cut_after is not None and next(seen) >= cut_after
        if not body.get("stream"):
            async with httpx.AsyncClient(timeout=60) as client:
                answer = await client.post(f"{url}/v1/completions", json=body)
                return JSONResponse(answer.json(), answer.status_code)

        async def lines() -> AsyncIterator[bytes]:
            async with (
                httpx.AsyncClient(timeout=60) as client,
                client.stream("POST", f"{url}/v1/completions", json=body) as answer,
            ):
                count = 0
                async for line in answer.aiter_lines():
                    yield f"{line}\n".encode()
                    count += 1
                    if cuts and count > 4:
                        return

        return StreamingResponse(lines(), media_type="text/event-stream")

    return app


@pytest.fixture(scope="module")
def ours() -> Iterator[str]:
    with serving(ensure("peaked")) as server:
        yield server.url


def heard(url: str, path: Path, patience: float = 20.0) -> Transcript:
    return listen(
        Audited(url=url, patience=patience),
        lambda offer: legs(offer, 0, crowds=1, max_tokens=12),
        path,
        lambda line: None,
    )


def test_a_plain_openai_server_is_audited_by_its_texts(ours: str, tmp_path: Path) -> None:
    with running(plain_server(ours, PLAIN)) as url:
        transcript = heard(url, tmp_path / "t.jsonl")
    offer = transcript.offer
    assert (offer.ids, offer.logprobs, offer.prompt_logprobs, offer.grammars, offer.metrics) == (
        (False, False, 0, None, False)
    )
    assert "Unrecognized" in offer.lacks["token ids"]
    found = {f.check: f.verdict for f in judge(transcript, Judges(None)).findings}
    for check in ("rescoring", "greedy choice", "grammar", "counters", "memory", "noise"):
        assert found[check] is Verdict.UNSUPPORTED, check
    for check in ("liveness", "whole answers", "solo v crowd", "solo v again"):
        assert found[check] is Verdict.PASS, check
    assert judge(transcript, Judges(None)).verdict is Verdict.PASS


def test_schemas_are_asked_for_in_openais_way_where_there_is_no_other(ours: str, tmp_path: Path) -> None:
    with running(plain_server(ours, PLAIN | {"response_format"})) as url:
        transcript = heard(url, tmp_path / "t.jsonl")
    assert transcript.offer.grammars == "response_format"
    kinds = {ask.grammar.kind for ask in transcript.asked.values() if ask.grammar and ask.leg != "probe"}
    assert kinds == {"json_schema"}
    found = {f.check: f for f in judge(transcript, Judges(None)).findings}
    assert found["grammar"].verdict is Verdict.PASS
    assert found["grammar"].of > 3


def test_streams_that_are_cut_are_failures(ours: str, tmp_path: Path) -> None:
    with running(plain_server(ours, PLAIN, cut_after=6)) as url:
        transcript = heard(url, tmp_path / "t.jsonl")
    first = judge(transcript, Judges(None)).failed[0]
    assert first.check == "liveness"
    assert first.told.startswith("cut stream")


def test_a_server_that_falls_silent_is_a_failure_and_not_a_hang(tmp_path: Path, ours: str) -> None:
    app = plain_server(ours, PLAIN)
    asked = iter(range(10**6))

    @app.middleware("http")
    async def falls_silent(request: Request, call_next):
        if request.url.path == "/v1/completions" and next(asked) > 8:
            import asyncio

            await asyncio.sleep(6)
        return await call_next(request)

    with running(app) as url:
        start = time.monotonic()
        transcript = heard(url, tmp_path / "t.jsonl", patience=1.0)
        assert time.monotonic() - start < 20
    first = judge(transcript, Judges(None)).failed[0]
    assert first.told.startswith("no news: no news for 1 s")
    assert "starves" in first.cause
