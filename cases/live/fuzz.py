"""A fuzzer of the server: ``make fuzz SECONDS=300``.

Three kinds of clients take turns: requests drawn from the server's own OpenAPI document, right and wrong ones
(schemathesis); bodies that nobody should send (``hostile.py``); and clients that break HTTP (``wire.py``). Every answer
must come in time, with a status that is right for it; and after each turn a plain request must get the greedy tokens
that it got at first. In the end everything must be given back.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import requests
import schemathesis
from hostile import draw, plain
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from rundir import Lines, begin, finish, progress
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import Failure, FailureGroup
from server import CannotServe, Server, serving
from wire import Hung, attack

DRAWN, HOSTILE, WIRES = 30, 8, 2
"""Requests of each kind in a turn."""
JUDGED_BY = (
    "not_a_server_error status_code_conformance content_type_conformance response_schema_conformance"
    " negative_data_rejection"
).split()
QUIET = [check for check in HealthCheck if check is not HealthCheck.nested_given]


@dataclass(slots=True, kw_only=True)
class Fuzzer:
    """One server under fire. What goes wrong is written down at once, one line for each kind."""

    server: Server
    rng: random.Random
    case_seconds: float
    found: Lines
    kinds: Counter[str] = field(default_factory=Counter)
    answers: Counter[tuple[str, int | str]] = field(default_factory=Counter)
    slowest: float = 0.0
    last: deque[str] = field(default_factory=lambda: deque(maxlen=2 * HOSTILE))

    def turns(self, until: float) -> Iterator[None]:
        """Turn after turn, to the time given or the end of the server; yields after each."""
        load_all_checks()
        first = self._canary()
        config = SchemathesisConfig()
        config.output.sanitization.enabled = False  # max_tokens is no secret
        document = schemathesis.openapi.from_url(f"{self.server.url}/openapi.json", config=config)
        operations = [each.ok() for each in document.get_all_operations()]
        while time.monotonic() < until and self._lives():
            operation = self.rng.choice(
                [each for each in operations if each.method == "post" or self.rng.random() < 0.1]
            )
            for name, turn in (
                ("drawn", partial(self._drawn, operation, until)),
                ("hostile", self._hostile),
                ("wire", self._wire),
            ):
                turn()
                now = self._canary()
                if now != first:
                    self._add(f"canary after {name}", f"{now}, at first {first}", "")
                yield
        if self._lives() and not self.server.wait_until_free(30):
            self._add("not given back", "requests or blocks 30 s after the last request", "GET /metrics")

    def _lives(self) -> bool:
        """Whether it is worth while to go on; if not, what is to blame is among the last requests."""
        try:
            health = httpx.get(f"{self.server.url}/health", timeout=self.case_seconds)
        except httpx.HTTPError as error:
            said = repr(error)
        else:
            if health.status_code == 200:
                return True
            said = health.text
        self._add("dead", said, "the last requests:\n" + "\n".join(self.last))
        return False

    def _canary(self) -> list[int] | str:
        """The greedy tokens of a plain request."""
        body = plain(self.server.model, max_tokens=12, return_token_ids=True)
        try:
            answer = httpx.post(f"{self.server.url}/v1/completions", json=body, timeout=self.case_seconds)
            return answer.json()["choices"][0]["token_ids"]
        except (httpx.HTTPError, ValueError, KeyError) as error:
            return repr(error)

    def _drawn(self, operation: Any, until: float) -> None:
        """Requests from the document; half of them are wrong on purpose where they can be."""
        mode = self.rng.choice((GenerationMode.POSITIVE, GenerationMode.NEGATIVE))
        if operation.method == "get":
            mode = GenerationMode.POSITIVE
        model = self.server.model

        @seed(self.rng.getrandbits(32))
        @settings(
            max_examples=DRAWN,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=QUIET,
        )
        @given(case=operation.as_strategy(mode), known=st.integers(0, 9))
        def one(case: Case, known: int) -> None:
            if mode is GenerationMode.POSITIVE and isinstance(case.body, dict) and known:
                case.body = _aimed(
                    case.body, operation.path, model
                )  # a name out of nowhere would end every request with a 404
            if time.monotonic() < until:
                self._judge(case, mode.value)

        try:
            one()
        except Exception as error:
            if type(error).__module__.split(".")[0] not in ("hypothesis", "schemathesis"):
                raise

    def _judge(self, case: Case, mode: str) -> None:
        start = time.monotonic()
        label = case.operation.label
        self.last.append(case.as_curl_command()[:2000])
        try:
            answer = case.call(timeout=self.case_seconds)
        except requests.Timeout:
            return self._add(
                f"hang: {label}", f"no answer in {self.case_seconds:g} s", case.as_curl_command()
            )
        except requests.RequestException as error:
            if isinstance(error, requests.exceptions.InvalidHeader | requests.exceptions.InvalidURL):
                return None  # never sent
            return self._add(f"cut: {label}", repr(error), case.as_curl_command())
        self._answered(f"drawn {mode}", answer.status_code, time.monotonic() - start)
        try:
            case.validate_response(answer, checks=CHECKS.get_by_names(JUDGED_BY))
        except (Failure, FailureGroup) as error:
            failures = error.exceptions if isinstance(error, FailureGroup) else [error]
            for failure in failures:
                detail = f"{answer.status_code}: {answer.text[:300]}; {getattr(failure, 'message', failure)}"
                self._add(f"{type(failure).__name__}: {label}", detail[:2000], case.as_curl_command()[:2000])
        return None

    def _hostile(self) -> None:
        for _ in range(HOSTILE):
            case = draw(self.rng, self.server.model)
            start = time.monotonic()
            replay = f"{case.method} {case.path} {case.headers} {case.content[:500]!r}"
            self.last.append(replay)
            try:
                answer = httpx.request(
                    case.method,
                    self.server.url + case.path,
                    content=case.content,
                    headers=case.headers,
                    timeout=self.case_seconds,
                )
            except httpx.TimeoutException:
                self._add(f"hang: {case.name}", f"no answer in {self.case_seconds:g} s", replay)
                continue
            except httpx.HTTPError as error:
                # a server that refuses a large body hangs up while it is still being sent
                if 413 not in case.right:
                    self._add(f"cut: {case.name}", repr(error), replay)
                continue
            self._answered("hostile", answer.status_code, time.monotonic() - start)
            if answer.status_code not in case.right:
                wanted = sorted(case.right)
                self._add(
                    f"status: {case.name}",
                    f"{answer.status_code}, right: {wanted}; {answer.text[:300]}",
                    replay,
                )

    def _wire(self) -> None:
        for _ in range(WIRES):
            try:
                done = attack(self.rng, self.server.url, self.server.model)
            except (Hung, OSError) as error:
                self._add(f"wire: {type(error).__name__}", str(error), "")
                continue
            self._answered("wire", done.status)
            if done.status not in done.right:
                self._add(f"wire: {done.name}", f"{done.status}, right: {done.right}", "")

    def _answered(self, source: str, status: int | None, seconds: float = 0) -> None:
        self.answers[source, status or "hang-up"] += 1
        self.slowest = max(self.slowest, seconds)

    def statuses(self) -> dict[str, dict[str, int]]:
        """How many answers of each status every kind of client got."""
        told: dict[str, dict[str, int]] = {}
        for (source, status), count in sorted(self.answers.items(), key=str):
            told.setdefault(source, {})[str(status)] = count
        return told

    def _add(self, kind: str, detail: str, replay: str) -> None:
        self.kinds[kind] += 1
        if self.kinds[kind] == 1:
            self.found.write({"kind": kind, "detail": detail, "replay": replay})


def _aimed(body: dict[str, Any], path: str, model: str) -> dict[str, Any]:
    """A right body that gets past the model's name and does not fill the model's length."""
    if not path.startswith("/v1"):
        return body
    lengths = ("max_tokens", "max_completion_tokens")
    short = {name: min(body.get(name) or 4, 8) for name in lengths if name == "max_tokens" or name in body}
    return {**body, **short, "model": model}


def main() -> int:
    """Exit code 0: nothing found; 1: something; 2: no server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--seconds", type=float, default=60)
    add("--seed", type=int, default=0)
    add("--first", action="store_true", help="end with the first fault")
    add("--case-seconds", type=float, default=30, help="a request that takes longer is a hang (30)")
    add("--base-url", metavar="URL", help="a server that runs already (default: one of our own)")
    add("--reports", type=Path, default=Path("reports"))
    add("--serve", default="--compile-seconds 3", metavar="ARGS", help="arguments of our own server")
    args = parser.parse_args()
    folder = begin(args.reports, "fuzz")
    try:
        with (
            serving(args.base_url, args.serve.split(), folder / "server.log") as server,
            Lines(folder / "found.jsonl") as found,
        ):
            fuzzer = Fuzzer(
                server=server, rng=random.Random(args.seed), case_seconds=args.case_seconds, found=found
            )
            start, rss = time.monotonic(), server.rss
            until = start + args.seconds
            with progress() as say:
                for _ in fuzzer.turns(until):
                    if args.first and fuzzer.kinds:
                        break
                    say(
                        f"{max(until - time.monotonic(), 0):4.0f} s left, {fuzzer.answers.total()} requests,"
                        f" {len(fuzzer.kinds)} kinds of faults"
                    )
            told = {
                "verb": "fuzz",
                "seed": args.seed,
                "seconds": round(time.monotonic() - start, 1),
                "requests": fuzzer.answers.total(),
                "statuses": fuzzer.statuses(),
                "slowest_s": round(fuzzer.slowest, 2),
                "rss_mb": [size and size // 2**20 for size in (rss, server.rss)],
                "found": dict(fuzzer.kinds),
                "exit": int(bool(fuzzer.kinds)),
            }
    except CannotServe as error:
        told = {"verb": "fuzz", "error": str(error), "exit": 2}
    return finish(folder, told)


if __name__ == "__main__":
    sys.exit(main())
