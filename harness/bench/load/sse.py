"""Server-sent events out of bytes that may be cut anywhere.

Source: the event stream format of the HTML standard. Lines end with LF, CR or CRLF and with nothing else: U+2028 and
U+0085 are letters of a JSON string, and splitting text at them loses a chunk silently (bench.md d.6).
"""

from __future__ import annotations

from collections.abc import Sequence

BOM = b"\xef\xbb\xbf"


Event = tuple[bytes, bytes]
"""The name, empty where the server gave none, and the data."""


class Framer:
    """The events of one stream. Bytes are kept as they are, so a letter that two reads share is whole again."""

    __slots__ = ("_after_cr", "_begun", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False
        self._begun = False

    def feed(self, data: bytes) -> Sequence[Event]:
        """The events that these bytes complete."""
        if (  # one whole event, as nearly every read brings: no copy but the payload's
            not self._rest
            and data[:6] == b"data: "
            and data.find(b"\n") == len(data) - 2
            and data[-1:] == b"\n"
            and b"\r" not in data
        ):
            self._begun, self._after_cr = True, False
            return ((b"", data[6:-2]),)
        if not data:
            return ()
        if self._after_cr or b"\r" in data:
            data = self._with_line_feeds(data)
        self._rest += data
        if b"\n\n" not in data and b"\n\n" not in self._rest[-len(data) - 1 :]:
            return ()
        *blocks, self._rest = self._rest.split(b"\n\n")
        return [event for block in blocks if (event := self._read(block)) is not None]

    def flush(self) -> Sequence[Event]:
        """What is left at the end of the stream. The standard drops it; whether it counts is the reader's decision."""
        block, self._rest = self._rest, b""
        event = self._read(block)
        return () if event is None else (event,)

    def _with_line_feeds(self, data: bytes) -> bytes:
        """A CR ends a line at once; the LF that may come in the next read belongs to it."""
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
        self._after_cr = data[-1:] == b"\r" if data else False
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _read(self, block: bytes) -> Event | None:
        if not self._begun and block:
            self._begun = True
            block = block.removeprefix(BOM)
        name, lines = b"", []
        for line in block.split(b"\n"):
            key, _, value = line.partition(b":")
            if key == b"data":
                lines.append(value.removeprefix(b" "))
            elif key == b"event":
                name = value.removeprefix(b" ")
        return (name, b"\n".join(lines)) if lines else None
