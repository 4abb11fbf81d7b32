"""Scripts of what only the chat path has."""

from __future__ import annotations

from typing import Any

from harness.bench.conformance.build import DONE, script
from harness.bench.conformance.script import Script, said, summed
from harness.bench.record import Kind

ROLE, CONTENT, REASONING, TOOL = Kind.ROLE, Kind.CONTENT, Kind.REASONING, Kind.TOOL
FINISH, USAGE, END = Kind.FINISH, Kind.USAGE, Kind.DONE


def of_chat() -> list[Script]:
    """What only the chat path has."""

    def told(text: str | None = None, **more: Any) -> dict[str, Any]:
        return said(text, is_chat=True, **more)

    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    tool = told() | {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    thoughts = [(100 + 40 * i, told(reasoning="t", ids=[i]), REASONING, 1) for i in range(5)]
    moments = (300, 350, 400, 450, 500, 550, 650)
    answer = [(ms, told("w", ids=[i]), CONTENT, 1) for i, ms in enumerate(moments)]
    return [
        script(
            "role-first",
            "trap 3: the role is no token, and neither are the finish, the usage and [DONE]",
            [
                (5, told("", role="assistant"), ROLE, None),
                (80, told("a"), CONTENT, None),
                (100, told("b"), CONTENT, None),
                (120, told("c"), CONTENT, None),
                (121, told(finish="stop"), FINISH, None),
                (122, summed(3, is_chat=True), USAGE, None),
                (123, DONE, END, None),
            ],
            is_chat=True,
            text="abc",
            usage=3,
        ),
        script(
            "role-with-content",
            "the role travels with the first token",
            [
                (80, told("a", role="assistant", ids=[1]), CONTENT, 1),
                (100, told("b", ids=[2], finish="stop"), CONTENT, 1),
                (122, summed(2, is_chat=True), USAGE, None),
                (123, DONE, END, None),
            ],
            is_chat=True,
            text="ab",
            usage=2,
        ),
        script(
            "reasoning-first",
            "trap 11: reasoning counts for TTFT, the answer begins later",
            [
                *thoughts,
                *answer,
                (655, told(finish="stop"), FINISH, None),
                (660, summed(12, is_chat=True), USAGE, None),
                (665, DONE, END, None),
            ],
            is_chat=True,
            text="wwwwwww",
            usage=12,
        ),
        script(
            "tool-call",
            "a call of a tool is output",
            [
                (40, tool, TOOL, None),
                (60, told(finish="tool_calls"), FINISH, None),
                (65, summed(9, is_chat=True), USAGE, None),
                (70, DONE, END, None),
            ],
            is_chat=True,
            usage=9,
            finish="tool_calls",
        ),
        script(
            "heartbeat-chunks",
            "an empty delta is no token",
            [
                (10, told(), None, None),
                (30, told(), None, None),
                (80, told("a"), CONTENT, None),
                (100, told("b"), CONTENT, None),
                (110, told(finish="stop"), FINISH, None),
                (122, summed(2, is_chat=True), USAGE, None),
                (123, DONE, END, None),
            ],
            is_chat=True,
            text="ab",
            usage=2,
        ),
    ]
