"""One model behind one engine: from the body of a request to a stream of the engine's."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from harness.engine.engine import Engine
from harness.engine.guided import Grammars, Guide
from harness.engine.request import EngineRequest
from harness.engine.sampler import SamplingParams
from harness.errors import UsageError
from harness.serve.chat import ChatTemplate
from harness.serve.errors import ApiError, bad_request
from harness.serve.guidance import Grammar, grammar_of
from harness.serve.guides import TimedGuide
from harness.serve.limits import Limits
from harness.serve.loop import EngineLoop, Stream
from harness.serve.metrics import Metrics
from harness.serve.protocol import CompletionRequest, Generation, Message, Tool
from harness.serve.rehearsal import Rehearsal
from harness.serve.text import Texts

COMPILERS = 2
"""Grammars that are compiled at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything that the endpoints share."""

    model_name: str
    engine: Engine
    grammars: Grammars
    texts: Texts
    template: ChatTemplate
    metrics: Metrics
    loop: EngineLoop
    limits: Limits
    eos_ids: frozenset[int]
    rehearsal: Rehearsal
    compilers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=COMPILERS, thread_name_prefix="grammars")
    )

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its answer together."""
        return self.engine.config.max_model_len

    def check_model(self, name: str | None) -> None:
        """404 for a model that is not served."""
        if name is not None and name != self.model_name:
            raise ApiError(
                404, f"the model {name!r} is not here; there is {self.model_name!r}", param="model"
            )

    async def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """A text as tokens, off the event loop: a megabyte takes a while."""
        return await asyncio.to_thread(self.texts.encode, text, special=special)

    async def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Messages as tokens; the template writes special tokens itself."""
        text = await asyncio.to_thread(self.template.render, messages, tools)
        return await self.encode(text, special=False)

    async def open(
        self,
        request: Generation,
        prompt: tuple[int, ...],
        *,
        max_tokens: int | None,
        most_logprobs: int | None,
        most_prompt_logprobs: int | None,
    ) -> Stream:
        """Start a request; without ``max_tokens`` it may fill the model's length. The caller closes the stream."""
        room = self._room(prompt, max_tokens)
        stream = Stream(
            EngineRequest(
                id=secrets.token_hex(16),
                prompt=prompt,
                max_tokens=max(room if max_tokens is None else max_tokens, 1),
                sampling=_sampling(request),
                stop_token_ids=frozenset(request.stop_token_ids or ())
                | (frozenset() if request.ignore_eos else self.eos_ids),
                stop_texts=request.stops,
                scores_prompt=most_prompt_logprobs is not None,
            ),
            self.loop,
            most_logprobs=most_logprobs,
            most_prompt_logprobs=most_prompt_logprobs,
        )
        grammar = grammar_of(request)
        if len(self.loop.open) >= self.limits.max_open:
            raise ApiError(429, f"{self.limits.max_open} requests run or wait already: try again later")
        self.loop.open.add(stream)
        try:
            if grammar is not None:
                stream.request.guide = await self._guide(grammar)
        except BaseException:
            stream.close()
            raise
        self.loop.submit(stream)
        return stream

    def _room(self, prompt: tuple[int, ...], max_tokens: int | None) -> int:
        """Tokens that an answer may have; 400 if there are fewer than were asked for."""
        if not prompt:
            raise ApiError(400, "the prompt is empty", param="prompt")
        if max(prompt) >= self.texts.size:
            raise ApiError(400, f"the prompt has token id {max(prompt)}, the vocabulary {self.texts.size}")
        room = self.max_model_len - len(prompt)
        if room < max(max_tokens or 0, 1):
            raise ApiError(
                400,
                f"the prompt has {len(prompt)} tokens and {max(max_tokens or 0, 1)} are to follow: "
                f"the model's length is {self.max_model_len}",
            )
        return room

    async def _guide(self, grammar: Grammar) -> Guide:
        """Try and compile off the event loop; a grammar that is none, or takes too long, is the client's fault."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.compilers, self._compile, *grammar)
        except UsageError as error:
            raise bad_request(error) from None

    def _compile(self, kind: str, text: str) -> Guide:
        self.rehearsal.check(kind, text)
        return self.grammars.guide(kind, text, make=TimedGuide)


def only_prompt(request: CompletionRequest) -> str | tuple[int, ...]:
    """The one prompt of a completion: a text or tokens, on its own or as a list of one."""
    prompt = request.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise ApiError(400, f"one prompt per request, got {len(prompt)}", param="prompt")
        first = prompt[0]
        return first if isinstance(first, str) else tuple(first)
    return prompt if isinstance(prompt, str) else tuple(token for token in prompt if isinstance(token, int))


def _sampling(request: Generation) -> SamplingParams:
    """OpenAI's defaults; without a seed no two requests are alike."""
    return SamplingParams(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=max(request.top_k or 0, 0),
        top_p=1.0 if request.top_p is None else request.top_p,
        seed=secrets.randbits(63) if request.seed is None else request.seed,
    )
