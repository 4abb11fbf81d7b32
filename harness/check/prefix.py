"""Prefix caching: how many of its tokens each admitted request should have found, from the trace alone.

A hit needs the KV blocks of all its tokens and the linear layers' state after the last of them; rows of earlier steps
leave both behind. Where the MTP head drafts, the last block found is not taken, since the head's keys of its last
position depend on the token behind it; a block is known by that token too. At least one token is left to be fed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.check.ledger import Entry, lines_by_step
from harness.scenario import Scenario
from harness.trace import Coordinate, StepTrace, Trace
from harness.verdict import Divergence, Evidence, Verdict

Chain = tuple[int, ...]
"""All tokens up to a block boundary, or one more."""


@dataclass(slots=True, kw_only=True)
class Shelf:
    """What the cache can give: blocks until they hold something else, states for ever."""

    size: int  # tokens of a block
    drops_last: bool
    block_of: dict[Chain, int] = field(default_factory=dict)
    states: set[Chain] = field(default_factory=set)

    def chain(self, tokens: Sequence[int], block: int) -> Chain:
        """What a request's block is known by: all tokens to its end, and the one behind it where the head drafts."""
        return tuple(tokens[: (block + 1) * self.size + self.drops_last])

    def hit(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of a request it could take over."""
        found = 0
        while (found + 1) * self.size < len(tokens) and self.chain(tokens, found) in self.block_of:
            found += 1
        usable = range(found - self.drops_last, 0, -1)
        return next((n * self.size for n in usable if tuple(tokens[: n * self.size]) in self.states), 0)

    def learn(self, lines: Sequence[Entry]) -> None:
        """The blocks that rows filled, and the states they left at their ends.

        A piece of a prompt leaves but one state; whatever the pieces, there is one where a lookup can use it.
        """
        for line in lines:
            row = line.row
            tokens = (*line.history, *row.committed)
            for end in range((line.start // self.size + 1) * self.size, line.in_cache + 1, self.size):
                place = end // self.size - 1
                if place < len(row.blocks):
                    self.block_of.setdefault(self.chain(tokens, place), row.blocks[place])
                if not row.prompt_tokens or end == line.in_cache:
                    self.states.add(tokens[:end])
            usable = (line.before // self.size - self.drops_last) * self.size
            if row.prompt_tokens and line.in_cache == line.before and usable > 0:
                self.states.add(tokens[:usable])

    def forget(self, lines: Sequence[Entry]) -> None:
        """What rows own for other tokens is not there any more."""
        chain_of = {block: chain for chain, block in self.block_of.items()}
        for line in lines:
            for place, block in enumerate(line.row.blocks):
                chain, length = chain_of.get(block), (place + 1) * self.size + self.drops_last
                if chain is not None and (len(chain), chain) != (length, self.chain(line.history, place)):
                    self.block_of.pop(chain, None)


def check_prefix(scenario: Scenario, trace: Trace) -> Evidence:
    """Every admission against what earlier steps left: exactly that, or no more where some may have been evicted.

    A step that is planned while the one before it runs may or may not know what that one leaves.
    """
    most, least = (Shelf(size=scenario.block_size, drops_last=_drops_last(scenario)) for _ in range(2))
    capacity = int(trace.notes.get("snapshots", 0))
    lag = 2 if scenario.regime == "placeholder" else 1
    past: list[list[Entry]] = [[]] * lag
    found: list[Divergence] = []
    compared = 0
    hidden = False  # memory was given to a request that has no row to show for it
    for step, lines in lines_by_step(scenario, trace):
        hidden |= _may_hide(scenario, step)
        least.learn(past[-lag])
        for later in (*past[len(past) - lag + 1 :], lines):
            least.forget(later)
        for line in lines:
            if not line.fresh or not scenario.prefix_caching:
                low = high = 0
            else:
                compared += 1
                high = most.hit(line.history)
                low = 0 if hidden or len(most.states) > capacity else least.hit(line.history)
            found += _judge(line, low, high, scenario.block_size)
        most.forget(lines)
        if lag > 1:
            most.learn(past[-1])  # its blocks may have been filed behind the planning of this step
        most.learn(lines)
        if lines:  # a dummy step comes between two others, and nothing is planned in it
            past.append(lines)
    verdict = Verdict.FAIL if found else Verdict.PASS
    summary = f"{compared} admissions looked for a prefix, {len(found)} took the wrong one"
    return Evidence(
        check="prefix", verdict=verdict, summary=summary, divergences=tuple(found), compared=compared
    )


def _drops_last(scenario: Scenario) -> bool:
    return scenario.drafter == "mtp" and scenario.k > 0 and not scenario.forced


def _may_hide(scenario: Scenario, step: StepTrace) -> bool:
    return bool(step.preempted) and (scenario.kv_blocks is not None or scenario.regime == "placeholder")


def _judge(line: Entry, low: int, high: int, size: int) -> Iterator[Divergence]:
    seen = line.row.cached
    if low <= seen <= high and seen % size == 0:
        return
    expected = str(high) if low == high else f"{low} to {high}"
    if seen % size:
        cause = "prefix hit not aligned"
    else:
        cause = "prefix not found" if seen < low else "prefix hit too long"
    message = f"{seen} of {line.before} tokens came from the prefix cache, earlier steps left {expected}"
    yield Divergence(
        kind="ledger",
        at=Coordinate(step=line.step, request=line.request, tensor="cached"),
        message=message,
        cause=cause,
        diagnosis=f"{cause}: {message}",
    )
