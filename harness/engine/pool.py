"""Who owns which state slot and which KV block.

A request owns k + 1 state slots: after a verify step, slot j holds its state after token j of its row. Slot 0 and
block 0 are nobody's. Freed memory is reused first in, first out and never cleared, as in a real server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from harness.engine.config import NULL_SLOT
from harness.errors import EngineError


class Pool:
    """A fixed number of equal places, each free or owned; place 0 is never given away.

    A place that several requests share, a block of a common prefix, is free when the last of them has left.
    """

    def __init__(self, size: int, what: str) -> None:
        self._what = what
        self._free: deque[int] = deque(range(NULL_SLOT + 1, size))
        self._owners: dict[int, list[str]] = {}
        self.on_reuse: Callable[[int], None] = lambda place: None
        """Called with a place that is about to be given away."""

    def can_allocate(self, count: int) -> bool:
        """Whether ``count`` places are free."""
        return len(self._free) >= count

    def allocate(self, count: int, owner: str) -> list[int]:
        """Take ``count`` places; EngineError if there are not as many."""
        if not self.can_allocate(count):
            raise EngineError(f"{self._what}: {owner} asks for {count}, {len(self._free)} are free")
        places = [self._free.popleft() for _ in range(count)]
        for place in places:
            self.on_reuse(place)
            self._owners[place] = [owner]
        return places

    def share(self, places: Sequence[int], owner: str) -> None:
        """Make ``owner`` one more owner of places whose content is kept, owned or free."""
        for place in places:
            if place not in self._owners:
                self._free.remove(place)
            self._owners.setdefault(place, []).append(owner)

    def free(self, places: Sequence[int], owner: str) -> None:
        """Give places back."""
        for place in places:
            self._owners[place].remove(owner)
            if not self._owners[place]:
                del self._owners[place]
                self._free.append(place)

    def owners(self, place: int) -> tuple[str, ...]:
        """Who owns a place; nobody where it is free or place 0."""
        return tuple(self._owners.get(place, ()))

    @property
    def num_owned(self) -> int:
        """Places that somebody owns."""
        return len(self._owners)

    @property
    def num_free(self) -> int:
        """Places that nobody owns, place 0 not counted."""
        return len(self._free)
