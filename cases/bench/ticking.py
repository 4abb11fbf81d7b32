"""A server like an engine: one chunk to every live stream per step of 20 ms, and the truth about each.

Plain sockets and one loop, because the truth must not be late itself: when a request reached this machine is the
kernel's own time stamp (``SO_TIMESTAMPNS``), not the moment at which a busy loop got round to reading it, and the time
of a write is taken just before its system call.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import struct
import sys
import time

STEP = 0.020
TOKENS = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
NAME = re.compile(rb"\r\nx-request-id: ?([^\r]+)", re.IGNORECASE)
LENGTH = re.compile(rb"\r\ncontent-length: ?(\d+)", re.IGNORECASE)
STAMPED = getattr(socket, "SO_TIMESTAMPNS", 35)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ASIDE = b'"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,"model":"ticking"'


def event(payload: bytes) -> bytes:
    """One event in one transfer chunk."""
    data = b"data: " + payload + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def token(written: float, finish: bytes) -> bytes:
    """About 230 bytes, as a chat chunk of vLLM has."""
    choice = (
        b'{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":%s,"token_ids":null}'
        % finish
    )
    return event(b'{%s,"choices":[%s],"written":"%016.6f"}' % (ASIDE, choice, written))


def last(tokens: int) -> bytes:
    """Usage and the end."""
    usage = b'{"prompt_tokens":5,"completion_tokens":%d,"total_tokens":%d}' % (tokens, tokens + 5)
    return event(b'{%s,"choices":[],"usage":%s}' % (ASIDE, usage)) + event(b"[DONE]") + b"0\r\n\r\n"


class Stream:
    """A connection and what is still owed to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.heard = b""
        self.left = 0
        self.tokens = 0
        self.written: list[float] = []


class Ticking:
    """``log`` by request id: when the kernel had it, and when each token was written, by the monotonic clock."""

    def __init__(self) -> None:
        self.log: dict[str, dict[str, object]] = {}
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.listener.setblocking(False)
        self.listener.setsockopt(socket.SOL_SOCKET, STAMPED, 1)
        self.poll = select.epoll()
        self.poll.register(self.listener, select.EPOLLIN)
        self.poll.register(0, select.EPOLLIN)
        self.streams: dict[int, Stream] = {}
        self.live: set[Stream] = set()
        self.between = time.time() - time.monotonic()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.listener.getsockname()[1])

    def serve(self) -> None:
        """Until standard input ends."""
        step = time.monotonic() + STEP
        while True:
            for number, _ in self.poll.poll(max(0.0, step - time.monotonic())):
                if number == 0:
                    if not os.read(0, 64):
                        return
                elif number == self.listener.fileno():
                    self.accept()
                else:
                    self.read(self.streams[number])
            if time.monotonic() >= step:
                step += STEP
                self.between = time.time() - time.monotonic()
                for stream in tuple(self.live):
                    self.write(stream)

    def accept(self) -> None:
        """Everybody who waits."""
        while True:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, STAMPED, 1)
            self.streams[sock.fileno()] = Stream(sock)
            self.poll.register(sock, select.EPOLLIN)

    def read(self, stream: Stream) -> None:
        """More of a request, with the kernel's time of its last bytes."""
        try:
            data, notes, _, _ = stream.sock.recvmsg(65536, 256)
        except (BlockingIOError, ConnectionResetError):
            data, notes = b"", []
        came = time.monotonic()
        for _, kind, told in notes:
            if kind == STAMPED:
                seconds, nanoseconds = struct.unpack("qq", told[:16])
                came = seconds + nanoseconds * 1e-9 - self.between
        if not data:
            self.live.discard(stream)
            self.poll.unregister(stream.sock)
            del self.streams[stream.sock.fileno()]
            stream.sock.close()
            return
        stream.heard += data
        head, end, body = stream.heard.partition(b"\r\n\r\n")
        size = LENGTH.search(head)
        if not end or len(body) < (int(size[1]) if size else 0):
            return
        stream.heard = b""
        if head.startswith(b"GET"):
            page = json.dumps(self.log).encode()
            stream.sock.setblocking(True)
            stream.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page))
            stream.sock.setblocking(False)
            return
        name, tokens = NAME.search(head), TOKENS.search(body)
        stream.left = stream.tokens = int(tokens[1]) if tokens else 16
        stream.written = []
        if name:
            self.log[name[1].decode()] = {"came": came, "stamped": bool(notes), "written": stream.written}
        stream.sock.send(HEAD)
        self.live.add(stream)

    def write(self, stream: Stream) -> None:
        """One token, and the end behind the last."""
        stream.left -= 1
        now = time.monotonic()
        data = token(now, b"null" if stream.left else b'"length"')
        if not stream.left:
            self.live.discard(stream)
            data += last(stream.tokens)
        stream.written.append(now)
        try:
            stream.sock.send(data)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            self.live.discard(stream)  # a client that does not read is measured by what it misses


if __name__ == "__main__":
    if len(sys.argv) > 1:
        os.sched_setaffinity(0, {int(sys.argv[1])})
    ticking = Ticking()
    print(ticking.port, flush=True)
    ticking.serve()
