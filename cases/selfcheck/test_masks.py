"""Wrong masks and drafts name the mistake behind them; rows are written by hand, with the oracle's masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from harness.check.grammar import GrammarBook, check_grammar, judge_for
from harness.oracle.grammar import Mask
from harness.scenario import Grammar, Request, Scenario
from harness.trace import Array, RowTrace, StepTrace, Trace
from harness.verdict import Divergence, Verdict

PATTERNS = {"r0": "([ab][0-9]){2}x{4}", "r1": "z{9}y"}
"""What r0 and r1 must say; any other request is free."""
MARKER = 998  # written as |
VOCAB = 1024

Answer = str | None
"""A mask by the answer that it follows; ``None`` for a mask that allows everything."""


class Desk:
    """Writes the rows of a scenario, right in everything unless told otherwise."""

    def __init__(self, folder: Path, *requests: str, reasons: bool = False, regime: Any = "trim") -> None:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._ids = {letter: tokenizer.encode(letter).ids[0] for letter in "abxyz0123456789"}
        self._ids |= {"|": MARKER, "-": -1}
        self._book = GrammarBook(folder)
        self._scenario = Scenario(
            name="by hand",
            regime=regime,
            requests=tuple(
                Request(
                    id=name,
                    prompt=(5,),
                    max_tokens=99,
                    grammar=Grammar(kind="regex", text=PATTERNS[name]) if name in PATTERNS else None,
                    reasoning_end=MARKER if reasons else None,
                )
                for name in requests
            ),
        )

    def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self._ids[letter] for letter in text)

    def masks(self, request: str, answers: Sequence[Answer]) -> Array | None:
        """[rows, words] int32: the mask after each answer."""
        judge = judge_for(self._scenario.request(request), self._book)
        if judge is None:
            return None
        masks: list[Mask] = [
            np.ones(VOCAB, dtype=np.bool_) if answer is None else judge.replay(self.tokens(answer)).allowed()
            for answer in answers
        ]
        return np.packbits(np.stack(masks), axis=1, bitorder="little").view(np.int32)

    def row(
        self,
        request: str,
        answer: str,
        kept: str,
        committed: str,
        masks: Sequence[Answer] = (),
        **fields: Any,
    ) -> RowTrace:
        """A row behind an answer. ``masks`` in place of the right ones; ``fields`` are further fields of the row."""
        known = kept.split("-")[0]
        right = [answer + known[:i] for i in range(len(kept) + 1)]
        row = RowTrace(
            request=request,
            prompt_tokens=0,
            kept=self.tokens(kept),
            committed=self.tokens(committed),
            num_computed=0,
            previous_accepted=1,
            proposed=self.tokens(known),
            grammar_kept=len(known),
            logits=np.zeros((len(kept) + 1, VOCAB)),
            mask=self.masks(request, masks or right),
        )
        return replace(row, **fields)

    def judge(self, *steps: Sequence[RowTrace]) -> list[Divergence]:
        trace = Trace(
            scenario="by hand",
            target="by hand",
            steps=tuple(StepTrace(index=i, rows=tuple(rows)) for i, rows in enumerate(steps)),
            completions={},
            linear_layers=(),
        )
        evidence = check_grammar(self._scenario, trace, self._book)
        assert evidence.verdict is (Verdict.FAIL if evidence.divergences else Verdict.PASS)
        assert all(d.diagnosis and d.at.step == len(steps) - 1 for d in evidence.divergences)
        return list(evidence.divergences)

    def causes(self, *steps: Sequence[RowTrace]) -> list[tuple[str, str | None]]:
        """(tensor, cause) of everything that is wrong, all of it in the last step."""
        return [(d.at.tensor, d.cause) for d in self.judge(*steps)]


@pytest.fixture
def desk(peaked: Path) -> Desk:
    return Desk(peaked, "r0", "r1", "free")


@pytest.fixture
def reasons(peaked: Path) -> Desk:
    return Desk(peaked, "r0", reasons=True)


@pytest.fixture
def places(peaked: Path) -> Desk:
    return Desk(peaked, "r0", regime="placeholder")


# Masks.


@pytest.mark.parametrize(
    ("cause", "masks"),
    [
        ("unconstrained mask", [None, None, None, None]),
        ("unconstrained mask", ["a1b", "a1b2", None, "a1b2xx"]),
        ("mask of the first row repeated", ["a1b", "a1b", "a1b", "a1b"]),
        ("mask one token behind", ["a1b", "a1b", "a1b2", "a1b2x"]),
        ("mask one token behind", ["a1", "a1b", "a1b2", "a1b2x"]),
        ("mask one token ahead", ["a1b2", "a1b2x", "a1b2xx", "a1b2xx"]),
    ],
)
def test_a_block_of_masks_names_the_mistake(desk: Desk, cause: str, masks: list[Answer]) -> None:
    first = [desk.row("r0", "", "", "a1b")]
    assert desk.causes(first, [desk.row("r0", "a1b", "2xx", "2")]) == []
    assert desk.causes(first, [desk.row("r0", "a1b", "2xx", "2", masks)]) == [("mask", cause)]


def test_a_mask_that_fits_no_mistake_is_said_to_fit_none(desk: Desk) -> None:
    row = desk.row("r0", "", "a1", "a")
    (found,) = desk.judge([replace(row, mask=row.mask ^ np.int32(1 << 7))])
    assert (found.cause, found.diagnosis) == (None, "no known mistake fits")


@pytest.mark.parametrize("lag", [1, 2])
def test_a_matcher_that_lags_is_behind(desk: Desk, lag: int) -> None:
    lagging = desk.row("r0", "a1b2", "", "x", ["a1b2"[:-lag]])
    (found,) = desk.judge([desk.row("r0", "", "", "a1b2")], [lagging])
    assert found.cause == "matcher behind"
    assert f"not read the last {lag} token" in str(found.diagnosis)


def test_a_matcher_that_read_rejected_drafts_is_ahead(desk: Desk) -> None:
    steps = [[desk.row("r0", "", "", "a")], [desk.row("r0", "a", "1b2", "1a")]]
    assert desk.causes(*steps, [desk.row("r0", "a1a", "", "2", ["a1b2"])]) == [("mask", "matcher ahead")]


def test_masks_of_another_row_and_of_the_step_before_are_told_apart(desk: Desk) -> None:
    before = [desk.row("r1", "", "", "zz"), desk.row("r0", "", "", "a")]
    free, z = desk.row("free", "", "b", "b"), desk.row("r1", "zz", "", "z")
    other = replace(desk.row("r0", "a", "", "1"), mask=z.mask)
    assert desk.causes(before, [z, free, other]) == [("mask", "mask of another row")]
    assert desk.causes(before, [other]) == [("mask", "stale mask")]
    assert desk.causes(before, [replace(z, discarded=True, kept=(5,)), other]) == [("mask", None)]


def test_missing_masks_are_counted(desk: Desk) -> None:
    row = desk.row("r0", "", "a1", "a")
    assert desk.causes([replace(row, mask=row.mask[:2])]) == [("mask", "mask rows miscounted")]


@pytest.mark.parametrize(
    ("cause", "history", "kept", "masks"),
    [
        ("unconstrained behind the reasoning", "xx", "x|a", [None, None, None, None]),
        ("constrained too early", "xx", "x", ["|", None]),
        ("constrained too early", "a", "", ["|a"]),
        ("matcher behind", "xx|a1", "", ["|a"]),
        ("matcher behind", "xx|a1b2", "", ["|"]),
        ("reasoning read by the grammar", "a|b2", "", ["|a"]),
    ],
)
def test_a_grammar_that_begins_in_the_wrong_place_is_named(
    reasons: Desk, cause: str, history: str, kept: str, masks: list[Answer]
) -> None:
    first = [reasons.row("r0", "", "", history)]
    assert reasons.causes(first, [reasons.row("r0", history, kept, "")]) == []
    assert reasons.causes(first, [reasons.row("r0", history, kept, "", masks)]) == [("mask", cause)]


# Drafts and commits.


@pytest.mark.parametrize(
    ("kept", "fields", "cause"),
    [
        ("b2--", {}, None),
        ("----", {}, "legal draft trimmed"),
        ("b---", {"grammar_kept": 1}, "legal draft trimmed"),
        ("b---", {}, "legal draft trimmed"),
        ("b2b-", {"grammar_kept": 3}, "refused draft kept"),
        ("b2-x", {}, "draft behind a placeholder"),
    ],
)
def test_refused_drafts_are_placeholders_and_no_others_are(
    places: Desk, kept: str, fields: dict[str, Any], cause: str | None
) -> None:
    proposed = {"proposed": places.tokens("b2bx"), "grammar_kept": 2}
    masks: list[Answer] = ["a1", "a1b", "a1b2", "a1b2", "a1b2"] if kept == "b2b-" else []
    row = places.row("r0", "a1", kept, "b", masks, **(proposed | fields))
    found = places.causes([places.row("r0", "", "", "a1")], [row])
    assert {cause for _, cause in found} == ({cause} if cause else set())
    assert {tensor for tensor, _ in found} <= {"drafts"}


def test_masks_behind_a_placeholder_repeat_its_own(places: Desk) -> None:
    first = [places.row("r0", "", "", "a1")]
    for masks, cause in (
        (["a1", "a1b", None, None], "unconstrained behind a placeholder"),
        ([None, None, None, None], "unconstrained mask"),
        (["a1", "a1b", "a1b", "a1b2"], None),
    ):
        assert places.causes(first, [places.row("r0", "a1", "b--", "b", masks)]) == [("mask", cause)]


def test_a_token_that_a_right_mask_forbids_is_told_from_one_that_a_wrong_mask_let_through(desk: Desk) -> None:
    first = [desk.row("r0", "", "", "a1")]
    assert desk.causes(first, [desk.row("r0", "a1", "b", "bx")]) == [("committed", "illegal token committed")]
    for masks in ([None, None], ["a1b", None], ["a1", None]):
        found = desk.causes(first, [desk.row("r0", "a1", "b", "bx", masks)])
        assert [tensor for tensor, _ in found] == ["mask", "committed"]
        assert len({cause for _, cause in found}) == 1
    late = desk.causes(first, [desk.row("r0", "a1", "b", "x", ["a1", None])])
    assert late == [("mask", "unconstrained mask"), ("committed", "illegal token committed")]


def test_rows_that_were_discarded_are_no_part_of_the_answer(desk: Desk) -> None:
    gone = desk.row("r0", "a", "", "x", discarded=True)
    assert desk.causes([desk.row("r0", "", "", "a")], [gone], [desk.row("r0", "a", "1", "1")]) == []


def test_a_resumed_request_goes_on_where_it_was(desk: Desk) -> None:
    piece = replace(desk.row("r0", "a", "", ""), prompt_tokens=1, resumed=True, mask=None, logits=None)
    rest = replace(desk.row("r0", "a", "", "1"), prompt_tokens=1)
    steps = [[desk.row("r0", "", "", "a")], [piece], [rest], [desk.row("r0", "a1", "b", "b")]]
    assert desk.causes(*steps) == []
