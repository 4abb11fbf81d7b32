"""The schedule, from the trace alone: budget and rows kept to, nobody passed over, drafts cut only for a reason.

Running requests come first, in the order they were admitted, then those that wait, in the order they came; a
preempted one waits in front. Only a step that used its budget up may cut a row or leave a request out; where prefixes
are cached, a prompt is cut at block boundaries too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.check.ledger import Entry, lines_by_step
from harness.scenario import Request, Scenario
from harness.trace import Coordinate, StepTrace, Trace
from harness.verdict import Divergence, Evidence, Verdict


def check_schedule(scenario: Scenario, trace: Trace) -> Evidence:
    """Every row of every step, and whoever has none."""
    queue = _Queue(scenario=scenario, ahead=scenario.regime == "placeholder")
    found: list[Divergence] = []
    compared = 0
    for step, lines in lines_by_step(scenario, trace):
        queue.leave(step)
        if lines:
            compared += len(lines)
            found += queue.wrong(step, lines)
        queue.advance(step, lines)
    verdict = Verdict.FAIL if found else Verdict.PASS if compared else Verdict.INCONCLUSIVE
    summary = f"{compared} scheduled rows, {len(found)} against the rules"
    return Evidence(
        check="schedule", verdict=verdict, summary=summary, divergences=tuple(found), compared=compared
    )


@dataclass(slots=True, kw_only=True)
class _Queue:
    """Who runs since which step, who was preempted, who is over; where each request's last row was to end."""

    scenario: Scenario
    ahead: bool  # a step is planned while the one before it runs
    running: dict[str, int] = field(default_factory=dict)
    preempted: set[str] = field(default_factory=set)
    over: set[str] = field(default_factory=set)
    planned: dict[str, int] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)  # over, and still in possession of their memory
    dummies: int = 0  # steps that no clock counts

    def leave(self, step: StepTrace) -> None:
        """Before a step: who lost memory, or ended."""
        self.over.update(step.aborted)
        self.preempted.update(set(step.preempted) - self.over)
        for name in (*step.preempted, *step.aborted):
            self.running.pop(name, None)

    def advance(self, step: StepTrace, lines: Sequence[Entry]) -> None:
        """After it: who runs, who is over."""
        self.dummies += not lines
        ended = {line.request for line in lines if line.row.finish_reason}
        self.leaving = ended if self.ahead else set()
        self.over |= ended
        for line in lines:
            self.running.setdefault(line.request, step.index)
            self.preempted.discard(line.request)
            self.planned[line.request] = line.start + line.row.tokens
        for name in self.over:
            self.running.pop(name, None)

    def wrong(self, step: StepTrace, lines: Sequence[Entry]) -> Iterator[Divergence]:
        """Everything in a step that is against the rules."""
        tokens, names = sum(line.row.tokens for line in lines), [line.request for line in lines]
        spare = self.scenario.token_budget - tokens
        if spare < 0:
            words = f"{tokens} tokens in a step with a budget of {self.scenario.token_budget}"
            yield _wrong(step, "", "num_scheduled_tokens", "over the token budget", words)
        if len(lines) > self.scenario.max_num_seqs:
            words = f"{len(lines)} rows in a step, at most {self.scenario.max_num_seqs} are allowed"
            yield _wrong(step, "", "rows", "too many rows", words)
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield _wrong(
                step, name, "rows", "two rows of one request", f"{name} has {names.count(name)} rows"
            )
        if self.ahead and (step.preempted or step.aborted):
            spare = 0  # a row that was planned may have been dropped, and its share of the budget with it
        for line in lines:
            if line.request in self.over and not line.row.discarded:
                words = f"{line.request} is over, and its row was not discarded"
                yield _wrong(step, line.request, "rows", "row of a finished request", words)
            yield from self._length(step, line, spare)
            yield from self._drafts(step, line)
        yield from self._running_left_out(step, lines, spare)
        yield from self._waiting_left_out(step, lines, spare)

    def _length(self, step: StepTrace, line: Entry, spare: int) -> Iterator[Divergence]:
        """A row is as long as its tokens, its drafts, k, the longest length and the budget allow."""
        row, rest = line.row, line.before - line.start
        if row.prompt_tokens:
            at_boundary = (line.start + row.prompt_tokens) % self.scenario.block_size == 0
            fewest, most = row.tokens if self.scenario.prefix_caching and at_boundary else rest, rest
        else:
            k = self.scenario.k if step.k is None else step.k
            start = max(self.planned.get(line.request, 0), line.start) if self.ahead else line.start
            drafts = k if self.ahead else min(k, _legal(line))
            fewest, most = (
                1 + max(min(drafts, self.scenario.max_model_len - 2 - s), 0) for s in (start, line.start)
            )
        if row.tokens > most:
            words = f"the row has {row.tokens} tokens, there is room for {most}"
            yield _wrong(step, line.request, "kept", "row too long", words)
        elif row.tokens < fewest and spare > 0:
            words = f"the row has {row.tokens} tokens of {fewest}, and nothing that could have cut it"
            yield _wrong(step, line.request, "kept", "row too short", words)

    def _drafts(self, step: StepTrace, line: Entry) -> Iterator[Divergence]:
        """A row's drafts are the first of those proposed; where it has more places, placeholders."""
        row, name = line.row, line.request
        if row.prompt_tokens:
            if row.kept:
                words = f"{len(row.kept)} drafts stand beside {row.prompt_tokens} tokens of a prompt"
                yield _wrong(step, name, "kept", "drafts beside a prompt", words)
            return
        expected = row.proposed[: min(_legal(line), len(row.kept))] if self.ahead else row.proposed
        filled = (*expected, *[-1] * len(row.kept))[: len(row.kept)]
        if row.kept != filled:
            words = f"the row's drafts are {list(row.kept)}, expected {list(filled)}"
            yield _wrong(step, name, "kept", "drafts are not the proposed ones", words)

    def _running_left_out(self, step: StepTrace, lines: Sequence[Entry], spare: int) -> Iterator[Divergence]:
        here = {
            line.request: self.running.get(line.request, step.index)
            for line in lines
            if line.request not in self.over
        }
        for name, since in self.running.items():
            full = self.ahead and self.planned[name] >= self.scenario.max_model_len - 1
            if name in here or full:
                continue
            if spare > 0:
                words = f"{name} runs and has no row, and {spare} tokens of the budget are left"
                yield _wrong(step, name, "rows", "request not scheduled", words)
            elif any(later > since for later in here.values()):
                words = f"{name} runs since step {since} and has no row, a later request has one"
                yield _wrong(step, name, "rows", "request passed over", words)

    def _waiting_left_out(self, step: StepTrace, lines: Sequence[Entry], spare: int) -> Iterator[Divergence]:
        s, here = self.scenario, {line.request for line in lines}
        admitted = [s.request(name) for name in here - self.running.keys() - self.over]
        aborted = {event.request for event in s.events if event.what == "abort"}
        room = (
            spare > 0
            and s.kv_blocks is None
            and not step.preempted
            and len(here | self.running.keys() | self.leaving) < s.max_num_seqs
        )
        for request in s.requests:
            name = request.id
            if name in here | self.running.keys() | self.over | aborted | set(step.preempted):
                continue
            arrived = request.arrival <= step.index - self.dummies - (2 if self.ahead else 0)
            if room and (arrived or name in self.preempted):
                words = f"{name} waits, and {spare} tokens of the budget are left"
                yield _wrong(step, name, "rows", "request not scheduled", words)
            elif any(self._rank(other) > self._rank(request) for other in admitted):
                words = f"{name} waits, and a request behind it was admitted"
                yield _wrong(step, name, "rows", "request passed over", words)

    def _rank(self, request: Request) -> tuple[int, int]:
        """Where a request waits: preempted ones in front of all others."""
        if request.id in self.preempted:
            return -1, 0
        return request.arrival, self.scenario.requests.index(request)


def _legal(line: Entry) -> int:
    """Drafts that the grammar left, as the row says."""
    row = line.row
    return len(row.proposed) if row.grammar_kept is None else min(max(row.grammar_kept, 0), len(row.proposed))


def _wrong(step: StepTrace, request: str, tensor: str, cause: str, message: str) -> Divergence:
    return Divergence(
        kind="ledger",
        at=Coordinate(step=step.index, request=request, tensor=tensor),
        message=message,
        cause=cause,
        diagnosis=f"{cause}: {message}",
    )
