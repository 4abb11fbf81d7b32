"""A dumped step: which rows it had, what that says, and the scenario that has them again."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import UsageError
from harness.lab import Lab, Plan
from harness.scenario import Scenario

END_TOKENS = frozenset({151643, 151645})
"""``<|endoftext|>`` and ``<|im_end|>`` of the Qwen family; a log's own stop tokens are added."""
CHUNK = 64
"""Longer contexts keep their remainder by this, the chunk of the prompt kernel, and drop whole chunks."""
USUAL = 12
"""Tokens in cache where the dump does not say."""
MOST_DRAFTS = 8
"""Drafts a request that a scenario can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpedRow:
    """One request in the dumped step; ``None`` where the dump does not say."""

    request: str
    scheduled: int  # tokens of the row
    drafts: tuple[int, ...] = ()
    computed: int | None = None  # tokens in cache before the step
    guided: bool | None = None
    prompt: bool = False  # a piece of a prompt rather than a verify row


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """A dumped step: its rows in batch order (running requests, then new ones)."""

    source: str
    rows: tuple[DumpedRow, ...]
    version: str | None = None
    speculative_tokens: int | None = None  # k, where the log names it
    end_tokens: frozenset[int] = END_TOKENS
    dumps: int = 1  # in the file; the first is read

    @property
    def row_lengths(self) -> list[int]:
        """Tokens of every row."""
        return [row.scheduled for row in self.rows]

    @property
    def decoding_rows(self) -> tuple[DumpedRow, ...]:
        """The rows past their prompt, with drafts or without."""
        return tuple(row for row in self.rows if not row.prompt)

    @property
    def verify_rows(self) -> tuple[DumpedRow, ...]:
        """The rows with drafts."""
        return tuple(row for row in self.rows if row.drafts and not row.prompt)

    @property
    def k(self) -> int:
        """Drafts a request at most: as the log says, else the most that any row has."""
        return max([self.speculative_tokens or 0, *(len(row.drafts) for row in self.rows)])

    @property
    def short_rows(self) -> tuple[DumpedRow, ...]:
        """Rows past their prompt with fewer than k drafts."""
        return tuple(row for row in self.decoding_rows if len(row.drafts) < self.k)

    @property
    def arithmetic(self) -> str:
        """The tokens that there are against those that equal rows would have."""
        count, tokens, full = len(self.verify_rows), _tokens(self.verify_rows), self.k + 1
        if not count:
            return f"{_many(_tokens(self.rows), 'token')}, none of them a draft"
        return f"{tokens} tokens in verify rows, {count} x {full} = {count * full} if every row were full"

    @property
    def consequence(self) -> str:
        """What the arithmetic does to code that takes rows to be equal; empty where they are."""
        count, tokens = len(self.verify_rows), _tokens(self.verify_rows)
        if len({row.scheduled for row in self.verify_rows}) < 2:
            return ""
        if tokens % count:
            return f"; {tokens} is no multiple of {count}: code that takes rows to be equal crashes"
        return (
            f"; {tokens} is {count} x {tokens // count}: code that takes rows to be equal mixes them silently"
        )

    def __str__(self) -> str:
        engine = f"vLLM {self.version}: " if self.version else ""
        lines = [f"{engine}{_many(len(self.rows), 'request')}, {self.arithmetic}{self.consequence}"]
        for row in self.short_rows:
            end = ", an end token" if self._ends(row) else ""
            drafts = f" ({', '.join(map(str, row.drafts))}{end})" if row.drafts else ""
            lines.append(f"  short row: {row.request}, {_many(len(row.drafts), 'draft')} of {self.k}{drafts}")
        prompts = [row for row in self.rows if row.prompt]
        lines += [f"  prompt row: {row.request}, {_many(row.scheduled, 'token')}" for row in prompts]
        if any(-1 in row.drafts for row in self.rows):
            lines.append("  drafts printed as -1 were still on the device: their values are unknown")
        if self.dumps > 1:
            lines.append(f"  the file holds {self.dumps} dumps: this is the first")
        return "\n".join(lines)

    def scenario(self, lab: Lab, k: int | None = None) -> Scenario:
        """A forced scenario whose dumped step has these rows, between two full steps: one so that accepted counts
        lie behind every row, one in which a state that the dumped step got wrong shows.

        The dump does not say how many drafts were accepted, so the counts differ from row to row. UsageError if
        there are more drafts than ``k`` or than a scenario can have.
        """
        k = self.k if k is None else k
        if not self.k <= k <= MOST_DRAFTS:
            raise UsageError(
                f"{self.source}: saw {self.k} drafts a request, expected at most {min(k, MOST_DRAFTS)}",
                hint="choose a dump with fewer drafts a request: this one cannot be replayed",
            )
        plans = {f"r{i}": self._plan(i, row, k) for i, row in enumerate(self.rows)}
        lengths = [row.scheduled if row.prompt else row.computed or 0 for row in self.rows]
        cut = any(length != _fitting(length) for length in lengths)
        prompts = [sum(plan.prompt for plan in plans.values() if plan.arrival == step) for step in (0, 2)]
        return lab.forced(
            f"from {self.source}",
            k=k,
            plans=plans,
            title=f"{_many(len(self.rows), 'request')}, {self.arithmetic}"
            + (f"; long contexts are cut to less than {2 * CHUNK} tokens" if cut else ""),
            token_budget=max(512, prompts[0], prompts[1] + _tokens(self.decoding_rows)),
            max_num_seqs=max(64, len(plans)),
            must_observe=self._demands(k),
        )

    def _plan(self, i: int, row: DumpedRow, k: int) -> Plan:
        before, after = (k, 1 + i % (k + 1)), (k, 1 + (i + 1) % (k + 1))
        if row.prompt:
            arrival = 2 if self.decoding_rows else 0  # the others have a prompt and a verify step behind them
            return Plan(
                prompt=_fitting(row.scheduled), arrival=arrival, guided=bool(row.guided), turns=(after,)
            )
        kept, ends = len(row.drafts), self._ends(row) and len(row.drafts) < k
        if ends:
            # the grammar of an answer that ends has no room for drafts that are not accepted
            before = (k, k + 1)
        prompt = max(1, _fitting(row.computed or USUAL) - before[1])
        if ends:
            return Plan(prompt=prompt, guided=True, turns=(before,), ends=True)
        turns = (before, (kept, 1 + (i + 1) % (kept + 1)), after)
        return Plan(prompt=prompt, guided=self._guided(row, k), turns=turns)

    def _demands(self, k: int) -> dict[str, int]:
        """What the dumped step shows, for the run to show as well."""
        rows = self.decoding_rows
        found = {
            "unequal rows": int(len({row.scheduled for row in rows}) > 1),
            "prompt beside verify rows": int(0 < len(rows) < len(self.rows)),
            "grammar trim": sum(len(row.drafts) < k and self._guided(row, k) for row in rows),
            "grammar trims to zero": sum(len(row.drafts) == 0 < k and self._guided(row, k) for row in rows),
        }
        return {name: count for name, count in found.items() if count}

    def _guided(self, row: DumpedRow, k: int) -> bool:
        """A short row of a dump that does not say is taken to have been cut by a grammar."""
        return len(row.drafts) < k if row.guided is None else row.guided

    def _ends(self, row: DumpedRow) -> bool:
        return len(row.drafts) == 1 and row.drafts[0] in self.end_tokens and row.guided is not False


def _tokens(rows: tuple[DumpedRow, ...]) -> int:
    return sum(row.scheduled for row in rows)


def _fitting(tokens: int) -> int:
    """A length that a tiny model can afford, at the same place within a chunk."""
    return tokens if tokens < 2 * CHUNK else CHUNK + tokens % CHUNK


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
