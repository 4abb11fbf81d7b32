"""Greedy answers with speculation differ from those without, for rows of three tokens and more (llama.cpp 25618).

Attention takes another path for several query tokens, and there a token sees those behind it. Rows of two tokens are
right, so a single draft shows nothing. This is no state: logits of a full-attention layer tell.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "llama.cpp#25618", title="wide rows see what is behind them", variants=("fixed", "wide-rows-see-ahead")
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "rows of four tokens",
        k=3,
        plans={"r0": Plan(turns=((3, 4), (3, 2)))},
        must_observe={"all drafts accepted": 1},
        documented={"wide-rows-see-ahead": Documented(failure="logits", tensor="logits")},
    )
