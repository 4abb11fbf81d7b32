"""What really happened in a run: events that a scenario can demand, so that nothing passes by never being tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from harness.scenario import Request, Scenario
from harness.trace import RowTrace, StepTrace, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A row that counts, its request, the same request's row of an earlier step, and its answer so far."""

    row: RowTrace
    request: Request
    before: RowTrace | None
    answer: Sequence[int]
    k: int

    @property
    def verifies(self) -> bool:
        """Whether it is a verify row."""
        return not self.row.prompt_tokens

    @property
    def drafts(self) -> int:
        """Drafts in the row, placeholders not counted."""
        return sum(token >= 0 for token in self.row.kept)

    @property
    def legal(self) -> int:
        """Drafts that the grammar left."""
        return len(self.row.proposed) if self.row.grammar_kept is None else self.row.grammar_kept

    @property
    def before_verifies(self) -> bool:
        """Whether the earlier row is there and was a verify row."""
        return self.before is not None and not self.before.prompt_tokens

    def accepts_draft(self, index: int) -> bool:
        """Whether token ``index`` of what was committed is an accepted draft, so that more could have followed."""
        return 0 <= index < len(self.row.kept) and self.row.kept[index] == self.row.committed[index]


RowEvent = Callable[[Seen], bool]
StepEvent = Callable[[StepTrace], bool]


def _counting(step: StepTrace) -> list[RowTrace]:
    return [row for row in step.rows if not row.discarded]


def _decoding(step: StepTrace) -> list[RowTrace]:
    return [row for row in _counting(step) if not row.prompt_tokens]


STEP_EVENTS: dict[str, StepEvent] = {
    "unequal rows": lambda step: len({row.tokens for row in _decoding(step)}) > 1,
    "different accepted counts": lambda step: len({row.accepted for row in _decoding(step)}) > 1,
    "different previous counts": lambda step: len({row.previous_accepted for row in _decoding(step)}) > 1,
    "prompt beside verify rows": lambda step: 0 < len(_decoding(step)) < len(_counting(step)),
    "verify step without drafts": lambda step: (
        bool(_decoding(step)) and not any(row.kept for row in step.rows)
    ),
    "padded rows": lambda step: step.padded_rows > 0,
    "padded tokens": lambda step: step.padded_tokens > 0,
    "graph replay": lambda step: step.replayed,
    "replay padded rows": lambda step: step.replayed and step.padded_rows > 0,
    "prompt before a verify row": lambda step: any(
        row.prompt_tokens and not after.prompt_tokens for row, after in pairwise(step.rows)
    ),
    "several prompts": lambda step: len(_counting(step)) - len(_decoding(step)) > 1,
    "preemption": lambda step: bool(step.preempted),
    "abort": lambda step: bool(step.aborted),
    "row move": lambda step: bool(step.moved),
    "dummy step": lambda step: not step.rows,
    "discarded row": lambda step: any(row.discarded for row in step.rows),
    "k is zero": lambda step: step.k == 0,
}
"""Counted once a step."""

