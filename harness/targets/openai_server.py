"""A running server, reached with the stock ``openai`` package: an ``Ask`` in, an ``Answer`` out, whatever happens.

Nothing that the server does raises: an error, a cut stream and silence are fates of the answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import openai

from harness.exchange import Answer, Ask, Fate, Offer, Snapshot
from harness.scenario import Grammar
from harness.targets.heard import Heard, NonsenseError
from harness.targets.pace import Pace
from harness.targets.pages import Page, get, read_metrics, root_of

LONGEST_DETAIL = 600
AGAIN = 0.2
"""Seconds until a request whose connection failed is sent again, once."""
TIMES = 5
"""How often a request is sent to a server that is too busy (HTTP 429) before that is its answer."""


class OpenAIServer:
    """``offer`` says which fields the server knows; others are not sent. ``patience``: seconds without any news."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        pace: Pace | None = None,
        patience: float = 30.0,
    ) -> None:
        self.root = root_of(url)
        self.model = model
        self.offer = Offer(url=self.root, model=model)
        self.began = time.monotonic()
        self._pace = pace or Pace()
        self._patience = patience
        self._api_key = api_key
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.AsyncClient(base_url=self.root, headers=headers, timeout=patience)
        self._client = openai.AsyncOpenAI(
            base_url=f"{self.root}/v1", api_key=api_key or "none", max_retries=0, timeout=patience
        )

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()
        await self._http.aclose()

    @property
    def now(self) -> float:
        """Seconds since the audit began."""
        return time.monotonic() - self.began

    async def ask(self, ask: Ask) -> Answer:
        """Ask and read to the end. Raises BudgetSpentError, and nothing else."""
        heard = await self._heard(ask)
        if heard.is_unheard:
            # a connection that was kept open may be closed by the server just as it is used again
            await asyncio.sleep(AGAIN)
            heard = await self._heard(ask)
        for _ in range(TIMES - 1):
            if heard.retry_after is None:
                break
            await asyncio.sleep(min(heard.retry_after, self._patience))
            heard = await self._heard(ask)
        return heard.answer()

    def clean(self, said: str) -> str:
        """A server's words as reports may hold them: without the key, writable, and not without end."""
        hidden = said.replace(self._api_key, "***") if self._api_key else said
        return hidden.encode("utf-8", "replace").decode("utf-8")[:LONGEST_DETAIL]

    async def _heard(self, ask: Ask) -> Heard:
        await self._pace.turn()
        heard = Heard(ask, self.now, self.clean)
        try:
            async with asyncio.timeout(None) as clock:
                await self._read(ask, heard, clock)
        except TimeoutError:
            heard.fails(Fate.HUNG, f"no news for {self._patience:g} s")
        except openai.APITimeoutError:
            heard.fails(Fate.HUNG, f"no news for {self._patience:g} s")
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            fate = Fate.UNREACHABLE if heard.first is None else Fate.CUT
            heard.fails(fate, f"{type(cause).__name__}: {cause}".removesuffix(": "))
        except openai.APIStatusError as error:
            heard.status = error.status_code
            if error.status_code == 429:
                heard.retry_after = _seconds(error.response.headers.get("retry-after"))
            heard.fails(Fate.FAILED if error.status_code >= 500 else Fate.REFUSED, error.message)
        except openai.APIError as error:  # an error as an event of the stream
            heard.fails(Fate.BROKEN, error.message)
        except NonsenseError as error:
            heard.fails(Fate.CUT, str(error))
        except Exception as error:  # noqa: BLE001  whatever a server's bytes make of the client is the answer's fate
            heard.fails(Fate.CUT, f"{type(error).__name__}: {error}")
        heard.ended = self.now
        return heard

    async def _read(self, ask: Ask, heard: Heard, clock: asyncio.Timeout) -> None:
        """Every chunk moves the deadline on."""
        body = self.body(ask)
        loop = asyncio.get_running_loop()
        clock.reschedule(loop.time() + self._patience)
        if not ask.stream:
            whole = await self._client.completions.create(**body, stream=False)
            heard.reads(whole, self.now)
            return
        stream = await self._client.completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        )
        async with stream:
            async for chunk in stream:
                clock.reschedule(loop.time() + self._patience)
                heard.reads(chunk, self.now)
                if ask.abort_after is not None and len(heard.chunks) >= ask.abort_after:
                    heard.aborted = True
                    return

    def body(self, ask: Ask) -> dict[str, Any]:
        """The arguments of the client's call."""
        more: dict[str, Any] = {}
        if self.offer.ids:
            # a model's generation_config may hold a penalty, and then the best token is another one than the law's
            more |= {"return_token_ids": True, "repetition_penalty": 1.0}
        if ask.ignore_eos and self.offer.ignore_eos:
            more["ignore_eos"] = True
        if ask.stop_token_ids:
            more["stop_token_ids"] = list(ask.stop_token_ids)
        if ask.prompt_logprobs is not None and self.offer.prompt_logprobs:
            more["prompt_logprobs"] = ask.prompt_logprobs
        if ask.grammar is not None:
            more |= asked_grammar(ask.grammar, self.offer.grammars or "structured_outputs")
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(ask.prompt) if ask.text is None else ask.text,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "extra_body": more,
        }
        if ask.seed is not None:
            body["seed"] = ask.seed
        if ask.stop:
            body["stop"] = list(ask.stop)
        if ask.logprobs is not None and self.offer.logprobs:
            body["logprobs"] = ask.logprobs
        return body

    async def snapshot(self, when: str) -> Snapshot:
        """Health and counters now; what is not offered stays empty."""
        health = await self.get("/health")
        metrics = await self.get("/metrics")
        return Snapshot(
            when=when,
            at=self.now,
            health=health.status,
            said="" if health.status == 200 else health.text,
            values=read_metrics(metrics.text) if metrics.status == 200 else {},
        )

    async def get(self, path: str) -> Page:
        """A page of the server, or why there is none."""
        page = await get(self._http, path, self._patience)
        return page if page.status == 200 else Page(status=page.status, text=self.clean(page.text))


def _seconds(retry_after: str | None) -> float:
    """A ``Retry-After`` header; a date, or none, is taken for a second."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else 1.0


def asked_grammar(grammar: Grammar, way: str) -> dict[str, Any]:
    """A grammar as a field of the body: vLLM's ``structured_outputs``, or OpenAI's ``response_format`` for schemas."""
    if way == "response_format":
        schema = {"name": "answer", "schema": json.loads(grammar.text), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    kind = {"json_schema": "json", "ebnf": "grammar"}.get(grammar.kind, grammar.kind)
    told = json.loads(grammar.text) if grammar.kind in ("json_schema", "choice") else grammar.text
    return {"structured_outputs": {kind: told}}
