"""Who owns which state slot and which KV block.

A request owns k + 1 state slots: after a verify step, slot j holds its state after token j of its row. Slot 0 and
block 0 are nobody's. Freed memory is reused first in, first out and never cleared, as in a real server.
"""

from __future__ import annotations

from collections import deque

from harness.engine.config import NULL_SLOT
from harness.errors import EngineError


class Pool:
    """A fixed number of equal places, each owned by one request or free; place 0 is never given away."""

    def __init__(self, size: int, what: str) -> None:
        self._what = what
        self._free: deque[int] = deque(range(NULL_SLOT + 1, size))
        self._owner: dict[int, str] = {}

    def can_allocate(self, count: int) -> bool:
        """Whether ``count`` places are free."""
        return len(self._free) >= count

    def allocate(self, count: int, owner: str) -> list[int]:
        """Take ``count`` places; EngineError if there are not as many."""
        if not self.can_allocate(count):
            raise EngineError(f"{self._what}: {owner} asks for {count}, {len(self._free)} are free")
        places = [self._free.popleft() for _ in range(count)]
        self._owner.update(dict.fromkeys(places, owner))
        return places

    def free(self, places: list[int]) -> None:
        """Give places back."""
        for place in places:
            del self._owner[place]
            self._free.append(place)

    def owner(self, place: int) -> str | None:
        """The owner of a place, ``None`` where it is free or nobody's."""
        return self._owner.get(place)

    @property
    def num_free(self) -> int:
        """Places that nobody owns, place 0 not counted."""
        return len(self._free)
