"""Where each answer ends, and why: just at its first end, which lies anywhere in what a verify step commits.

A stop beats the length, and a forced request whose turns are used up ends with ``script``. The ends are found here from
the committed tokens alone: end token, stop token, stop text, end of the grammar, ``max_tokens``, ``max_model_len``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.check.grammar import GrammarBook, judge_for
from harness.scenario import Request, Scenario
from harness.trace import Completion, Coordinate, RowTrace, Trace
from harness.verdict import Divergence, Evidence, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """An answer of so many tokens ends, and this is why."""

    tokens: int
    reason: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What one request's row committed, and in which step."""

    step: int
    row: RowTrace


def check_finish(scenario: Scenario, trace: Trace, book: GrammarBook) -> Evidence:
    """Every request goes on up to its first end, and not beyond it."""
    rows: dict[str, list[_Run]] = {request.id: [] for request in scenario.requests}
    for step in trace.steps:
        for row in step.rows:
            if not row.discarded:
                rows[row.request].append(_Run(step=step.index, row=row))
    found = [
        divergence
        for request in scenario.requests
        for divergence in _Answer(scenario, trace, book, request, rows[request.id]).divergences()
    ]
    found.sort(key=lambda divergence: divergence.at)
    summary = f"{len(scenario.requests)} answers, {len(found)} end wrongly"
    verdict = Verdict.FAIL if found else Verdict.PASS
    return Evidence(
        check="finish", verdict=verdict, summary=summary, divergences=tuple(found), compared=len(rows)
    )


class _Answer:
    """One request's answer beside the ends that it should have had."""

    def __init__(
        self, scenario: Scenario, trace: Trace, book: GrammarBook, request: Request, rows: Sequence[_Run]
    ) -> None:
        self._scenario = scenario
        self._trace = trace
        self._book = book
        self._request = request
        self._rows = rows
        self._tokens = [token for run in rows for token in run.row.committed]
        self._end = self._first_end()
        self._completion = trace.completions.get(request.id, Completion(tokens=(), finish_reason=None))

    def divergences(self) -> Iterator[Divergence]:
        """What is wrong with it, earliest first."""
        count, reason = len(self._tokens), self._completion.finish_reason
        dead = self._trace.crash is not None  # what its last step committed is in no row
        if not dead and self._completion.tokens != tuple(self._tokens):
            yield self._wrong(
                self._last_step,
                "answer differs from what was committed",
                f"the user got {len(self._completion.tokens)} tokens, the rows committed {count}",
            )
        if self._end and count > self._end.tokens:
            yield self._wrong(
                self._step_of(self._end.tokens),
                "answer goes on behind its end",
                f"{count - self._end.tokens} tokens were committed behind {self._end.words}",
            )
        elif dead:
            return
        elif reason == "abort":
            if self._end or not self._abort_was_asked:
                why = f"{self._end.words} came first" if self._end else "nobody asked for it"
                yield self._wrong(self._last_step, "wrong finish reason", f"it was aborted, and {why}")
        elif reason is None:
            yield self._never_ends()
        elif self._end is None:
            yield self._wrong(
                self._last_step,
                "answer cut too early",
                f"it ended with {reason!r} after {count} tokens, and nothing ends it there",
            )
        elif reason != self._end.reason:
            yield self._wrong(
                self._last_step,
                "wrong finish reason",
                f"it ended with {reason!r}, but {self._end.words} gives {self._end.reason!r}",
            )
        for run in self._rows:
            if self._aborted_at is not None and run.step >= self._aborted_at:
                message = f"a row counts although it was aborted before step {self._aborted_at}"
                yield self._wrong(run.step, "answer goes on behind its end", message)

    def _never_ends(self) -> Divergence:
        """A request without a finish in a run that is over."""
        idle = 0
        for run in reversed(self._rows):
            if run.row.committed or run.row.prompt_tokens:
                break
            idle += 1
        words = f"its last {idle} rows committed nothing" if idle else "no row came any more"
        words += f", and {self._end.words} was reached" if self._end else ""
        return self._wrong(self._last_step, "stalled" if idle else "unfinished", f"it never ended: {words}")

    def _first_end(self) -> _End | None:
        """The first end among the committed tokens, or what the script ran out of."""
        for count in range(1, len(self._tokens) + 1):
            if end := self._end_after(self._tokens[:count]):
                return end
        turns = (self._scenario.script or {}).get(self._request.id)
        if turns is not None and sum(bool(run.row.committed) for run in self._rows) >= len(turns):
            return _End(tokens=len(self._tokens), reason="script", words="the last turn of the script")
        return None

    def _end_after(self, answer: Sequence[int]) -> _End | None:
        """Why an answer ends with its last token, if it does."""
        request, vocabulary, last = self._request, self._book.vocabulary, answer[-1]
        stop = None
        if not request.ignore_eos and last in vocabulary.stop_ids:
            stop = f"the end token {last}"
        elif last in request.stop_token_ids:
            stop = f"the stop token {last}"
        elif text := self._completed_text(answer):
            stop = f"the stop text {text!r}"
        elif self._ends_grammar(answer):
            stop = f"the end of the grammar, token {last}"
        if stop:
            return _End(tokens=len(answer), reason="stop", words=stop)
        if len(answer) >= request.max_tokens:
            return _End(tokens=len(answer), reason="length", words=f"max_tokens={request.max_tokens}")
        most = self._scenario.max_model_len
        if len(request.prompt) + len(answer) >= most:
            return _End(tokens=len(answer), reason="length", words=f"max_model_len={most}")
        return None

    def _completed_text(self, answer: Sequence[int]) -> str | None:
        """The stop text that the last token completes."""
        if not self._request.stop:
            return None
        before, text = (self._book.vocabulary.text(tokens) for tokens in (answer[:-1], answer))
        return next(
            (stop for stop in self._request.stop if stop.encode() in text and stop.encode() not in before),
            None,
        )

    def _ends_grammar(self, answer: Sequence[int]) -> bool:
        judge = judge_for(self._request, self._book)
        if judge is None or answer[-1] not in self._book.vocabulary.stop_ids:
            return False
        return judge.legal_prefix(answer) == len(answer) and judge.ended(answer)

    @property
    def _abort_was_asked(self) -> bool:
        return any(e.what == "abort" and e.request == self._request.id for e in self._scenario.events)

    @property
    def _aborted_at(self) -> int | None:
        """The step before which the request was aborted."""
        return next((step.index for step in self._trace.steps if self._request.id in step.aborted), None)

    @property
    def _last_step(self) -> int:
        """The step of its last row, or the last of all for a request that never ran."""
        return self._rows[-1].step if self._rows else max(len(self._trace.steps) - 1, 0)

    def _step_of(self, index: int) -> int:
        """The step that committed the token at this index of the answer."""
        count = 0
        for run in self._rows:
            count += len(run.row.committed)
            if count > index:
                return run.step
        return self._last_step

    def _wrong(self, step: int, cause: str, message: str) -> Divergence:
        return Divergence(
            kind="finish",
            at=Coordinate(step=step, request=self._request.id, tensor="answer"),
            message=message,
            cause=cause,
            diagnosis=f"{cause}: {message}",
        )
