"""One ledger, three clocks: committed tokens, matcher history and state age agree after every step.

The ledger is kept from what was committed alone; every count that the engine reports is held against it. A row that
was discarded changes nothing. A request that was preempted begins again with what the prefix cache has for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from harness.scenario import Request, Scenario
from harness.trace import Coordinate, RowTrace, StepTrace, Trace
from harness.verdict import Divergence, Evidence, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line: a request's row and what the committed tokens say before and after it."""

    step: int
    request: str
    row: RowTrace
    history: tuple[int, ...]  # prompt and answer before the row
    start: int  # how many of them are in cache
    tokens: int  # prompt and answer after the row
    in_cache: int  # tokens that the caches should hold after it
    previous: int  # a of the request's previous step
    older: int  # a of the step before that one
    drafts: int  # drafts in the row of the previous step
    guided: int  # tokens that the matcher should have consumed
    fresh: bool  # the request had no memory before the row

    @property
    def before(self) -> int:
        """Prompt and answer before the row."""
        return len(self.history)

    @property
    def ends_prompt(self) -> bool:
        """Whether a prompt row reaches the last token that is known, so that it yields one."""
        return self.start + self.row.prompt_tokens >= self.before

    def __str__(self) -> str:
        row = self.row
        kind = (
            f"prompt +{row.prompt_tokens}"
            if row.prompt_tokens
            else f"verify n={len(row.kept)} of {len(row.proposed)}"
        )
        notes = f", matcher {row.matcher_tokens}" if row.matcher_tokens is not None else ""
        notes += f", {row.cached} from the prefix cache" if row.cached else ""
        notes += ", resumed" if row.resumed else ""
        notes += ", discarded" if row.discarded else ""
        return (
            f"step {self.step:3d}  {self.request:<8} {kind:<18} a_prev={row.previous_accepted} a={row.accepted}"
            f"  committed {self.tokens}, in cache {row.num_computed}{notes}"
        )


@dataclass(slots=True, kw_only=True)
class _Account:
    """A request between two rows."""

    request: Request
    answer: list[int] = field(default_factory=list)
    in_cache: int = 0
    previous: int = 1
    older: int = 1
    drafts: int = 0
    fresh: bool = True

    @property
    def tokens(self) -> int:
        return len(self.request.prompt) + len(self.answer)

    def enter(self, step: int, row: RowTrace) -> Entry:
        """The line of a row, and the request after it."""
        fresh, history = self.fresh or row.resumed, (*self.request.prompt, *self.answer)
        if fresh:
            self._begin(row.cached)
        start, previous, older, drafts = self.in_cache, self.previous, self.older, self.drafts
        if not row.discarded:
            self.answer += row.committed
            self.in_cache = (
                min(start + row.prompt_tokens, len(history)) if row.prompt_tokens else self.tokens - 1
            )
            self.previous, self.older, self.drafts = max(row.accepted, 1), previous, len(row.kept)
        return Entry(
            step=step,
            request=row.request,
            row=row,
            history=history,
            start=start,
            tokens=self.tokens,
            in_cache=self.in_cache,
            previous=previous,
            older=older,
            drafts=drafts,
            guided=guided_tokens(self.request, self.answer),
            fresh=fresh,
        )

    def _begin(self, cached: int) -> None:
        self.in_cache, self.previous, self.older, self.drafts, self.fresh = cached, 1, self.previous, 0, False


def guided_tokens(request: Request, answer: Sequence[int]) -> int:
    """How many tokens of an answer are a grammar's business: those behind the first end of reasoning."""
    if request.reasoning_end is None:
        return len(answer)
    return len(answer) - answer.index(request.reasoning_end) - 1 if request.reasoning_end in answer else 0


def entries(scenario: Scenario, trace: Trace) -> Iterator[Entry]:
    """The ledger of a run, line by line."""
    accounts = {request.id: _Account(request=request) for request in scenario.requests}
    for step in trace.steps:
        for name in step.preempted:
            accounts[name].fresh = True
        for row in step.rows:
            yield accounts[row.request].enter(step.index, row)


def lines_by_step(scenario: Scenario, trace: Trace) -> Iterator[tuple[StepTrace, list[Entry]]]:
    """Every step, dummy ones too, with its lines in batch order."""
    lines = entries(scenario, trace)
    for step in trace.steps:
        yield step, list(islice(lines, len(step.rows)))


