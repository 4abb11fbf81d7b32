"""A step in which no request has a draft leaves the accepted counts of the step before (until vLLM PR 30877).

The counts were refreshed only by steps with drafts. When drafts come back, each request reads its state where the
older count says, which is not where the step without drafts left it. Here four tokens are accepted, then a grammar
trims the only request to nothing, then it has three drafts again.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "vllm#30877",
    title="accepted counts kept over a step without drafts",
    variants=("fixed", "stale-accepted-count"),
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "drafts, none, drafts",
        k=3,
        plans={"r0": Plan(guided=True, turns=((3, 4), (0, 1), (3, 2)))},
        must_observe={"verify step without drafts": 1, "drafts after a step without": 1},
        documented={"stale-accepted-count": Documented(failure="state", tensor="conv", layer=0, step=2)},
    )
