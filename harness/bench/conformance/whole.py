"""Scripts of answers that are whole, in every shape that servers give them."""

from __future__ import annotations

from typing import Any

from harness.bench.conformance.build import DONE, Row, letters, rows_of_three, script
from harness.bench.conformance.script import Ending, Script, counted, said, summed
from harness.bench.record import Kind

CONTENT, FINISH, USAGE, END = Kind.CONTENT, Kind.FINISH, Kind.USAGE, Kind.DONE


def whole(is_chat: bool) -> list[Script]:
    """Answers that are whole, in every shape that servers give them."""

    def told(text: str, **more: Any) -> dict[str, Any]:
        return said(text, is_chat=is_chat, **more)

    def last(tokens: int) -> tuple[Row, Row]:
        return (195, summed(tokens, is_chat=is_chat), USAGE, None), (200, DONE, END, None)

    four = [(100, [1]), (130, [2, 3, 4]), (160, [5, 6]), (190, [7, 8, 9, 10])]
    pair = [(100, [1, 2, 3, 4]), (140, [5, 6, 7, 8])]
    running = [(100, 1), (130, 4), (160, 6), (190, 10)]
    return [
        script(
            "plain",
            "nothing: the simplest stream",
            rows_of_three(is_chat),
            is_chat=is_chat,
            text="abc",
            usage=3,
        ),
        script(
            "no-token-ids",
            "counts tokens by chunks or by itself although nobody told",
            rows_of_three(is_chat, tokens=False),
            is_chat=is_chat,
            text="abc",
            usage=3,
        ),
        script(
            "several-tokens-per-chunk",
            "trap 1: ITL per chunk taken for ITL per token",
            [
                *(
                    (ms, told("x", ids=ids, finish="stop" if ms == 190 else None), CONTENT, len(ids))
                    for ms, ids in four
                ),
                *last(10),
            ],
            is_chat=is_chat,
            text="xxxx",
            usage=10,
        ),
        script(
            "four-tokens-first",
            "trap 2: TPOT divides by n - 1 although the first chunk held four",
            [
                *(
                    (ms, told("x", ids=ids, finish="stop" if ms == 140 else None), CONTENT, 4)
                    for ms, ids in pair
                ),
                *last(8),
            ],
            is_chat=is_chat,
            text="xx",
            usage=8,
        ),
        script(
            "running-usage",
            "takes the first usage for the total, or adds them up",
            [
                *(
                    (ms, told("x", usage=counted(n), finish="stop" if ms == 190 else None), CONTENT, k)
                    for (ms, n), k in zip(running, (1, 3, 2, 4), strict=True)
                ),
                *last(10),
            ],
            is_chat=is_chat,
            text="xxxx",
            usage=10,
        ),
        script(
            "usage-on-the-last-chunk",
            "d.6: usage beside choices is not read, tokens are 0 or counted again",
            [
                *letters(is_chat, "abc", tokens=False)[:2],
                (60, told("c", finish="stop", usage=counted(3)), CONTENT, None),
                (70, DONE, END, None),
            ],
            is_chat=is_chat,
            text="abc",
            usage=3,
        ),
        script(
            "usage-null-until-the-end",
            "fails on usage: null",
            [
                (20, told("a") | {"usage": None}, CONTENT, None),
                (40, told("b", finish="stop") | {"usage": None}, CONTENT, None),
                *last(2),
            ],
            is_chat=is_chat,
            text="ab",
            usage=2,
        ),
        script(
            "one-token",
            "trap 13: TPOT 0 of a reply that has none",
            [(40, told("a", ids=[1], finish="length"), CONTENT, 1), *last(1)],
            is_chat=is_chat,
            text="a",
            usage=1,
            finish="length",
        ),
        script(
            "tokens-without-letters",
            "a token that is no text is no first token",
            [
                (40, told("", ids=[1]), CONTENT, 1),
                (60, told("b", ids=[2], finish="stop"), CONTENT, 1),
                *last(2),
            ],
            is_chat=is_chat,
            text="b",
            usage=2,
        ),
        script(
            "end-token-in-the-finish-chunk",
            "the last token came with the reason and without text",
            [
                (40, told("a", ids=[1]), CONTENT, 1),
                (60, told("", ids=[2], finish="stop"), CONTENT, 1),
                *last(2),
            ],
            is_chat=is_chat,
            text="a",
            usage=2,
        ),
        script(
            "empty-finish-chunk",
            "d.5: the empty finish chunk is one more ITL sample, and the end",
            [
                *letters(is_chat, "abc", tokens=False, finish=None),
                (90, told("", finish="stop"), FINISH, None),
                *last(3),
            ],
            is_chat=is_chat,
            text="abc",
            usage=3,
        ),
        script(
            "ends-with-its-connection",
            "takes a body without a length for a cut one",
            rows_of_three(is_chat),
            is_chat=is_chat,
            text="abc",
            usage=3,
            is_chunked=False,
        ),
        script(
            "done-and-no-end",
            "waits for the end of the HTTP message although all is said",
            rows_of_three(is_chat),
            is_chat=is_chat,
            text="abc",
            usage=3,
            ending=Ending.HANG,
        ),
    ]
