"""On Ascend answers turn to garbage with prefix caching and a single draft (vllm-ascend issue 17338).

The state that is filed for a prefix was the one behind the whole verify row, rejected drafts included. The second
request's prompt goes on from the first one's answer, across a boundary that the first met in a row with a rejection.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue

FAULT = "snapshot-of-the-whole-row"


@issue("vllm-ascend#17338", title="rejected drafts in a cached state", variants=("fixed", FAULT))
def scenarios(lab: Lab) -> Iterator[Scenario]:
    first = lab.forced(
        "a prompt that goes on from an answer",
        k=3,
        block_size=4,
        prefix_caching=True,
        plans={"r0": Plan(prompt=17, turns=((3, 3), (3, 2)))},
        must_observe={"prefix hit": 1, "rollback": 1},
        documented={FAULT: Documented(failure="state", tensor="conv", layer=0)},
    )
    yield lab.followed_by(first, Plan(prompt=22, arrival=6, turns=((2, 2),)))
