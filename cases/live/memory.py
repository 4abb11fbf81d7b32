"""The server's memory over time."""

from __future__ import annotations

from statistics import median
from typing import Any

from server import Server

MIB = 2**20
MOST_GROWTH = 32 * MIB
"""Between warm-up and end. A correct server goes up and down by 20 MiB over minutes of this load (allocators,
bodies that are being written); one that keeps 50 KiB for each request grows by more than this in half a minute."""
WARM_UP = 20
"""Seconds in which a correct server grows: a run of less than twice that says its sizes and judges none."""


class Memory:
    """Samples of the resident size. Warm-up is the first half of the load: grammars are cached, pools touched, arenas
    of the allocator full."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._samples: list[tuple[float, int]] = []

    def sample(self, second: float) -> None:
        """Look once."""
        if (size := self._server.rss) is not None:
            self._samples.append((second, size))

    def told(self, seconds: float) -> dict[str, Any]:
        """MiB at the start, behind the warm-up and at the end."""
        if not self._samples:
            return {"unknown": "the server is not a process of ours"}
        warm, end = self._ends(seconds)
        start = self._samples[0][1]
        most = MOST_GROWTH // MIB if seconds >= 2 * WARM_UP else "not judged: too short"
        return {"start": start // MIB, "warm": warm // MIB, "end": end // MIB, "most_growth": most}

    def faults(self, seconds: float) -> list[tuple[str, str]]:
        """What grew."""
        if not self._samples or seconds < 2 * WARM_UP:
            return []
        warm, end = self._ends(seconds)
        if end - warm <= MOST_GROWTH:
            return []
        return [("memory grows", f"{warm // MIB} MiB behind the warm-up, {end // MIB} MiB at the end")]

    def _ends(self, seconds: float) -> tuple[int, int]:
        """Medians of a tenth of the time each."""
        last = self._samples[-1][0]
        warm = [size for second, size in self._samples if 0.5 * seconds <= second < 0.6 * seconds]
        end = [size for second, size in self._samples if second >= last - 0.1 * seconds]
        return int(median(warm or [self._samples[0][1]])), int(median(end))
