"""States of different ages are filed for one prefix: a race at block boundaries (vLLM PR 50432).

One program resets the accepted count that the others still read, so the layers disagree about which of a row's states
is the right one. Without a race it is made here by a reset behind the first layer.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "count-reset-too-early"


@issue("vllm#50432", title="layers file states of different ages", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    first = lab.forced(
        "a prompt that goes on from an answer",
        k=3,
        block_size=4,
        prefix_caching=True,
        plans={"r0": Plan(prompt=17, turns=((3, 3), (3, 2)))},
        must_observe={"prefix hit": 1, "two or more accepted": 1},
        documented={FAULT: Documented(failure="state", tensor="conv")},
    )
    yield lab.followed_by(first, Plan(prompt=22, arrival=6, turns=((2, 2),)))
