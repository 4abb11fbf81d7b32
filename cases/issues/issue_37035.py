"""Five drafts per request die with an illegal address under load; four were stable (vLLM issue 37035).

The reporter found that the verify kernel had been made for rows of at most four tokens. In this engine what lies
behind the fourth token of a row is left out of the state, so nothing dies; with three drafts nothing is wrong.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "four-tokens-at-most"


@issue("vllm#37035", title="a verify kernel made for four tokens", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "rows of six tokens",
        k=5,
        plans={"r0": Plan(turns=((5, 6), (5, 2)))},
        must_observe={"all drafts accepted": 1},
        documented={FAULT: Documented(failure="state", tensor="recurrent", layer=0, step=1)},
    )
    yield lab.forced(
        "rows of six tokens, captured for sixteen",
        k=5,
        capture_sizes=(16,),
        plans={"r0": Plan(turns=((5, 6), (5, 2)))},
        must_observe={"all drafts accepted": 1, "padded rows": 2},
        documented={FAULT: Documented(failure="state", tensor="recurrent", layer=0, step=1)},
    )
    yield lab.forced(
        "rows of four tokens",
        k=3,
        plans={"r0": Plan(turns=((3, 4), (3, 2)))},
        must_observe={"all drafts accepted": 1},
        passes=(FAULT,),
    )
