"""Speculation changes no greedy token: any drafter, any k, alone or in a crowd, guided or free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import Lab, Request, Scenario
from harness.targets.embedded import EmbeddedTarget, under_each_variant

REQUESTS, TOKENS = 16, 96
ALONE = 8
"""Of them, guided and free."""


@pytest.fixture(scope="module")
def target(peaked: Path) -> EmbeddedTarget:
    return under_each_variant(peaked)("fixed")


@pytest.fixture(scope="module")
def requests(peaked: Path) -> list[Request]:
    root = Path(__file__).resolve().parents[2]
    return Lab(peaked, root / "fixtures").mixed_requests(REQUESTS, max_tokens=TOKENS)


@pytest.fixture(scope="module")
def plain(target: EmbeddedTarget, requests: list[Request]) -> dict[str, tuple[int, ...]]:
    """Answers without speculation, each request alone."""
    alone = replace(target, speculate=False)
    return {request.id: answers(alone, [request], k=0)[request.id] for request in requests}


def answers(
    target: EmbeddedTarget, requests: list[Request], **settings: object
) -> dict[str, tuple[int, ...]]:
    sizes = {"max_num_seqs": len(requests)}
    trace = target.run(Scenario(name="lossless", requests=tuple(requests), **sizes, **settings))
    assert trace.crash is None, trace.crash
    return {name: completion.tokens for name, completion in trace.completions.items()}


@pytest.mark.parametrize(("drafter", "k"), [("mtp", 1), ("mtp", 2), ("mtp", 3), ("mtp", 5), ("ngram", 3)])
class TestGreedyTokensEqualPlainDecoding:
    def test_in_a_batch_of_16(
        self,
        target: EmbeddedTarget,
        requests: list[Request],
        plain: dict[str, tuple[int, ...]],
        drafter: str,
        k: int,
    ) -> None:
        assert answers(target, requests, drafter=drafter, k=k) == plain

    def test_one_at_a_time(
        self,
        target: EmbeddedTarget,
        requests: list[Request],
        plain: dict[str, tuple[int, ...]],
        drafter: str,
        k: int,
    ) -> None:
        for request in requests[:ALONE]:
            found = answers(target, [request], drafter=drafter, k=k)
            assert found == {request.id: plain[request.id]}


def test_answers_are_long_and_both_kinds_are_there(
    requests: list[Request], plain: dict[str, tuple[int, ...]]
) -> None:
    free = [len(plain[request.id]) for request in requests if request.grammar is None]
    guided = [len(plain[request.id]) for request in requests if request.grammar is not None]
    assert free == [TOKENS] * (REQUESTS // 2)
    assert len(guided) == REQUESTS // 2
    assert min(guided) >= 8


def test_a_wrong_state_slot_changes_tokens(
    peaked: Path, requests: list[Request], plain: dict[str, tuple[int, ...]]
) -> None:
    """The comparison above has power: the merged fix loses accepted tokens, and that shows."""
    merged = under_each_variant(peaked)("as-merged")
    changed = [name for name, tokens in answers(merged, requests, k=3).items() if tokens != plain[name]]
    assert changed
