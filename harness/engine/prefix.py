"""Prefix caching: KV blocks and recurrent states that a later request with the same first tokens starts from.

A full block of committed tokens is known by the chain of all tokens up to its end. Attention needs the blocks, the
linear layers need their state after exactly as many tokens, so a hit needs both (vllm #30877, cache mode "align").
The MTP head's keys of a block's last position depend on the token after it. So the last block found is dropped where
that head drafts (vllm #43559); and a block is known by that token too, since a request may share a block and go on
otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.engine.pool import Pool

OWNER = "prefix cache"
Chain = tuple[int, ...]
"""All tokens up to a block boundary, or one more."""


# Decisions: where the known bugs live. Boundaries are numbers of tokens.


def attention_blocks(found: int, drops_last: bool) -> int:
    """Of ``found`` leading blocks in the cache: how many attention takes over."""
    return found - 1 if drops_last and found else found


def state_blocks(found: int, drops_last: bool) -> int:
    """Of ``found`` leading blocks in the cache: after how many the linear layers' state is taken over."""
    return attention_blocks(found, drops_last)


def snapshot_column(boundary: int, start: int, num_tokens: int, num_computed: int) -> int:
    """The column that holds the state after ``boundary`` tokens, in a row of ``num_tokens`` tokens from ``start`` on of
    which those up to ``num_computed`` are committed."""
    return max(boundary - start, 1) - 1


def column_of_layer(column: int, layer: int) -> int:
    """The column that linear layer ``layer`` copies: the same in all of them."""
    return column


def usable_boundary(boundary: int, block_size: int, drops_last: bool) -> int:
    """Where a prompt that reaches ``boundary`` is cut for its state to be of use: a block earlier where lookups drop
    the last block that they find (vllm #45238)."""
    return boundary - block_size if drops_last else boundary


def boundaries(start: int, end: int, block_size: int, last_of_prompt: int) -> list[int]:
    """The boundaries whose state a row leaves that brought its request from ``start`` to ``end`` tokens.

    ``last_of_prompt`` is the last one that a piece of its prompt left.
    """
    return list(range((start // block_size + 1) * block_size, end + 1, block_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixDecisions:
    """Every choice of this module that can be wrong."""

    attention_blocks: Callable[[int, bool], int] = attention_blocks
    state_blocks: Callable[[int, bool], int] = state_blocks
    snapshot_column: Callable[[int, int, int, int], int] = snapshot_column
    column_of_layer: Callable[[int, int], int] = column_of_layer
    usable_boundary: Callable[[int, int, bool], int] = usable_boundary
    boundaries: Callable[[int, int, int, int], list[int]] = boundaries


CORRECT_PREFIX = PrefixDecisions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """What a request starts from: its leading blocks, and the slot with the state after them (``None``: nothing)."""

    blocks: list[int]
    snapshot: int | None = None


class PrefixCache:
    """What is kept, over the engine's two pools. Forgets a block when the pool gives it away again."""

    def __init__(
        self,
        blocks: Pool,
        slots: Pool,
        *,
        block_size: int,
        most_snapshots: int,
        drops_last: bool,
        decisions: PrefixDecisions = CORRECT_PREFIX,
    ) -> None:
        self._blocks = blocks
        self._slots = slots
        self._block_size = block_size
        self._most_snapshots = most_snapshots
        self._drops_last = drops_last
        self._decisions = decisions
        self._block_of: dict[Chain, int] = {}
        self._chain_of: dict[int, Chain] = {}
        self._slot_of: OrderedDict[Chain, int] = OrderedDict()  # least recently used first
        self._pinned: set[int] = set()
        blocks.on_reuse = self._forget

    def hit(self, tokens: Sequence[int], owner: str) -> Hit:
        """The longest prefix of ``tokens`` that the cache can give; its blocks are then shared with ``owner``.

        At least one token is left to be fed, since the first new token comes from its logits. The snapshot stays until
        ``unpin``.
        """
        size, found = self._block_size, 0
        while (found + 1) * size < len(tokens) and self._chain(tokens, found) in self._block_of:
            found += 1
        while found:
            attention = self._decisions.attention_blocks(found, self._drops_last)
            state = self._decisions.state_blocks(found, self._drops_last)
            slot = self._slot_of.get(tuple(tokens[: state * size]))
            if attention and slot is not None:
                self._slot_of.move_to_end(tuple(tokens[: state * size]))
                shared = [self._block_of[self._chain(tokens, i)] for i in range(attention)]
                self._blocks.share(shared, owner)
                self._pinned.add(slot)
                return Hit(blocks=shared, snapshot=slot)
            found -= 1
        return Hit(blocks=[])

    def end_of_piece(self, start: int, end: int) -> int:
        """Where a piece of a prompt from ``start`` to ``end`` at most has to end, for its state to be filed."""
        boundary = end // self._block_size * self._block_size
        usable = self._decisions.usable_boundary(boundary, self._block_size, self._drops_last)
        return next((place for place in (usable, boundary) if place > start), end)

    @property
    def num_snapshots(self) -> int:
        """States that are kept."""
        return len(self._slot_of)

    def unpin(self, snapshot: int) -> None:
        """The state of a hit has been taken over."""
        self._pinned.discard(snapshot)

    def keep_blocks(self, tokens: Sequence[int], blocks: Sequence[int], start: int, end: int) -> None:
        """File the blocks that became full when a request went from ``start`` to ``end`` computed tokens."""
        size = self._block_size
        for i in range(start // size, end // size):
            chain = self._chain(tokens, i)
            if chain not in self._block_of:
                self._block_of[chain] = blocks[i]
                self._chain_of[blocks[i]] = chain

    def snapshot_slot(self, tokens: Sequence[int], *, again: bool = False) -> int | None:
        """A slot for the state after ``tokens``; ``None`` where there is one and it is not to be written ``again``."""
        chain = tuple(tokens)
        if chain in self._slot_of:
            return self._slot_of[chain] if again else None
        if len(self._slot_of) == self._most_snapshots:
            oldest = next(known for known, slot in self._slot_of.items() if slot not in self._pinned)
            self._slots.free([self._slot_of.pop(oldest)], OWNER)
        (slot,) = self._slots.allocate(1, OWNER)
        self._slot_of[chain] = slot
        return slot

    def _chain(self, tokens: Sequence[int], block: int) -> Chain:
        """What the ``block``-th block of a request is known by."""
        return tuple(tokens[: (block + 1) * self._block_size + self._drops_last])

    def _forget(self, block: int) -> None:
        chain = self._chain_of.pop(block, None)
        if chain is not None:
            del self._block_of[chain]