ROW_EVENTS: dict[str, RowEvent] = {
    "rollback": lambda seen: seen.verifies and seen.row.accepted < len(seen.row.kept) + 1,
    "all drafts accepted": lambda seen: bool(seen.row.kept) and seen.row.accepted == len(seen.row.kept) + 1,
    "two or more accepted": lambda seen: seen.row.accepted > 1,
    "trim": lambda seen: seen.drafts < len(seen.row.proposed),
    "trim to zero": lambda seen: not seen.drafts and bool(seen.row.proposed),
    "grammar trim": lambda seen: seen.legal < len(seen.row.proposed),
    "schedule trim": lambda seen: seen.drafts < seen.legal,
    "grammar trims to zero": lambda seen: seen.legal == 0 < len(seen.row.proposed),
    "placeholder draft": lambda seen: -1 in seen.row.kept,
    "no drafts after several accepted": lambda seen: (
        seen.verifies and not seen.row.kept and seen.row.previous_accepted > 1
    ),
    "row shorter than accepted before": lambda seen: (
        seen.verifies and seen.row.previous_accepted > seen.row.tokens
    ),
    "prompt in pieces": lambda seen: bool(
        seen.row.prompt_tokens and not seen.row.resumed and seen.before and seen.before.prompt_tokens
    ),
    "short prompt": lambda seen: seen.before is None and len(seen.request.prompt) < seen.k + 1,
    "one-token prompt row": lambda seen: seen.row.prompt_tokens == 1,
    "prompt tail of one token": lambda seen: (
        seen.row.prompt_tokens == 1 < seen.row.num_computed and bool(seen.row.committed)
    ),
    "resume": lambda seen: seen.row.resumed,
    "prefix hit": lambda seen: seen.row.cached > 0,
    "drafts after a step without": lambda seen: (
        bool(seen.row.kept) and seen.before_verifies and not (seen.before and seen.before.kept)
    ),
    "draft length rises": lambda seen: (
        seen.verifies and seen.before_verifies and len(seen.row.kept) > len(_kept(seen.before))
    ),
    "draft length falls": lambda seen: (
        seen.verifies and seen.before_verifies and len(seen.row.kept) < len(_kept(seen.before))
    ),
    "end token in window": lambda seen: (
        seen.row.finish_reason == "stop" and seen.accepts_draft(seen.row.accepted - 1)
    ),
    "stop text": lambda seen: (
        seen.row.finish_reason == "stop"
        and bool(seen.request.stop)
        and not {*seen.row.committed[-1:]} & {*seen.request.stop_token_ids}
    ),
    "reasoning ends in window": lambda seen: (
        seen.request.reasoning_end in seen.row.committed
        and seen.request.reasoning_end not in seen.answer
        and seen.accepts_draft(seen.row.committed.index(seen.request.reasoning_end))
    ),
}
"""Counted once a row, of rows that were not discarded."""

EVENTS = (*STEP_EVENTS, *ROW_EVENTS, "slot reuse", "k change")
"""Every name that ``must_observe`` may use."""

WITH_GRAPHS = {"padded rows": "replay padded rows", "padded tokens": "graph replay"}
"""What is demanded besides, where the target has real graphs."""

PAIRED = (
    "trim to zero",
    "two or more accepted",
    "preemption",
    "prefix hit",
    "padded rows",
    "row move",
    "end token in window",
    "prompt beside verify rows",
    "k change",
)
"""Events that must meet each other in generated runs."""


def observe(scenario: Scenario, trace: Trace) -> Counter[str]:
    """How often each event happened."""
    counts: Counter[str] = Counter()
    before: dict[str, RowTrace] = {}
    owners: dict[int, str] = {}
    answers: dict[str, list[int]] = {request.id: [] for request in scenario.requests}
    lengths = [step.k for step in trace.steps if step.k is not None]
    counts["k change"] = sum(earlier != later for earlier, later in pairwise([scenario.k, *lengths]))
    for step in trace.steps:
        counts.update(name for name, event in STEP_EVENTS.items() if event(step))
        for row in step.rows:
            counts["slot reuse"] += any(owners.get(slot, row.request) != row.request for slot in row.slots)
            owners.update(dict.fromkeys(row.slots, row.request))
            if row.discarded:
                continue
            seen = Seen(
                row=row,
                request=scenario.request(row.request),
                before=before.get(row.request),
                answer=answers[row.request],
                k=scenario.k,
            )
            counts.update(name for name, event in ROW_EVENTS.items() if event(seen))
            before[row.request] = row
            answers[row.request] += row.committed
    return counts


def pairs(counts: Counter[str]) -> Counter[tuple[str, str]]:
    """Of one run's counts, the pairs of ``PAIRED`` events that it had both of; summed over runs, what met what."""
    return Counter(combinations((name for name in PAIRED if counts[name]), 2))


def demanded(scenario: Scenario, trace: Trace) -> dict[str, int]:
    """How often which event must have happened: with graphs, padding counts only where it was replayed."""
    named = scenario.must_observe
    replays = {event: named[name] for name, event in WITH_GRAPHS.items() if name in named}
    return {**(replays if trace.has_graphs else {}), **named}


def missing(demands: Mapping[str, int], counts: Counter[str]) -> Iterator[str]:
    """What is demanded and did not happen, in words; an unknown demand is never met."""
    for name, least in demands.items():
        if counts[name] < least:
            yield f"{name}: seen {counts[name]}, demanded {least}"


def _kept(row: RowTrace | None) -> Sequence[int]:
    return row.kept if row else ()