def check_ledger(scenario: Scenario, trace: Trace, vocab_size: int | None = None) -> Evidence:
    """Every count of every row against the ledger, and every committed token against the vocabulary."""
    lines = list(entries(scenario, trace))
    found = [
        *_accepted_counts(scenario, lines),
        *(divergence for line in lines for divergence in _clocks(line)),
        *(divergence for line in lines for divergence in _commits(line, vocab_size)),
    ]
    found.sort(key=lambda divergence: divergence.at.step)
    summary = f"{len(lines)} ledger lines, {len(found)} wrong counts"
    verdict = Verdict.FAIL if found else Verdict.PASS if lines else Verdict.INCONCLUSIVE
    return Evidence(
        check="ledger", verdict=verdict, summary=summary, divergences=tuple(found), compared=len(lines)
    )


def last_lines(scenario: Scenario, trace: Trace, at: Coordinate, count: int = 3) -> list[str]:
    """The last lines up to a coordinate, of its request where it names one."""
    lines = [
        str(entry)
        for entry in entries(scenario, trace)
        if entry.step <= at.step and (not at.request or entry.request == at.request)
    ]
    return lines[-count:]


def _wrong(line: Entry, what: str, cause: str, message: str) -> Divergence:
    return Divergence(
        kind="ledger",
        at=Coordinate(step=line.step, request=line.request, tensor=what),
        message=message,
        cause=cause,
        diagnosis=f"{cause}: {message}",
    )


def _clocks(line: Entry) -> Iterator[Divergence]:
    """What a row says of its request after the step. Of a discarded row only the matcher counts: it goes on."""
    row = line.row
    clocks = [("matcher history", row.matcher_tokens, line.guided, "matcher ahead", "matcher behind")]
    if not row.discarded:
        computed = "computed count leads", "computed count lags"
        age = row.state.tokens_included if row.state else None
        clocks.append(("num_computed_tokens", row.num_computed, line.in_cache, *computed))
        clocks.append(("state age", age, line.in_cache, "state age leads", "state age lags"))
    for what, seen, expected, leads, lags in clocks:
        if seen is not None and seen != expected:
            message = f"{what} is {seen}, the committed tokens say {expected}"
            yield _wrong(line, what, leads if seen > expected else lags, message)


def _commits(line: Entry, vocab_size: int | None) -> Iterator[Divergence]:
    """What a row committed, and whether it may have."""
    row = line.row
    if row.accepted > len(row.kept) + 1:
        message = f"a={row.accepted} exceeds the row's {len(row.kept)} drafts + 1"
        yield _wrong(line, "num_accepted_tokens", "more accepted than drafted", message)
    stray = [t for t in row.committed if t < 0 or (vocab_size is not None and t >= vocab_size)]
    if stray:
        message = f"token {stray[0]} was committed, and the vocabulary does not have it"
        yield _wrong(line, "committed", "token outside the vocabulary", message)
    if row.discarded:
        if row.committed:
            message = f"{row.accepted} tokens come from a row that was discarded"
            yield _wrong(line, "committed", "discarded row committed", message)
    elif row.prompt_tokens and not line.ends_prompt:
        if row.committed:
            message = f"a token was committed after {line.start + row.prompt_tokens} of {line.before} tokens"
            yield _wrong(line, "committed", "committed before the prompt's end", message)
    elif not row.committed:
        yield _wrong(line, "committed", "nothing committed", "the row yields a token, none was committed")
    if not row.prompt_tokens and line.start != line.before - 1:
        message = f"a verify row begins with {line.start} of {line.before} tokens in cache"
        yield _wrong(line, "num_computed_tokens", "verify row before the prompt's end", message)


def _accepted_counts(scenario: Scenario, lines: Sequence[Entry]) -> Iterator[Divergence]:
    """The a that each row was computed with. One mistake explains them all, if one can."""
    wrong = [line for line in lines if line.row.previous_accepted != line.previous]
    in_step: dict[int, dict[str, int]] = {}
    for line in lines:
        in_step.setdefault(line.step, {})[line.request] = line.previous

    def of_another_row(line: Entry) -> bool:
        others = (a for name, a in in_step[line.step].items() if name != line.request)
        return line.row.previous_accepted in others

    explanations: dict[str, Callable[[Entry], bool]] = {
        "accepted count out of range": lambda line: not 1 <= line.row.previous_accepted <= scenario.k + 1,
        "all drafts counted as accepted": lambda line: (
            line.drafts > 0 and line.row.previous_accepted == line.drafts + 1
        ),
        "accepted count one step old": lambda line: line.row.previous_accepted == line.older,
        "accepted count of another row": of_another_row,
    }
    explained = {cause: sum(map(fits, wrong)) for cause, fits in explanations.items()}
    best = sorted(explanations, key=lambda cause: -explained[cause])
    for line in wrong:
        cause = next((cause for cause in best if explanations[cause](line)), "accepted count wrong")
        message = (
            f"num_accepted_tokens is {line.row.previous_accepted}, the committed tokens say {line.previous}"
        )
        yield _wrong(line, "num_accepted_tokens", cause, message)
