"""The persistent batch: which request stands in which row.

A request keeps its row while it runs. Where one leaves, the last row moves into the hole, so that the rows of a batch
stay dense; whatever is kept by row has to move along (vllm #37728, #49757).
"""

from __future__ import annotations

from collections.abc import Callable

from harness.engine.request import EngineRequest


def moved_count(of_moved: int, of_vacated: int) -> int:
    """The accepted count that a moved row has in its new place: its own."""
    return of_moved


class RowTable:
    """Rows 0 to B - 1, one request each."""

    def __init__(self, moved_count: Callable[[int, int], int] = moved_count) -> None:
        self._moved_count = moved_count
        self.requests: list[EngineRequest] = []
        self.moved: list[str] = []
        """Requests whose row has moved since somebody last looked."""

    def add(self, request: EngineRequest) -> None:
        """A new row at the end."""
        self.requests.append(request)

    def remove(self, request: EngineRequest) -> None:
        """Vacate a request's row; the last row takes its place."""
        row, last = self.requests.index(request), self.requests.pop()
        if last is not request:
            self.requests[row] = last
            last.num_accepted = self._moved_count(last.num_accepted, request.num_accepted)
            self.moved.append(last.id)

    def place(self, request: EngineRequest) -> int:
        """The row of a request."""
        return self.requests.index(request)
