"""One ledger, three clocks: committed tokens, matcher history and state age agree after every step.

The ledger is kept from what was committed alone; every count that the engine reports is held against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.scenario import Scenario
from harness.trace import Coordinate, RowTrace, Trace
from harness.verdict import Divergence, Evidence, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line: a request after a step, as the committed tokens say."""

    step: int
    request: str
    row: RowTrace
    tokens: int  # prompt and answer so far
    in_cache: int  # tokens that the caches should hold
    previous: int  # a of the request's previous step
    answered: int  # tokens of the answer so far

    def __str__(self) -> str:
        row = self.row
        kind = (
            f"prompt +{row.prompt_tokens}"
            if row.prompt_tokens
            else f"verify n={len(row.kept)} of {len(row.proposed)}"
        )
        matcher = "" if row.matcher_tokens is None else f", matcher {row.matcher_tokens}"
        return (
            f"step {self.step:3d}  {self.request:<8} {kind:<18} a_prev={row.previous_accepted} a={row.accepted}"
            f"  committed {self.tokens}, in cache {row.num_computed}{matcher}"
        )


def entries(scenario: Scenario, trace: Trace) -> Iterator[Entry]:
    """The ledger of a run, line by line."""
    prompt = {request.id: len(request.prompt) for request in scenario.requests}
    fed = dict.fromkeys(prompt, 0)
    answered = dict.fromkeys(prompt, 0)
    previous = dict.fromkeys(prompt, 1)
    for step in trace.steps:
        for row in step.rows:
            name = row.request
            fed[name] += row.prompt_tokens
            answered[name] += row.accepted
            in_prompt = fed[name] < prompt[name]
            yield Entry(
                step=step.index,
                request=name,
                row=row,
                tokens=prompt[name] + answered[name],
                in_cache=fed[name] if in_prompt else prompt[name] + answered[name] - 1,
                previous=previous[name],
                answered=answered[name],
            )
            previous[name] = max(row.accepted, 1)


def check_ledger(scenario: Scenario, trace: Trace, vocab_size: int | None = None) -> Evidence:
    """Every count of every row against the ledger, and every committed token against the vocabulary."""
    found: list[Divergence] = []
    compared = 0
    for entry in entries(scenario, trace):
        compared += 1
        found += [
            Divergence(
                kind="ledger",
                at=Coordinate(step=entry.step, request=entry.request, tensor=what),
                message=f"{what} is {seen}, the committed tokens say {expected}",
            )
            for what, seen, expected in _clocks(entry)
            if seen != expected
        ]
        if entry.row.accepted > len(entry.row.kept) + 1:
            where = Coordinate(step=entry.step, request=entry.request, tensor="num_accepted_tokens")
            message = f"a={entry.row.accepted} exceeds the row's {len(entry.row.kept)} drafts + 1"
            found.append(Divergence(kind="ledger", at=where, message=message))
        stray = [t for t in entry.row.committed if t < 0 or (vocab_size is not None and t >= vocab_size)]
        if stray:
            where = Coordinate(step=entry.step, request=entry.request, tensor="committed")
            message = f"token {stray[0]} was committed, and the vocabulary does not have it"
            found.append(Divergence(kind="ledger", at=where, message=message))
    summary = f"{compared} ledger lines, {len(found)} wrong counts"
    verdict = Verdict.FAIL if found else Verdict.PASS if compared else Verdict.INCONCLUSIVE
    return Evidence(
        check="ledger", verdict=verdict, summary=summary, divergences=tuple(found), compared=compared
    )


def last_lines(scenario: Scenario, trace: Trace, at: Coordinate, count: int = 3) -> list[str]:
    """The last lines up to a coordinate, of its request where it names one."""
    lines = [
        str(entry)
        for entry in entries(scenario, trace)
        if entry.step <= at.step and (not at.request or entry.request == at.request)
    ]
    return lines[-count:]


def _clocks(entry: Entry) -> Iterator[tuple[str, int, int]]:
    row = entry.row
    yield "num_computed_tokens", row.num_computed, entry.in_cache
    if not row.prompt_tokens:
        yield "num_accepted_tokens", row.previous_accepted, entry.previous
    if row.state is not None:
        yield "state age", row.state.tokens_included, entry.in_cache
    if row.matcher_tokens is not None:
        yield "matcher history", row.matcher_tokens, entry.answered
