"""A crowd for a while: ``make soak SECONDS=60``.

200 streams at a time, guided and free, greedy and seeded, short and long; half of them hang up in the middle. Every
stream must agree with itself: token ids with text, usage and log-probabilities, one answer per stream. Afterwards every
slot and block must be free, the server's memory flat, and a sample of the answers, asked for again with nobody else
there, the same. Each result is on disk when it comes; a second ``soak`` is never needed to see what the first one saw.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from asks import Ask, ask
from memory import Memory
from rundir import Lines, begin, finish, progress
from server import CannotServe, Server, serving
from solo import compare
from streams import Answer, read

PATIENCE = 120
"""Seconds in which what has begun must end."""


class Crowd:
    """``size`` clients that ask one thing after another until the time is over, or the server gone."""

    def __init__(self, server: Server, seed: int, size: int, results: Lines) -> None:
        self.answers: list[Answer] = []
        self.in_flight: dict[int, Ask] = {}
        self.lost: list[int] = []
        """Requests that were under way when the server went."""
        self._server = server
        self._seed = seed
        self._size = size
        self._results = results
        self._numbers = itertools.count()

    async def run(self, until: float) -> None:
        """Until nobody asks any more."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._size)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=PATIENCE, limits=limits) as client:
            await asyncio.gather(*(self._one(client, until) for _ in range(self._size)))

    async def _one(self, client: httpx.AsyncClient, until: float) -> None:
        while time.monotonic() < until and not self.lost:
            one = ask(self._seed, next(self._numbers), self._server.model)
            self.in_flight[one.index] = one
            self._results.write({"event": "begun", "index": one.index})
            answer = await read(client, one)
            if answer.ended == "broken" and await self._is_gone():
                self.lost.append(one.index)
                self._results.write({**answer.line(), "event": "lost", "body": one.body})
            else:
                self.answers.append(answer)
                self._results.write(answer.line())
            del self.in_flight[one.index]

    async def _is_gone(self) -> bool:
        """Whether the server is; connections end a little before their process does."""
        for _ in range(20):
            if self.lost or not await asyncio.to_thread(lambda: self._server.is_running):
                return True
            await asyncio.sleep(0.05)
        return False


async def soak(args: argparse.Namespace, server: Server, folder: Path) -> dict[str, Any]:
    """What is said in the end."""
    memory = Memory(server)
    with (
        Lines(folder / "streams.jsonl") as results,
        Lines(folder / "found.jsonl") as found,
        progress() as say,
    ):
        crowd = Crowd(server, args.seed, args.streams, results)
        start = time.monotonic()
        work = asyncio.create_task(crowd.run(start + args.seconds))
        while not work.done():
            await asyncio.wait((work,), timeout=0.5)
            memory.sample(time.monotonic() - start)
            say(
                f"{time.monotonic() - start:4.0f} s, {len(crowd.answers)} answers, {len(crowd.in_flight)} in flight"
            )
        work.result()
        load = time.monotonic() - start
        whole = [each for each in crowd.answers if each.ended == "whole"]
        told: dict[str, Any] = {
            "seconds": round(load, 1),
            "streams": args.streams,
            "ended": dict(Counter(each.ended for each in crowd.answers)),
            "tokens": sum(len(each.tokens) for each in crowd.answers),
        }
        faults = [(f"stream {each.index}", wrong) for each in crowd.answers for wrong in each.wrong]
        if crowd.lost:
            faults.append(
                (
                    "server gone",
                    f"requests in flight: {sorted(crowd.lost)}; what had come is in streams.jsonl",
                )
            )
            told["lost"] = sorted(crowd.lost)
        else:
            say("is everything given back?")
            if not server.wait_until_free(10):
                faults.append(("not given back", "requests or blocks 10 s after the last stream"))
            told["memory"] = memory.told(args.seconds)
            faults += memory.faults(args.seconds)
            sample = random.Random(args.seed).sample(whole, min(args.sample, len(whole)))
            comparison = await compare(server, args.seed, sample, crowd.answers, say)
            told["solo"] = comparison.told()
            faults += comparison.faults
            if len(sample) < args.sample:
                faults.append(
                    ("too few answers", f"{len(whole)} whole ones, {args.sample} were to be compared")
                )
        for kind, detail in faults:
            found.write({"kind": kind, "detail": detail, "replay": f"--seed {args.seed}"})
    return {**told, "faults": len(faults), "exit": int(bool(faults))}


def main() -> int:
    """Exit code 0: all is well; 1: something is not; 2: no server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--seconds", type=float, default=60)
    add("--seed", type=int, default=0)
    add("--streams", type=int, default=200, help="at a time (200)")
    add("--sample", type=int, default=200, help="answers that are asked for again, alone (200)")
    add("--base-url", metavar="URL", help="a server that runs already (default: one of our own)")
    add("--reports", type=Path, default=Path("reports"))
    add("--serve", default="", metavar="ARGS", help="arguments of our own server")
    args = parser.parse_args()
    folder = begin(args.reports, "soak")
    try:
        with serving(args.base_url, args.serve.split(), folder / "server.log") as server:
            about = {"verb": "soak", "seed": args.seed, "server": {"url": server.url, "pid": server.pid}}
            (folder / "run.json").write_text(json.dumps({**about, "state": "running"}) + "\n")
            told = {**about, **asyncio.run(soak(args, server, folder))}
    except CannotServe as error:
        told = {"verb": "soak", "error": str(error), "exit": 2}
    return finish(folder, told)


if __name__ == "__main__":
    sys.exit(main())
