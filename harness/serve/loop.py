"""The engine's own thread, and the answers that leave it.

Handlers run in the event loop and touch neither the engine nor its requests: they leave orders, which the engine's
thread carries out before it plans a step. After each step every request's new tokens go to its ``Stream``.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread

import torch

from harness.engine.engine import Engine, StepResult
from harness.engine.request import EngineRequest
from harness.engine.verify import RowResult
from harness.errors import UsageError
from harness.serve.errors import ApiError, bad_request
from harness.serve.guides import TimedGuide
from harness.serve.logprobs import TokenLogprob, logprobs_of
from harness.serve.metrics import Metrics

STARVING = 0.01
"""Seconds to wait for orders when requests are there and none of them can run."""

LAST_STEP = 10.0
"""Seconds that the last step may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one step added to an answer."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None


class Stream:
    """One request and its answer as it comes. ``close`` it in every case: that frees its memory.

    ``most_logprobs`` and ``most_prompt_logprobs``: best tokens wanted at each place of answer and prompt; ``None``: no
    log-probabilities at all.
    """

    def __init__(
        self,
        request: EngineRequest,
        loop: EngineLoop,
        *,
        most_logprobs: int | None = None,
        most_prompt_logprobs: int | None = None,
    ) -> None:
        self.request = request
        self.most_logprobs = most_logprobs
        self.most_prompt_logprobs = most_prompt_logprobs
        self.prompt_logprobs: list[TokenLogprob] = []
        """Of the prompt's tokens but the first; complete when the first delta comes."""
        self.arrived = time.monotonic()
        self.last: float | None = None
        self._loop = loop
        self._news: asyncio.Queue[Delta | ApiError] = asyncio.Queue()

    async def deltas(self) -> AsyncIterator[Delta]:
        """The answer, step by step, to its end; ApiError where the engine refuses it or dies."""
        while True:
            news = await self._news.get()
            if isinstance(news, ApiError):
                raise news
            yield news
            if news.finish_reason is not None:
                return

    def tell(self, news: Delta | ApiError) -> None:
        """Called in the event loop."""
        self._news.put_nowait(news)

    def close(self) -> None:
        """Nobody reads any further."""
        self._loop.close(self)


class EngineLoop:
    """Steps the engine while it has requests. When a step raises, the engine is dead and stays so."""

    def __init__(self, engine: Engine, metrics: Metrics, guide_seconds: float) -> None:
        self.failure: str | None = None
        """What the engine died of."""
        self.open: set[Stream] = set()
        """Streams that nobody has closed yet; belongs to the event loop."""
        self._engine = engine
        self._metrics = metrics
        self._guide_seconds = guide_seconds
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._streams: dict[str, Stream] = {}
        self._news: list[tuple[Stream, Delta | ApiError]] = []
        self._runs = True
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin; called in the event loop that will hear of every answer."""
        self._listener = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End behind the current step, and leave a step behind that does not end; nobody gets any more tokens."""
        self._orders.put(self._end)
        await asyncio.to_thread(self._thread.join, LAST_STEP)

    def submit(self, stream: Stream) -> None:
        """Queue the request of an open stream."""
        self._orders.put(lambda: self._add(stream))

    def close(self, stream: Stream) -> None:
        """Forget a stream, and abort its request if it still runs."""
        if stream in self.open:
            self.open.remove(stream)
            self._orders.put(lambda: self._drop(stream))

    def _run(self) -> None:
        while self._runs:
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001  whatever the engine dies of, the server is there to tell
                traceback.print_exc()
                self._die(f"EngineDeadError: the engine died of {type(error).__name__}: {error}")
            self._publish()

    def _turn(self) -> None:
        if self.failure is not None or self._engine.scheduler.is_idle:
            self._orders.get()()
        self._obey()
        if self.failure is None:
            step = self._engine.step(self._obey)
            if step is not None:
                self._report(step)
            elif not self._engine.scheduler.is_idle:
                time.sleep(STARVING)

    def _obey(self) -> None:
        try:
            while True:
                self._orders.get_nowait()()
        except Empty:
            return

    def _end(self) -> None:
        self._runs = False

    def _add(self, stream: Stream) -> None:
        if self.failure is not None:
            self._news.append((stream, ApiError(500, self.failure)))
            return
        self._streams[stream.request.id] = stream
        try:
            self._engine.add(stream.request)
        except UsageError as error:
            del self._streams[stream.request.id]
            self._news.append((stream, bad_request(error)))
            return
        self._metrics.prompt_tokens.inc(len(stream.request.prompt))

    def _drop(self, stream: Stream) -> None:
        if self._streams.pop(stream.request.id, None) is not None and self.failure is None:
            self._engine.abort(stream.request)
            self._metrics.finished("abort")

    def _die(self, failure: str) -> None:
        self.failure = failure
        self._news += [(stream, ApiError(500, failure)) for stream in self._streams.values()]
        self._streams.clear()

    @torch.inference_mode()
    def _report(self, step: StepResult) -> None:
        self._metrics.count_step(step)
        for row in step.rows:
            stream = self._streams.get(row.request.id)
            if stream is not None and not row.discarded:
                self._score_prompt(stream, row)
                if row.committed or row.request.finish_reason:
                    self._advance(stream, row)
                self._stop_if_dear(stream)

    def _advance(self, stream: Stream, row: RowResult) -> None:
        reason, now = row.request.finish_reason, time.monotonic()
        logprobs: list[TokenLogprob] = []
        if row.logits is not None and stream.most_logprobs is not None:
            logprobs = logprobs_of(row.logits, row.committed, stream.most_logprobs)
        delta = Delta(tokens=tuple(row.committed), logprobs=tuple(logprobs), finish_reason=reason)
        self._news.append((stream, delta))
        self._metrics.generation_tokens.inc(len(row.committed))
        if stream.last is None:
            self._metrics.first_token.observe(now - stream.arrived)
        else:
            self._metrics.between_tokens.observe(now - stream.last)
        stream.last = now
        if reason is not None:
            self._metrics.whole_request.observe(now - stream.arrived)
            self._metrics.finished(reason)
            del self._streams[stream.request.id]

    def _stop_if_dear(self, stream: Stream) -> None:
        """Who waits for one request's grammar is everybody."""
        guide = stream.request.guide
        dear = isinstance(guide, TimedGuide) and guide.seconds > self._guide_seconds
        if dear and stream.request.finish_reason is None:
            self._drop(stream)
            complaint = (
                f"the grammar is too ambiguous: it took more than {self._guide_seconds:g} s of a processor"
            )
            self._news.append((stream, ApiError(400, complaint)))

    def _score_prompt(self, stream: Stream, row: RowResult) -> None:
        """A piece of the prompt gives the law of each token behind it. After a preemption pieces come again."""
        if row.prompt_logits is None or stream.most_prompt_logprobs is None:
            return
        start = row.request.num_computed - len(row.input_ids)
        done = len(stream.prompt_logprobs)
        following = row.request.prompt[done + 1 : row.request.num_computed + 1]
        if start <= done and following:
            stream.prompt_logprobs += logprobs_of(
                row.prompt_logits[done - start :], following, stream.most_prompt_logprobs
            )

    def _publish(self) -> None:
        """One wake-up of the event loop for all streams of a step."""
        if self._news:
            news, self._news = self._news, []
            self._listener.call_soon_threadsafe(_hand_out, news)


def _hand_out(news: list[tuple[Stream, Delta | ApiError]]) -> None:
    for stream, one in news:
        stream.tell(one)
