"""Faults of grammars, reasoning, placeholders and stops: a small scenario shows each; the correct engine passes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from harness.check.crash import cause_of_crash
from harness.check.finish import check_finish
from harness.check.grammar import GrammarBook, check_grammar
from harness.check.ledger import check_ledger
from harness.engine.faults import FAULTS
from harness.engine.loader import Loader
from harness.engine.policy import POLICY, Policy
from harness.lab import Lab
from harness.run import first_divergence
from harness.scenario import Grammar, Regime, Request, Sampling, Scenario, Turn
from harness.targets.embedded import EmbeddedTarget
from harness.trace import Coordinate, Trace
from harness.verdict import Divergence, Evidence

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
GROUPS = ("f_grammar", "f_stops")
END, MARKER = 999, 998  # written as $ and |
STEPS = "[ab][12][bc][23][cd][34][de][45][ef][56][fg][67]"
"""Each place has a mask of its own."""


class Writer:
    """Writes forced scenarios: each turn is (drafts, how many of them are accepted, the next token), in letters."""

    def __init__(self, folder: Path) -> None:
        encode = Lab(folder, FIXTURES).encode
        self._ids = {letter: encode(letter)[0] for letter in "abcdefgxyz0123456789 "} | {
            "$": END,
            "|": MARKER,
        }

    def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self._ids[letter] for letter in text)

    def request(
        self, name: str = "r0", prompt: str = "x y z", pattern: str | None = None, **fields: Any
    ) -> Request:
        grammar = Grammar(kind="regex", text=pattern) if pattern else None
        return replace(Request(id=name, prompt=self.tokens(prompt), max_tokens=30, grammar=grammar), **fields)

    def forced(self, *written: tuple[Request, list[tuple[str, int, str]]], **settings: Any) -> Scenario:
        script = {
            request.id: tuple(
                Turn(drafts=self.tokens(drafts), accepted=accepted + 1, token=self.tokens(token)[0])
                for drafts, accepted, token in turns
            )
            for request, turns in written
        }
        requests = tuple(request for request, _ in written)
        return Scenario(name="forced", k=3, requests=requests, script=script, **settings)


def guided(writer: Writer) -> Scenario:
    """Rejections, a refused draft, a window that is accepted as a whole."""
    turns = [("", 0, "a"), ("1b2", 1, "c"), ("2cx", 2, "3"), ("d4e", 3, "5"), ("", 0, "f")]
    return writer.forced((writer.request(pattern=STEPS), turns))


def may_end(writer: Writer) -> Scenario:
    """The end token is drafted, legal, and rejected."""
    turns = [("", 0, "a"), ("1$", 1, "c"), ("3x4", 3, "x"), ("5d6", 1, "e")]
    return writer.forced((writer.request(pattern="([a-z][0-9]){1,9}"), turns))


def reasons(writer: Writer) -> Scenario:
    """The reasoning ends inside a window, with an illegal draft behind the marker."""
    turns = [("", 0, "a"), ("x|3", 2, "b"), ("1c2", 3, "d"), ("3e4", 1, "d")]
    return writer.forced((writer.request(pattern=STEPS, reasoning_end=MARKER), turns))


def switches(writer: Writer) -> Scenario:
    """The reasoning ends inside a window, and the drafts behind the marker are accepted."""
    turns = [("", 0, "x"), ("x|a", 3, "1"), ("b2c", 3, "3"), ("d4e", 1, "5")]
    return writer.forced((writer.request(pattern=STEPS, reasoning_end=MARKER), turns))


def joined(writer: Writer) -> Scenario:
    """A prompt comes in while another request decodes."""
    turns = [("", 0, "a"), ("1b2", 2, "3"), ("c4d", 3, "5"), ("e6f", 3, "7")]
    late = writer.request("r1", pattern=STEPS, arrival=2)
    return writer.forced((writer.request(pattern=STEPS), turns), (late, turns[:3]))


def in_pieces(writer: Writer) -> Scenario:
    """A prompt in pieces, the first of which ends with a letter that the grammar would take."""
    request = writer.request(prompt="x ya z b", pattern=STEPS)
    return writer.forced((request, [("", 0, "a"), ("1b2", 1, "c")]), token_budget=4)


def ends_inside(writer: Writer) -> Scenario:
    """An end token, a stop token and a stop text, each in the middle of an accepted window."""
    turns = [("", 0, "a"), ("b$c", 3, "d"), ("ef", 2, "g")]
    return writer.forced((writer.request(), turns))


def text_inside(writer: Writer) -> Scenario:
    """A stop text that spans two steps and ends in the middle of an accepted window."""
    turns = [("", 0, "a"), ("bcd", 3, "e"), ("fg", 2, "x")]
    return writer.forced((writer.request(stop=("abc",)), turns))


def ends_before_the_length(writer: Writer) -> Scenario:
    """A stop token in the window that reaches the length."""
    turns = [("", 0, "a"), ("bcd", 3, "e"), ("fg", 2, "x")]
    return writer.forced((writer.request(max_tokens=5, stop_token_ids=writer.tokens("c")), turns))


def sampled(writer: Writer) -> Scenario:
    """A drafter that has seldom as many drafts as a row has places."""
    how = Sampling(temperature=1.0, seed=3)
    requests = tuple(writer.request(f"r{i}", prompt="x y x y", sampling=how, max_tokens=12) for i in range(2))
    return Scenario(name="sampled", k=3, requests=requests, drafter="ngram")


SHOWN: dict[str, tuple[Callable[[Writer], Scenario], int]] = {
    "free-behind-the-marker": (reasons, 1),
    "reasoning-fed-to-the-grammar": (reasons, 0),
    "constrained-while-reasoning": (reasons, 0),
    "grammar-one-step-behind": (guided, 0),
    "advance-deferred-at-the-switch": (switches, 1),
    "end-stays-in-force": (may_end, 1),
    "refused-draft-rolled-back": (guided, 1),
    "mask-asked-behind-the-end": (may_end, 1),
    "first-mask-repeated": (guided, 1),
    "masks-for-drafts-that-are-none": (guided, 0),
    "rejected-drafts-stay-in-the-matcher": (guided, 1),
    "masks-of-the-step-before": (joined, 2),
    "free-behind-a-placeholder": (guided, 2),
    "placeholder-accepted": (sampled, 1),
    "partial-prompt-in-the-matcher": (in_pieces, 0),
    "end-token-inside-a-run": (ends_inside, 1),
    "stop-text-inside-a-run": (text_inside, 1),
    "length-looked-at-first": (ends_before_the_length, 1),
}
"""Fault -> the scenario that shows it, and the step where it first acts."""

PLANNED_AHEAD = {"masks-of-the-step-before": 3}
"""Where that is a later step in the regime placeholder: a request that arrives waits for the step behind the next."""

ONLY_PLACEHOLDERS = {"free-behind-a-placeholder", "placeholder-accepted"}
REGIMES: tuple[Regime, ...] = ("trim", "placeholder")


@pytest.fixture(scope="module")
def writer(peaked: Path) -> Writer:
    return Writer(peaked)


@pytest.fixture(scope="module")
def loader(peaked: Path) -> Loader:
    return Loader(peaked)


@pytest.fixture(scope="module")
def book(peaked: Path) -> GrammarBook:
    return GrammarBook(peaked)


def run(loader: Loader, policy: Policy, scenario: Scenario) -> Trace:
    return EmbeddedTarget(loader=loader, policy=policy, kernels="naive").run(scenario)


def first_of(scenario: Scenario, trace: Trace, book: GrammarBook) -> Divergence | None:
    """The first thing that counts, grammar or answers show; a crash is one too."""
    evidence: list[Evidence] = [
        check_ledger(scenario, trace, book.vocabulary.size),
        check_grammar(scenario, trace, book),
        check_finish(scenario, trace, book),
    ]
    found = first_divergence(evidence)
    if trace.crash and (found is None or found.at.step >= trace.crash.step):
        cause, _ = cause_of_crash(trace.crash)
        at = Coordinate(step=trace.crash.step)
        return Divergence(kind="crash", at=at, message=trace.crash.message, cause=cause)
    return found


def test_every_fault_of_these_groups_is_shown() -> None:
    modules = [import_module(f"harness.engine.faults.{group}") for group in GROUPS]
    declared = {
        name
        for name, fault in FAULTS.items()
        for module in modules
        if hasattr(module, name.replace("-", "_"))
    }
    assert declared == set(SHOWN)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(
    "build", sorted({build for build, _ in SHOWN.values()}, key=lambda build: build.__name__)
)
def test_the_correct_engine_passes(
    build: Callable[[Writer], Scenario], regime: Regime, writer: Writer, loader: Loader, book: GrammarBook
) -> None:
    scenario = replace(build(writer), regime=regime)
    trace = run(loader, POLICY, scenario)
    assert trace.crash is None
    assert first_of(scenario, trace, book) is None


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("name", SHOWN)
def test_a_fault_is_found_where_it_acts_and_called_by_its_name(
    name: str, regime: Regime, writer: Writer, loader: Loader, book: GrammarBook
) -> None:
    for group in GROUPS:
        import_module(f"harness.engine.faults.{group}")
    fault, (build, step) = FAULTS[name], SHOWN[name]
    scenario = replace(build(writer), regime=regime)
    found = first_of(scenario, run(loader, fault.policy, scenario), book)
    if regime == "trim" and name in ONLY_PLACEHOLDERS:
        assert found is None
        return
    if regime == "placeholder":
        step = PLANNED_AHEAD.get(name, step)
    assert found is not None
    assert (found.kind, found.cause, found.at.step) == (fault.kind, fault.cause, step)
    assert fault.tensor in (None, found.at.tensor)
