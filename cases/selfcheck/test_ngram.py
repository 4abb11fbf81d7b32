"""The prompt-lookup drafter against a loop that anybody can check."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine.ngram import propose
from harness.errors import UsageError


def naive(tokens: list[int], k: int, min_n: int, max_n: int) -> list[int]:
    for n in range(max_n, min_n - 1, -1):
        for start in range(len(tokens) - n):
            if tokens[start : start + n] == tokens[len(tokens) - n :]:
                return tokens[start + n :][: max(k, 0)]
    return []


# Few symbols, so that matches are frequent; 256 and 1 << 16 share bytes with 1 across token boundaries.
token_lists = st.lists(st.sampled_from([0, 1, 2, 256, 1 << 16]), max_size=40)


@given(tokens=token_lists, k=st.integers(-40, 6), min_n=st.integers(1, 4), extra=st.integers(0, 4))
def test_equals_the_naive_search(tokens: list[int], k: int, min_n: int, extra: int) -> None:
    assert propose(tokens, k, min_n, min_n + extra) == naive(tokens, k, min_n, min_n + extra)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param([], [], id="empty"),
        pytest.param([7], [], id="one token has no past"),
        pytest.param([1, 2, 3], [], id="nothing repeats"),
        pytest.param([1, 2, 3, 4, 1, 2], [3, 4, 1], id="the k tokens behind the match"),
        pytest.param([5, 5], [5], id="fewer than k tokens are left"),
        pytest.param([9, 1, 8, 2, 1, 7, 9, 1], [8, 2, 1], id="longer match wins over more recent"),
        pytest.param([1, 2, 3, 1, 2, 4, 1, 2], [3, 1, 2], id="earliest of equal matches"),
    ],
)
def test_proposes(tokens: list[int], expected: list[int]) -> None:
    assert propose(tokens, k=3, min_n=1, max_n=3) == expected


def test_shorter_suffixes_than_min_n_do_not_count() -> None:
    assert propose([1, 2, 9, 3, 2], k=2, min_n=2, max_n=3) == []


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 2), (3, 2), (-1, 1)])
def test_impossible_lengths_are_refused(min_n: int, max_n: int) -> None:
    with pytest.raises(UsageError, match=f"min_n={min_n}, max_n={max_n}"):
        propose([1, 2], 1, min_n, max_n)
