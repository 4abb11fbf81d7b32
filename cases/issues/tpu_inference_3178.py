"""On TPUs the tokens of rejected drafts stay in the recurrent state (tpu-inference PRs 3178 and 3189).

Only the state behind a row's last token was kept, so nothing could be taken back: every rejection leaves its drafts
in the state. The request accepts one of three tokens, which is enough.
"""

from collections.abc import Iterator

from harness import Documented, Lab, Plan, Scenario, issue


@issue(
    "tpu-inference#3178", title="rejected drafts stay in the state", variants=("fixed", "only-the-last-state")
)
def scenarios(lab: Lab) -> Iterator[Scenario]:
    yield lab.forced(
        "two drafts rejected",
        k=2,
        plans={"r0": Plan(turns=((2, 1), (2, 2)))},
        must_observe={"rollback": 2},
        documented={"only-the-last-state": Documented(failure="state", tensor="conv", layer=0, step=1)},
    )
