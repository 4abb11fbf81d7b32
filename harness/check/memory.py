"""Memory: every place that a step changed is one that a row of that step may write, and nobody shares what is his own.

A verify row leaves one state per token, in its first slots; a prompt row leaves one, in its first slot. Convolution
lines live in the first slot alone, keys and values in the blocks from the row's first token on. State slot 0 is never
written; block 0 takes what padded tokens write. A free slot may receive a snapshot, if the prefix cache says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.check.ledger import Entry, lines_by_step
from harness.scenario import Scenario
from harness.trace import Coordinate, RowTrace, StepTrace, Trace, Writes
from harness.verdict import Divergence, Evidence, Verdict

POOLS = {"conv": "state slots", "recurrent": "state slots", "kv": "KV blocks"}
"""The tensors of ``Writes``, and the note that says how many places the pool of each has."""


def check_memory(scenario: Scenario, trace: Trace) -> Evidence:
    """Who owns which place, and who wrote where, step by step."""
    memory = _Memory(scenario=scenario, sizes={pool: trace.notes.get(pool) for pool in POOLS.values()})
    found: list[Divergence] = []
    compared = unseen = 0
    for step, lines in lines_by_step(scenario, trace):
        memory.begin(step, lines)
        found += memory.owned_twice(step, lines)
        if step.writes is None:
            unseen += 1
        else:
            found += memory.wrong_writes(step, step.writes, lines)
            compared += sum(len(getattr(step.writes, tensor)) for tensor in POOLS)
        memory.end(step)
    verdict = Verdict.FAIL if found else Verdict.INCONCLUSIVE if unseen or not compared else Verdict.PASS
    summary = f"{compared} written places, {len(found)} wrong"
    summary += f"; {unseen} steps did not say what they wrote" if unseen else ""
    return Evidence(
        check="memory", verdict=verdict, summary=summary, divergences=tuple(found), compared=compared
    )


@dataclass(slots=True, kw_only=True)
class _Memory:
    """Who owns what between two steps."""

    scenario: Scenario
    sizes: dict[str, str | None]
    slots: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of every live request
    blocks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    histories: dict[str, tuple[int, ...]] = field(default_factory=dict)
    last: dict[tuple[str, int], str] = field(default_factory=dict)  # what a place of a pool held last
    over: set[str] = field(default_factory=set)  # whose memory is given back before the next step

    def begin(self, step: StepTrace, lines: Sequence[Entry]) -> None:
        """Before a step: who lost memory, and who has it."""
        for name in (*step.preempted, *step.aborted, *self.over):
            self.slots.pop(name, None)
            self.blocks.pop(name, None)
        self.histories.update({line.request: line.history for line in lines})
        for row in step.rows:
            self.slots[row.request], self.blocks[row.request] = row.slots, row.blocks
            self.last.update({("state slots", slot): f"request {row.request}" for slot in row.slots})
            self.last.update({("KV blocks", block): f"request {row.request}" for block in row.blocks})

    def end(self, step: StepTrace) -> None:
        """After it: who is over."""
        self.over = {row.request for row in step.rows if row.finish_reason or row.discarded}
        if step.writes:
            self.last.update({("state slots", slot): "a snapshot" for slot in step.writes.snapshots})

    def owned_twice(self, step: StepTrace, lines: Sequence[Entry]) -> Iterator[Divergence]:
        """Places that are in two hands, or in any though they are nobody's."""
        for pool, hands, tensor in (
            ("state slots", self.slots, "recurrent"),
            ("KV blocks", self.blocks, "kv"),
        ):
            owners: dict[int, tuple[str, int]] = {}
            writers = Counter(place for line in lines for place in set(self._may_write(tensor, line)))
            for name, places in hands.items():
                for index, place in enumerate(places):
                    other, at = owners.setdefault(place, (name, index))
                    if place == 0:
                        yield _wrong(
                            step, pool, name, "null slot owned", f"{name} was given place 0 of {pool}"
                        )
                    elif (other, at) != (name, index) and not (
                        pool == "KV blocks" and at == index and self._same_prefix(name, other, index)
                    ):
                        twice = writers[place] > 1 or name == other
                        cause = "two writers of one slot" if twice else "slot of two requests"
                        words = f"{place} of {pool} is place {at} of {other} and place {index} of {name}"
                        yield _wrong(step, pool, name, cause, words)

    def wrong_writes(self, step: StepTrace, writes: Writes, lines: Sequence[Entry]) -> Iterator[Divergence]:
        """Places that changed though no row may have written them."""
        given_up = {slot for line in lines if _lost_its_memory(line.row) for slot in line.row.slots}
        for tensor, pool in POOLS.items():
            allowed = {place for line in lines for place in self._may_write(tensor, line)}
            owned = self._owned(pool).keys() - given_up
            allowed |= {0} if tensor == "kv" else set(writes.snapshots) - owned - {0}
            for place in getattr(writes, tensor):
                if place not in allowed:
                    yield self._explain(step, tensor, place)

    def _explain(self, step: StepTrace, tensor: str, place: int) -> Divergence:
        pool = POOLS[tensor]
        size, owners = self.sizes[pool], self._owned(pool).get(place, [])
        here = [name for name in owners if name in {row.request for row in step.rows}]
        victim = (here or owners or [""])[0]
        if place == 0:
            cause, words = "null slot written", "place 0 is nobody's"
        elif place < 0:
            cause, words = "write before the pool", f"place {place} is a guard before the pool"
        elif size is not None and place >= int(size):
            cause, words = "write behind the pool", f"place {place} is a guard behind the pool of {size}"
        elif not owners:
            held = self.last.get((pool, place))
            cause, words = (
                "write into a free slot",
                f"place {place} is free" + (f", and held {held} last" if held else ""),
            )
        elif len(owners) > 1:
            cause, words = (
                "shared block written",
                f"block {place} is a common prefix of {' and '.join(owners)}",
            )
        elif here:
            cause, words = (
                "write beyond the row",
                f"place {place} is {victim}'s, and its row does not reach it",
            )
        else:
            cause, words = (
                "write into another request's slot",
                f"place {place} is {victim}'s, which has no row in this step",
            )
        return _wrong(step, tensor, victim, cause, f"{tensor}: {words}, and it changed")

    def _owned(self, pool: str) -> dict[int, list[str]]:
        owners: dict[int, list[str]] = {}
        for name, places in (self.slots if pool == "state slots" else self.blocks).items():
            for place in places:
                owners.setdefault(place, []).append(name)
        return owners

    def _may_write(self, tensor: str, line: Entry) -> Sequence[int]:
        row = line.row
        if tensor == "kv":
            return row.blocks[line.start // self.scenario.block_size :]
        return row.slots[: 1 if tensor == "conv" or row.prompt_tokens else row.tokens]

    def _same_prefix(self, one: str, other: str, index: int) -> bool:
        """Whether two requests may share their block ``index``: it is full, and equal up to its end."""
        end = (index + 1) * self.scenario.block_size
        first, second = self.histories[one], self.histories[other]
        return self.scenario.prefix_caching and len(first) >= end and first[:end] == second[:end]


def _lost_its_memory(row: RowTrace) -> bool:
    """Whether a row's request was preempted or aborted while it ran; one that ended owns its memory until later."""
    return row.discarded and row.finish_reason in (None, "abort")


def _wrong(step: StepTrace, tensor: str, request: str, cause: str, message: str) -> Divergence:
    return Divergence(
        kind="memory",
        at=Coordinate(step=step.index, request=request, tensor=tensor),
        message=message,
        cause=cause,
        diagnosis=f"{cause}: {message}",
    )
