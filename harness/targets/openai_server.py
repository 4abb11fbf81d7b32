"""A running server, reached with the stock ``openai`` package: an ``Ask`` in, an ``Answer`` out, whatever happens.

Nothing that the server does raises: an error, a cut stream and silence are fates of the answer.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import httpx
import openai

from harness.exchange import Answer, Ask, Fate, Offer, Place, Snapshot
from harness.scenario import Grammar
from harness.targets.pace import Pace

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? +(\S+)$")
POSITION = re.compile(r'position="(\d+)"')
LONGEST_DETAIL = 600
AGAIN = 0.2
"""Seconds until a request whose connection failed is sent again, once."""


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
        self.root = url.rstrip("/").removesuffix("/v1")
        self.model = model
        self.offer = Offer(url=self.root, model=model)
        self.began = time.monotonic()
        self._pace = pace or Pace()
        self._patience = patience
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
        return heard.answer()

    async def _heard(self, ask: Ask) -> _Heard:
        await self._pace.turn()
        heard = _Heard(sent=self.now)
        try:
            async with asyncio.timeout(None) as clock:
                await self._read(ask, heard, clock)
        except TimeoutError:
            heard.fails(Fate.HUNG, f"no news for {self._patience:g} s")
        except openai.APITimeoutError:
            heard.fails(Fate.HUNG, f"no news for {self._patience:g} s")
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            heard.fails(Fate.UNREACHABLE, f"{type(cause).__name__}: {cause}".removesuffix(": "))
        except openai.APIStatusError as error:
            heard.status = error.status_code
            heard.fails(Fate.FAILED if error.status_code >= 500 else Fate.REFUSED, error.message)
        except openai.APIError as error:  # an error as an event of the stream
            heard.fails(Fate.BROKEN, error.message)
        except Exception as error:  # noqa: BLE001  whatever a server's bytes make of the client is the answer's fate
            heard.fails(Fate.CUT, f"{type(error).__name__}: {error}")
        heard.ended = self.now
        return heard

    async def _read(self, ask: Ask, heard: _Heard, clock: asyncio.Timeout) -> None:
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
            more["return_token_ids"] = True
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
        health, said, values = None, "", {}
        try:
            answer = await self._http.get("/health")
            health, said = (
                answer.status_code,
                answer.text[:LONGEST_DETAIL] if answer.status_code != 200 else "",
            )
            metrics = await self._http.get("/metrics")
            if metrics.status_code == 200:
                values = read_metrics(metrics.text)
        except httpx.HTTPError as error:
            said = f"{type(error).__name__}: {error}"
        return Snapshot(when=when, at=self.now, health=health, said=said, values=values)

    async def get(self, path: str) -> httpx.Response | None:
        """A page of the server; ``None`` where it does not answer."""
        try:
            return await self._http.get(path)
        except httpx.HTTPError:
            return None


class _Heard:
    """What was heard so far of one answer."""

    def __init__(self, sent: float) -> None:
        self.sent = sent
        self.ended = sent
        self.first: float | None = None
        self.status: int | None = None
        self.aborted = False
        self.chunks: list[int] = []
        self._failure: tuple[Fate, str] | None = None
        self._prompt: tuple[int, ...] = ()
        self._tokens: list[int] = []
        self._places: list[Place] = []
        self._prompt_places: tuple[Place, ...] = ()
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self._usage: Any = None

    @property
    def is_unheard(self) -> bool:
        """The connection failed before anything came over it."""
        return self.first is None and self._failure is not None and self._failure[0] is Fate.UNREACHABLE

    def fails(self, fate: Fate, detail: str) -> None:
        """It ended badly."""
        self._failure = fate, detail[:LONGEST_DETAIL]

    def reads(self, completion: Any, now: float) -> None:
        """A whole completion or a chunk of one, as the client parsed it."""
        self._usage = completion.usage or self._usage
        for choice in completion.choices:
            more: Mapping[str, Any] = choice.model_extra or {}
            tokens = more.get("token_ids") or ()
            if (tokens or choice.text) and self.first is None:
                self.first = now
            if tokens or choice.text:
                self.chunks.append(len(tokens))
            self._tokens += tokens
            self._text.append(choice.text or "")
            self._finish_reason = choice.finish_reason or self._finish_reason
            self._prompt = tuple(more.get("prompt_token_ids") or self._prompt)
            if choice.logprobs is not None:
                self._places += places_of(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs)
            if more.get("prompt_logprobs"):
                self._prompt_places = prompt_places(self._prompt, more["prompt_logprobs"])

    def answer(self) -> Answer:
        """All of it."""
        return Answer(
            fate=self._fate,
            detail=self._failure[1] if self._failure else "",
            status=self.status,
            sent=self.sent,
            first=self.first,
            ended=self.ended,
            prompt=self._prompt,
            tokens=tuple(self._tokens),
            chunks=tuple(self.chunks),
            places=tuple(self._places),
            prompt_places=self._prompt_places,
            text="".join(self._text),
            finish_reason=self._finish_reason,
            prompt_tokens=getattr(self._usage, "prompt_tokens", None),
            completion_tokens=getattr(self._usage, "completion_tokens", None),
        )

    @property
    def _fate(self) -> Fate:
        if self._failure is not None:
            return self._failure[0]
        if self.aborted:
            return Fate.ABORTED
        return Fate.CUT if self._finish_reason is None else Fate.COMPLETE


def asked_grammar(grammar: Grammar, way: str) -> dict[str, Any]:
    """A grammar as a field of the body: vLLM's ``structured_outputs``, or OpenAI's ``response_format`` for schemas."""
    if way == "response_format":
        schema = {"name": "answer", "schema": json.loads(grammar.text), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    kind = {"json_schema": "json", "ebnf": "grammar"}.get(grammar.kind, grammar.kind)
    told = json.loads(grammar.text) if grammar.kind in ("json_schema", "choice") else grammar.text
    return {"structured_outputs": {kind: told}}


def places_of(chosen: Any, best: Any) -> list[Place]:
    """The ``logprobs`` of a completion's choice."""
    bests = best or [None] * len(chosen or ())
    return [
        Place(logprob=float("nan") if value is None else value, best=dict(top or {}))
        for value, top in zip(chosen or (), bests, strict=True)
    ]


def prompt_places(prompt: tuple[int, ...], laws: list[dict[str, Any] | None]) -> tuple[Place, ...]:
    """vLLM's ``prompt_logprobs``: for each token of the prompt but the first, laws by token id."""
    return tuple(
        Place(
            logprob=law[str(token)]["logprob"], best={name: entry["logprob"] for name, entry in law.items()}
        )
        for token, law in zip(prompt[1:], laws[1:], strict=True)
        if law is not None
    )


def read_metrics(text: str) -> dict[str, float]:
    """Prometheus' exposition -> value by name, labels added up, a ``position`` label kept as ``name[0]``."""
    values: dict[str, float] = defaultdict(float)
    for line in text.splitlines():
        if (match := SAMPLE.match(line)) and not match[1].endswith(("_bucket", "_created")):
            position = POSITION.search(match[2] or "")
            values[f"{match[1]}[{position[1]}]" if position else match[1]] += float(match[3])
    return dict(values)
