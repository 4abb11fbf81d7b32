"""How much a server is asked: a budget of requests, and so many a second at most."""

from __future__ import annotations

import asyncio
import time


class BudgetSpentError(Exception):
    """No request is left; what was answered so far is judged."""


class Pace:
    """``most`` requests in all, ``per_second`` of them; ``None``: no limit."""

    def __init__(self, most: int | None = None, per_second: float | None = None) -> None:
        self.num_asked = 0
        self._most = most
        self._gap = 0.0 if per_second is None else 1 / per_second
        self._next = 0.0

    async def turn(self) -> None:
        """Wait until the next request may go out; BudgetSpentError behind the last."""
        if self._most is not None and self.num_asked >= self._most:
            raise BudgetSpentError
        self.num_asked += 1
        now = time.monotonic()
        mine = max(now, self._next)
        self._next = mine + self._gap
        await asyncio.sleep(mine - now)
