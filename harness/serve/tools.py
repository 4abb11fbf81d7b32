"""Tool calls inside a text, in the form that Qwen's chat templates teach (Hermes)."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

TRIGGER = "<tool_call>"
CALL_BEGIN = TRIGGER + '\n{{"name": "{name}", "arguments": '
CALL_END = "}\n</tool_call>"

_CALL = re.compile(r'<tool_call>\n\{"name": "([\w.-]+)", "arguments": (.*)', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function and its arguments, as the model wrote them."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


class CallReader:
    """Takes the calls out of a text that comes in pieces. A call comes whole; what is no call stays text."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str, *, last: bool) -> tuple[str, list[Call]]:
        """Text to give out, and the calls that are complete."""
        self._held += text
        given, calls = "", []
        while (end := self._held.find(CALL_END)) >= 0:
            before, self._held = self._held[:end], self._held[end + len(CALL_END) :]
            begin = before.rfind(TRIGGER)
            call = _CALL.fullmatch(before, begin) if begin >= 0 else None
            if call is None:
                given += before + CALL_END
            else:
                given += before[:begin]
                calls.append(Call(name=call[1], arguments=call[2]))
        kept = 0 if last else self._unsure()
        given += self._held[: len(self._held) - kept]
        self._held = self._held[len(self._held) - kept :]
        return given, calls

    def _unsure(self) -> int:
        """How many characters at the end are a call that is not complete, or may become one."""
        begin = self._held.find(TRIGGER)
        if begin >= 0:
            return len(self._held) - begin
        return next((n for n in range(len(TRIGGER) - 1, 0, -1) if self._held.endswith(TRIGGER[:n])), 0)
