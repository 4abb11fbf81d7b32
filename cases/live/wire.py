"""Clients that break HTTP itself: bytes on a socket, and what may come back."""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from hostile import plain

LONG = 20
"""Seconds until a socket that says nothing is a server that hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What a client did, the status that came back (``None``: it hung up), and the statuses that are right."""

    name: str
    status: int | None
    right: frozenset[int | None]


class Hung(Exception):
    """Neither an answer nor a hang-up."""


class Line:
    """A connection to the server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=LONG)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *pieces: bytes, pause: float = 0) -> None:
        """Pieces one by one; a server that has hung up already is no error here."""
        try:
            for piece in pieces:
                self.socket.sendall(piece)
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            return

    def status(self) -> int | None:
        """Of the next answer; Hung if none comes."""
        try:
            head = self.socket.recv(4096)
        except TimeoutError:
            raise Hung(f"no answer and no hang-up within {LONG} s") from None
        except ConnectionResetError:
            return None
        return int(head[9:12]) if head.startswith(b"HTTP/1.1 ") else None

    def reset(self) -> None:
        """Leave with a RST instead of a FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def request(body: bytes, *headers: str, length: int | str | None = None) -> bytes:
    """A completion by hand; ``length`` instead of the true one, ``""`` for none."""
    size = len(body) if length is None else length
    lines = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    lines += [] if size == "" else [f"Content-Length: {size}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(body: bytes, size: int) -> list[bytes]:
    """The chunks of a body, the last one included."""
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return [f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts] + [b"0\r\n\r\n"]


def attack(rng: random.Random, url: str, model: str) -> Wire:
    """One of all kinds; Hung if the server leaves the client waiting."""
    body = json.dumps(plain(model)).encode()
    kind = rng.choice(KINDS)
    with Line(url) as line:
        status, right = kind(rng, line, body)
    return Wire(name=kind.__name__.strip("_").replace("_", " "), status=status, right=frozenset(right))


Told = tuple[int | None, set[int | None]]


def _chunks(rng: random.Random, line: Line, body: bytes) -> Told:
    line.send(request(b"", "Transfer-Encoding: chunked", length=""), *chunked(body, rng.randint(1, 40)))
    return line.status(), {200}


def _bad_chunks(rng: random.Random, line: Line, body: bytes) -> Told:
    size = rng.choice((b"zz\r\n", b"-1\r\n", b"F" * 40 + b"\r\n", b"\x00\r\n", b"5\r\nab"))
    line.send(request(b"", "Transfer-Encoding: chunked", length=""), size + body)
    line.socket.shutdown(socket.SHUT_WR)
    return line.status(), {400, None}


def _torn_body(rng: random.Random, line: Line, body: bytes) -> Told:
    line.send(request(body[: rng.randrange(len(body))], length=len(body)))
    if rng.random() < 0.5:
        line.reset()
        return None, {None}
    line.socket.shutdown(socket.SHUT_WR)
    return line.status(), {400, None}


def _lying_length(rng: random.Random, line: Line, body: bytes) -> Told:
    line.send(request(body, length=rng.choice(("-1", "NaN", "1e9", "9" * 30, "5, 6", "0x10", " "))))
    line.socket.shutdown(socket.SHUT_WR)
    return line.status(), {400, 413, None}


def _two_lengths(rng: random.Random, line: Line, body: bytes) -> Told:
    other = rng.choice(
        (
            f"Content-Length: {len(body) + 5}",
            "Transfer-Encoding: identity",
            "Transfer-Encoding: gzip, chunked",
        )
    )
    line.send(request(body, other))
    line.socket.shutdown(socket.SHUT_WR)
    return line.status(), {400, 501, None}


def _header_flood(rng: random.Random, line: Line, body: bytes) -> Told:
    flood = rng.choice((["X-Long: " + "y" * 1_000_000], [f"X-{i}: {i}" for i in range(20_000)]))
    line.send(request(body, *flood))
    return line.status(), {400, 431, None}


def _odd_headers(rng: random.Random, line: Line, body: bytes) -> Told:
    odd = rng.choice(("X : y", "X\x00: y", "No colon", ": y", "X: a\x00b", "\tfolded: y"))
    line.send(request(body, odd))
    return line.status(), {400, 415}  # a folded line goes on with the content type above it


def _harmless_headers(rng: random.Random, line: Line, body: bytes) -> Told:
    more = rng.choice(
        (
            ["Expect: 100-continue"],
            ["Authorization: Bearer \xff\xfe"],
            [f"X-{i}: é" for i in range(50)],
            ["Upgrade: h2c", "Connection: Upgrade"],
        )
    )
    line.send(request(body, *more))
    return line.status(), {100, 200}


def _no_http(rng: random.Random, line: Line, body: bytes) -> Told:
    line.send(
        rng.choice(
            (
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200) + b"\r\n\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"GET\r\n\r\n",
                rng.randbytes(300) + b"\r\n\r\n",
                b"\r\n" * 1000 + b"x\r\n\r\n",
            )
        )
    )
    line.socket.shutdown(socket.SHUT_WR)
    return line.status(), {400, 404, 505, None}  # 404: h11 takes HTTP/2's preface for a path


def _odd_version(rng: random.Random, line: Line, body: bytes) -> Told:
    line.send(f"GET /health HTTP/{rng.choice(('0.9', '1.0', '1.2', '9.9'))}\r\nHost: x\r\n\r\n".encode())
    return line.status(), {200, 400, 505}


def _pipeline(rng: random.Random, line: Line, body: bytes) -> Told:
    line.send(request(body) * rng.randint(2, 5))
    return line.status(), {200}


def _slow(rng: random.Random, line: Line, body: bytes) -> Told:
    whole = request(body)
    cuts = sorted(rng.sample(range(1, len(whole)), 8))
    line.send(*(whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)), pause=0.1)
    return line.status(), {200}


def _slow_reader(rng: random.Random, line: Line, body: bytes) -> Told:
    asked = json.loads(body) | {"stream": True, "max_tokens": 300, "ignore_eos": True, "logprobs": 20}
    line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    line.send(request(json.dumps(asked).encode()))
    status = line.status()
    time.sleep(1)
    line.reset()
    return status, {200}


def _leaving(rng: random.Random, line: Line, body: bytes) -> Told:
    asked = json.loads(body) | {"stream": rng.random() < 0.5, "max_tokens": 900, "ignore_eos": True}
    line.send(request(json.dumps(asked).encode()))
    time.sleep(rng.random() * 0.3)
    line.reset()
    return None, {None}


Kind = Callable[[random.Random, Line, bytes], Told]
KINDS: tuple[Kind, ...] = (
    _chunks, _bad_chunks, _torn_body, _lying_length, _two_lengths, _header_flood, _odd_headers, _harmless_headers,
    _no_http, _odd_version, _pipeline, _slow, _slow_reader, _leaving,
)  # fmt: skip
